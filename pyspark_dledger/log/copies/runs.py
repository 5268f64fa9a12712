"""Compares the copies of one segment: runs of entries, the replicas that have them intact, and where bytes differ.

Entries have the same position on all replicas (up to DLedger 0.3), so copies are compared position by position.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.arrow_functions import distinct
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, PROPERTY_UNIQ_KEY
from pyspark_dledger.format.message import Message, are_written_properties, is_written_text, message_in
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.copies.indexed_copies import IndexedBytes, IndexedPart, read_indexed
from pyspark_dledger.log.copies.segment_bytes import WINDOW, SegmentBytes, is_torn, lacks_a_write, unequal_windows
from pyspark_dledger.log.copies.segment_copy import (
    Bools,
    CopyEntries,
    Damage,
    Longs,
    Range,
    SegmentCopy,
    TermRange,
    other_units,
    ranges_to_read,
    read_copy,
    units_agree,
    with_cached_witness,
)
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.io.files import path_of

MAX_SOURCES = 62
"""Sources are bits of a signed number."""

_TORN = "expected what another replica has, found zeros from or to the edge of a sector"
_NO_PROPERTIES = "expected a topic and properties of text without control characters, as another replica has"
_NO_UNIQ_KEY = f"expected a property {PROPERTY_UNIQ_KEY}, as another replica has"
_KEYS = ("pos", "size", "index", "term")


class Run(NamedTuple):
    """Adjacent entries ``[start, end)`` of one term that the same sources have; ``last_pos`` is that of the last one.

    Indexes and the term are -1 for old messages. ``variants`` are the numbers of the sources, grouped by equal bytes:
    one group unless the bytes of a single entry differ, the greatest first; then ``majority`` is the number of the
    group that has at each byte the value of most sources that had the entry, -1 if none has. If ``is_suspect``, no
    source has the entry intact, and these sources have its header with a problem. ``confirmed`` counts entries that an
    index unit confirms. ``known_to`` are sources that do not have the last entry intact, but its index unit.
    """

    start: int
    end: int
    last_pos: int
    first_index: int
    last_index: int
    term: int
    variants: tuple[tuple[int, ...], ...]
    is_suspect: bool
    confirmed: int
    messages: int
    majority: int = -1
    known_to: tuple[int, ...] = ()
    is_unconfirmed: bool = False
    is_contradicted: bool = False

    @property
    def alike(self) -> list[tuple[int, ...]]:
        """The groups of several sources with equal bytes."""
        return [group for group in self.variants if len(group) > 1]

    @property
    def sources(self) -> tuple[int, ...]:
        return tuple(sorted(number for group in self.variants for number in group))

    def of(self, sources: Container[int]) -> Run:
        """The run with only some of its sources, of which there is at least one."""
        variants = [tuple(number for number in group if number in sources) for group in self.variants]
        kept = tuple(group for group in variants if group)
        majority = kept.index(variants[self.majority]) if self.majority >= 0 and variants[self.majority] else -1
        return self._replace(variants=kept, majority=majority)


@dataclass(frozen=True)
class SegmentPart:
    """The copies of one segment, which one task compares, and the numbers of sources with their DLedger index.

    ``cuts`` are the positions at which runs end, because epochs begin there.
    """

    base: int
    size: int
    source: str
    copies: tuple[SegmentCopy, ...]
    index_folders: tuple[tuple[int, str], ...]
    engine: str
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What the copies of a segment have: runs by position, and what is damaged in which copy.

    ``units`` are the index units of other terms than the entries of their source.
    """

    base: int
    source: str
    runs: tuple[Run, ...]
    damages: tuple[Damage, ...]
    units: tuple[TermRange, ...] = ()


def compare_copies(part: SegmentPart | IndexedPart) -> Evidence:
    """Read all copies of a segment once, and compare the bytes of entries that several of them have."""
    if isinstance(part, IndexedPart):
        return _compare_indexed(part)
    damages: list[Damage] = []
    with ExitStack() as opened:
        files = {copy.source: SegmentBytes(copy.segment, opened) for copy in part.copies}
        table, unequal = _read_all(part, files, damages)
        others: list[TermRange] = []
        for number, folder in part.index_folders if part.source == DLEDGER else ():
            index = DLedgerIndex(path_of(folder))
            table.add_units(number, index)
            others += other_units(number, index, table.intact_of(number))
        torn = _leave_out_torn(table, files)
        committed = {copy.source: copy.committed for copy in part.copies}
        variants = _different(table, files, unequal, committed, damages) | torn
    edges = {*committed.values(), *(each.first_index - 1 for each in others), *(each.last_index for each in others)}
    runs = sorted(_runs(table, variants, sorted(edges) if part.source == DLEDGER else None, part.cuts))
    return Evidence(part.base, part.source, tuple(runs), tuple(damages), tuple(others))


def _compare_indexed(part: IndexedPart) -> Evidence:
    entries, files, damages = read_indexed(part)
    first, *others = sorted(entries)
    table = _Table(first, entries[first])
    for number in others:
        table.add(number, entries[number])
    torn = _leave_out_torn(table, files)
    everywhere = {number: [(0, INT64_MAX)] for number in files}
    variants = _different(table, files, everywhere, dict.fromkeys(files, -1), damages) | torn
    base = int(table.columns["pos"][0]) if len(table) else 0
    return Evidence(base, part.source, tuple(sorted(_runs(table, variants, ()))), tuple(damages))


def _read_all(
    part: SegmentPart, files: dict[int, SegmentBytes], damages: list[Damage]
) -> tuple[_Table, dict[int, list[Range]]]:
    """Read all copies, the longest one first, and of the others only what differs from it.

    Returns, for each source, the ranges outside of which it has the bytes of the first.
    """
    # What a list says of the first one counts for all that have the same bytes.
    order = sorted(part.copies, key=lambda copy: (-copy.end, not copy.fillers, copy.source))
    first, *others = map(with_cached_witness, order)
    entries, found = read_copy(first, part.engine)
    damages += found
    table = _Table(first.source, entries)
    compared = [(files[copy.source], copy.end) for copy in others]
    unequal: dict[int, list[Range]] = {first.source: []}
    for copy, windows in zip(others, unequal_windows(files[first.source], compared, part.base), strict=True):
        ranges = unequal[copy.source] = ranges_to_read(copy, windows, first, entries)
        table.add_equal(copy.source, first.source, ranges, copy.end)
        read, own = read_copy(copy, part.engine, ranges)
        table.add(copy.source, read)
        shared = [each._replace(source=copy.source) for each in found if _is_shared(each.start, ranges, copy.end)]
        damages += sorted([*shared, *own], key=lambda damage: damage.start)
    return table, unequal


def _is_shared(pos: int, ranges: list[Range], end: int) -> bool:
    return pos < end and not any(low <= pos < high for low, high in ranges)


class _Table:
    """The distinct entries of all copies by position.

    `intact`, `suspect` and `known` have a bit for each source. `known`: its index unit has exactly this entry.
    `is_confirmed`: any unit has it.
    """

    def __init__(self, source: int, entries: CopyEntries) -> None:
        """The entries of the first source, by ascending position."""
        bit = np.int64(1) << source
        self.columns: dict[str, Longs] = {name: getattr(entries, name) for name in _KEYS}
        self.intact: Longs = np.where(entries.is_intact, bit, 0)
        self.suspect: Longs = np.where(entries.is_intact, 0, bit)
        self.known = np.zeros(len(entries), np.int64)
        self.is_confirmed, self.is_message = np.zeros(len(entries), np.bool_), entries.is_message.copy()

    def __len__(self) -> int:
        return len(self.intact)

    @property
    def holders(self) -> Longs:
        """The sources with an intact copy; else those with a suspect one."""
        found: Longs = np.where(self.intact != 0, self.intact, self.suspect)
        return found

    def add_equal(self, source: int, other: int, ranges: list[Range], end: int) -> None:
        """Add a source that has the entries of another one up to position `end`, outside of ranges."""
        is_equal = np.ones(len(self), np.bool_)
        pos = self.columns["pos"]
        for low, high in [*ranges, (end, INT64_MAX)]:
            is_equal[slice(*np.searchsorted(pos, [low, high]).tolist())] = False
        for column in (self.intact, self.suspect):
            column |= np.where(is_equal, column >> other & 1, 0) << source

    def add(self, source: int, entries: CopyEntries) -> None:
        """Add the entries of a source, by ascending position."""
        rows = self._rows_of(entries)
        is_new = rows < 0
        if is_new.any():
            self._insert(entries, is_new)
            rows = self._rows_of(entries)
        bit = np.int64(1) << source
        self.intact[rows[entries.is_intact]] |= bit
        self.suspect[rows[~entries.is_intact]] |= bit
        self.is_message[rows] |= entries.is_message

    def add_units(self, source: int, files: DLedgerIndex) -> None:
        """Find the entries that the source's index knows."""
        is_same, term, _ = units_agree(files, *(self.columns[name] for name in ("index", "pos", "size")))
        is_same &= term == self.columns["term"]
        self.is_confirmed |= is_same
        self.known |= np.where(is_same, np.int64(1) << source, 0)

    def intact_of(self, source: int) -> list[Longs]:
        """Index, position, size and term of the entries that a source has intact."""
        rows = np.flatnonzero(self.intact >> source & 1)
        return [self.columns[name][rows] for name in ("index", "pos", "size", "term")]

    def _rows_of(self, entries: CopyEntries) -> Longs:
        """The row of each entry, -1 without one."""
        pos = self.columns["pos"]
        found = np.full(len(entries), -1, np.int64)
        row = np.searchsorted(pos, entries.pos)
        while True:
            is_here = row < len(pos)
            is_here[is_here] = pos[row[is_here]] == entries.pos[is_here]
            if not is_here.any():
                return found
            is_same = is_here.copy()
            for name in _KEYS:
                is_same[is_same] = self.columns[name][row[is_same]] == getattr(entries, name)[is_same]
            found[is_same] = row[is_same]
            row = np.where(is_here, row + 1, len(pos))

    def _insert(self, entries: CopyEntries, is_new: Bools) -> None:
        rows = np.searchsorted(self.columns["pos"], entries.pos[is_new], "right")
        self.columns = {
            name: np.insert(column, rows, getattr(entries, name)[is_new]) for name, column in self.columns.items()
        }
        self.intact, self.suspect, self.known = (
            np.insert(column, rows, 0) for column in (self.intact, self.suspect, self.known)
        )
        self.is_confirmed, self.is_message = (
            np.insert(column, rows, False) for column in (self.is_confirmed, self.is_message)
        )


Bytes = SegmentBytes | IndexedBytes


class _Variants(NamedTuple):
    """The groups of sources with equal bytes, the number of the one with the `Run.majority`."""

    groups: tuple[tuple[int, ...], ...]
    majority: int = -1


def _leave_out_torn(table: _Table, files: Mapping[int, Bytes]) -> dict[int, _Variants]:
    """Leave out suspect copies that are torn. Where all are, their headers remain, and none counts for another one."""
    found = {}
    for row in np.flatnonzero((table.intact == 0) & (table.suspect != 0)).tolist():
        start, size = int(table.columns["pos"][row]), int(table.columns["size"][row])
        suspects = sources_of(int(table.suspect[row]))
        torn = [number for number in suspects if is_torn(start, files[number].read(start, start + size))]
        if len(torn) == len(suspects):
            found[row] = _Variants(tuple((number,) for number in torn))
        else:
            table.suspect[row] &= ~sum(np.int64(1) << number for number in torn)
    return found


def _different(
    table: _Table,
    files: Mapping[int, Bytes],
    unequal: dict[int, list[Range]],
    committed: dict[int, int],
    damages: list[Damage],
) -> dict[int, _Variants]:
    """The variants by the row of each entry whose bytes differ.

    Outside of the ranges in `unequal`, all sources have the same bytes.
    """
    holders = table.holders
    differing: set[int] = set()
    rows_of = {number: _rows_in(table, ranges) for number, ranges in unequal.items()}
    for first in files:
        for other in files:
            rows = distinct(np.concatenate((rows_of[first], rows_of[other]))) if other > first else rows_of[first][:0]
            rows = rows[(_lowest_bit(holders[rows]) == first) & (holders[rows] >> other & 1 == 1)]
            if len(rows):
                differing.update(_unequal_rows(table, rows, files[first], files[other]))
    # A source that shares a later entry, or committed this one, has it as well, even where its header is damaged.
    shared = np.flatnonzero(table.intact & (table.intact - 1) != 0)
    last_shared = {number: _last(shared[table.intact[shared] >> number & 1 == 1]) for number in files}
    found = {}
    for row in differing:
        start, size = int(table.columns["pos"][row]), int(table.columns["size"][row])
        having = int(table.intact[row] | table.suspect[row])
        index = int(table.columns["index"][row])
        copies = {
            number: files[number].read(start, start + size)
            for number in files
            if having >> number & 1 or row < last_shared[number] or 0 <= index <= committed[number]
        }
        groups: dict[bytes, list[int]] = {}
        for number in sources_of(int(holders[row])):
            groups.setdefault(copies[number], []).append(number)
        # By their bytes: the order of the sources decides nothing.
        ordered = [(tuple(numbers), data) for data, numbers in sorted(groups.items(), reverse=True)]
        if table.intact[row]:
            ordered = _without_damaged(ordered, table, row, damages)
        most = _majority_bytes([data for data in copies.values() if len(data) == size])
        majority = next((place for place, (_, data) in enumerate(ordered) if data == most), -1)
        found[row] = _Variants(tuple(numbers for numbers, _ in ordered), majority)
    return found


def _without_damaged(
    ordered: list[tuple[tuple[int, ...], bytes]], table: _Table, row: int, damages: list[Damage]
) -> list[tuple[tuple[int, ...], bytes]]:
    """The groups of copies without those whose bytes show damage that another one does not have."""
    start, size, index = (int(table.columns[name][row]) for name in ("pos", "size", "index"))
    copies = [data for _, data in ordered]
    for check in (_torn, _not_written, _without_uniq_key):
        texts = check(start, ENTRY_HEADER_SIZE if index >= 0 else 0, copies)
        if all(texts) or not any(texts):
            continue
        for (numbers, _), text in zip(ordered, texts, strict=True):
            for number in numbers if text else ():
                table.intact[row] &= ~(np.int64(1) << number)
                damages.append(Damage(number, start, start + size, index if index >= 0 else None, text))
        return [each for each, text in zip(ordered, texts, strict=True) if not text]
    return ordered


def _torn(start: int, _: int, copies: Sequence[bytes]) -> list[str]:
    """What is wrong with each copy that lost a write."""
    found = [is_torn(start, data) or any(lacks_a_write(start, data, other) for other in copies) for data in copies]
    return [_TORN if is_one else "" for is_one in found]


def _not_written(_: int, header: int, copies: Sequence[bytes]) -> list[str]:
    """What is wrong with each message that RocketMQ cannot have written."""
    return [
        "" if is_written_text(each.raw_topic) and are_written_properties(each.raw_properties) else _NO_PROPERTIES
        for each in _messages(header, copies)
    ]


def _without_uniq_key(_: int, header: int, copies: Sequence[bytes]) -> list[str]:
    """What is wrong with each message that lost its key: no damage makes one."""
    return ["" if PROPERTY_UNIQ_KEY in each.properties else _NO_UNIQ_KEY for each in _messages(header, copies)]


def _messages(header: int, copies: Sequence[bytes]) -> list[Message]:
    """The messages in the copies; none if one of the copies is no message, which cannot be compared with the others."""
    found = [message_in(data, header) for data in copies]
    messages = [each for each in found if each is not None]
    return messages if len(messages) == len(found) else []


def _last(rows: Longs) -> int:
    return int(rows[-1]) if len(rows) else -1


def _majority_bytes(copies: list[bytes]) -> bytes | None:
    """The bytes that more than half of the copies have, each on its own; None if there is no majority for one."""
    if len(copies) < 3:
        return None
    values = np.sort(np.array([np.frombuffer(data, np.uint8) for data in copies]), axis=0)
    middle = values[len(copies) // 2]
    has_majority = ((values == middle).sum(axis=0) * 2 > len(copies)).all()
    return middle.tobytes() if has_majority else None


def _rows_in(table: _Table, ranges: list[Range]) -> Longs:
    """The rows that begin in any of the ranges, which are in order."""
    pos = table.columns["pos"]
    found = [np.arange(*np.searchsorted(pos, [low, high]).tolist()) for low, high in ranges]
    return np.concatenate([np.empty(0, np.int64), *found])


def _lowest_bit(masks: Longs) -> Longs:
    """The number of the lowest bit of each mask; -1 for 0."""
    lowest = masks & -masks
    found: Longs = np.where(lowest != 0, np.log2(np.maximum(lowest, 1)).astype(np.int64), -1)
    return found


def sources_of(mask: int) -> tuple[int, ...]:
    """The numbers of the bits of a mask."""
    return tuple(number for number in range(MAX_SOURCES) if mask >> number & 1)


def _unequal_rows(table: _Table, rows: Longs, first: Bytes, other: Bytes) -> Iterator[int]:
    """The rows among `rows` whose bytes differ between two copies."""
    starts = table.columns["pos"][rows]
    if isinstance(first, IndexedBytes) and isinstance(other, IndexedBytes):
        pairs = zip(rows.tolist(), first.digests(starts), other.digests(starts), strict=True)
        yield from (row for row, one, two in pairs if one != two)
        return
    ends = starts + table.columns["size"][rows]
    cuts = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    for low, high in zip(np.append(0, cuts).tolist(), np.append(cuts, len(rows)).tolist(), strict=True):
        at, end = int(starts[low]), int(ends[high - 1])
        while at < end:
            stop = min(at + WINDOW, end)
            one, two = first.read(at, stop), other.read(at, stop)
            if one != two:
                positions = at + _unequal_bytes(one, two, stop - at)
                yield from rows[distinct(np.searchsorted(starts, positions, "right") - 1)].tolist()
            at = stop


def _unequal_bytes(one: bytes, two: bytes, size: int) -> Longs:
    """The offsets of the bytes that differ or that one of them lacks."""
    common = min(len(one), len(two))
    first, second = np.frombuffer(one, np.uint8, common), np.frombuffer(two, np.uint8, common)
    return np.concatenate([np.flatnonzero(first != second), np.arange(common, size)])


def _runs(
    table: _Table, variants: dict[int, _Variants], edges: Sequence[int] | None, ends: Sequence[int] = ()
) -> Iterator[Run]:
    """The runs of a table. Logs that diverged overlap, so each set of sources has its own runs.

    They end at the indexes in `edges`, up to which a log can be of the group or old; None without indexes. They end
    also at the positions `ends`.
    """
    holders, is_suspect = table.holders, table.intact == 0
    is_single = np.zeros(len(table), np.bool_)
    is_single[list(variants)] = True
    # Each of these needs a decision.
    is_single |= is_suspect
    is_twin = (table.columns["index"][1:] >= 0) & ~is_suspect[1:] & ~is_suspect[:-1]
    for name in ("pos", "index", "term"):
        is_twin &= np.diff(table.columns[name]) == 0
    is_single[1:] |= is_twin
    is_single[:-1] |= is_twin
    kinds = holders * 2 + is_suspect
    firsts = np.flatnonzero(np.diff(kinds, prepend=-1))
    for kind in distinct(kinds[firsts]).tolist():
        if kind < 2:
            continue  # no source
        rows = np.flatnonzero(kinds == kind)
        pos, size, index, term = (table.columns[name][rows] for name in _KEYS)
        is_cut = (pos[1:] != (pos + size)[:-1]) | (np.diff(term) != 0) | is_single[rows][1:] | is_single[rows][:-1]
        is_cut |= np.isin((pos + size)[:-1], ends)
        if edges is not None:
            is_cut |= (np.diff(index) != 1) | np.isin(index[:-1], edges)
        cuts = np.flatnonzero(is_cut) + 1
        for low, high in zip(np.append(0, cuts).tolist(), np.append(cuts, len(rows)).tolist(), strict=True):
            last = high - 1
            found = variants.get(int(rows[low])) or _Variants((sources_of(kind >> 1),))
            yield Run(
                int(pos[low]),
                int(pos[last] + size[last]),
                int(pos[last]),
                int(index[low]),
                int(index[last]),
                int(term[low]),
                found.groups,
                bool(kind & 1),
                int(table.is_confirmed[rows[low:high]].sum()),
                int(table.is_message[rows[low:high]].sum()),
                found.majority,
                sources_of(int(table.known[rows[last]] & ~table.intact[rows[last]])),
            )
