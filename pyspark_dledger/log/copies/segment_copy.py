"""Reads one replica's copy of a segment: which of its entries are intact, and what is wrong with the others.

An entry is intact if its header, its message's structure and all checksums agree, and if the index unit does not
contradict its header. Most bytes of an entry without a message have no checksum.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.arrow_functions import numbers_of, texts_of
from pyspark_dledger.format.codec import control_kind
from pyspark_dledger.format.facts import TIMES, ProblemCode
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAGIC_NOOP, MAGIC_NORMAL
from pyspark_dledger.format.scan.chains import RECENT_FRAMES
from pyspark_dledger.format.spec import DLEDGER, KnownEntries, ScanRequest, Segment, Witness
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.salvage_fillers import PROBLEM as FILLER
from pyspark_dledger.log.io.salvage_fillers import TOPIC as FILLER_TOPIC
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import READ_COLUMNS, read_error

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

TIMES_AND_POSITION = TIMES | {ProblemCode.MESSAGE_OFFSET}
"""Problems of messages that are whole; followers of 0.4.0 keep the position of their leader."""


def is_damage(codes: pa.Array, harmless: Iterable[ProblemCode] = TIMES) -> Bools:
    """Which rows have a problem that is not `harmless`, by the column problemCode."""
    if codes.null_count == len(codes):
        return np.zeros(len(codes), np.bool_)
    found = numbers_of(codes, 0)
    is_damaged: Bools = found != 0
    for code in harmless:
        is_damaged &= found != code
    return is_damaged


def units_agree(files: DLedgerIndex, index: Longs, pos: Longs, size: Longs) -> tuple[Bools, Longs, Longs]:
    """Whether each entry's index unit has its extent, and the term and the magic in the unit."""
    is_same, term, magic = (
        np.zeros(len(index), np.bool_),
        np.zeros(len(index), np.int64),
        np.zeros(len(index), np.int64),
    )
    cuts = (np.flatnonzero(np.diff(index) != 1) + 1).tolist()
    for start, stop in zip([0, *cuts], [*cuts, len(index)], strict=True):
        if start < stop:
            units = files.read(int(index[start]), stop - start)
            is_same[start:stop] = (units["index"] == index[start:stop]) & (units["pos"] == pos[start:stop])
            is_same[start:stop] &= units["size"] == size[start:stop]
            term[start:stop], magic[start:stop] = units["term"], units["magic"]
    return is_same, term, magic


class TermRange(NamedTuple):
    """Indexes for which a source has entries, or index units, of a term.

    If ``is_rewritten``, the units were written over those of the source's entries, of which later ones remain.
    """

    source: int
    first_index: int
    last_index: int
    term: int
    is_rewritten: bool = False


def other_units(source: int, files: DLedgerIndex, entries: Sequence[Longs]) -> Iterator[TermRange]:
    """The units of a source of other terms than its intact `entries`, given as index, position, size and term.

    One of the two is of another time. One unit alone with the extent of its entry can be damaged, and does not count.
    """
    index, pos, size, term = entries
    cuts = (np.flatnonzero(np.diff(index) != 1) + 1).tolist()
    for start, stop in zip([0, *cuts], [*cuts, len(index)], strict=True) if len(index) else ():
        units = files.read(int(index[start]), stop - start)
        own = units["term"].astype(np.int64)
        is_known = (units["index"] == index[start:stop]) & (units["size"] > 0)
        is_other = is_known & (own != term[start:stop])
        has_moved = (units["pos"] != pos[start:stop]) | (units["size"] != size[start:stop])
        edges = (np.flatnonzero((np.diff(own) != 0) | (np.diff(is_other) != 0)) + 1).tolist()
        for low, high in zip([0, *edges], [*edges, stop - start], strict=True):
            if is_other[low] and (high - low > 1 or has_moved[low]):
                # A log has no entry of an earlier term before one of a later term that does not follow it.
                is_rewritten = high < stop - start and bool(
                    is_known[high]
                    and not is_other[high]
                    and not has_moved[high]
                    and own[high] > own[low]
                    and units["pos"][high - 1] + units["size"][high - 1] != units["pos"][high]
                )
                first, last = int(index[start + low]), int(index[start + high - 1])
                yield TermRange(source, first, last, int(own[low]), is_rewritten)


Range = tuple[int, int]
"""The positions ``[start, end)``."""

_COLUMNS = (
    *("kind", "pos", "size", "index", "term", "channel", "chainCrc", "topic", "problem", "problemCode"),
    *READ_COLUMNS,
)
SEALED_COLUMNS = ("magic", "size", "index", "term", "pos", "channel", "chainCrc")
"""The fields of a header that tell a control entry, in their order."""
_NUMBERS = ("pos", "size", "index", "term")
_SEALED = tuple(name for name in SEALED_COLUMNS if name != "magic")
_BATCH_ROWS = 2**17


@dataclass(frozen=True)
class SegmentCopy:
    """The file of the source with number ``source``; its log ends at position ``end`` of the file or with the file.

    ``index`` is the folder of the DLedger index, if there is one. ``fillers`` are the positions of the fillers that a
    salvage listed: they are not intact. ``committed`` is the source's committed index, -1 if not known.
    """

    source: int
    segment: Segment
    end: int
    index: str | None = None
    fillers: frozenset[int] = frozenset()
    committed: int = -1


class Damage(NamedTuple):
    """Positions ``[start, end)`` that a source does not have intact, and why; the index if an entry is there.

    ``is_filler``: a salvage wrote it for what no source had. ``error``: the file cannot be read there.
    """

    source: int
    start: int
    end: int
    index: int | None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    problem: str
    is_filler: bool = False
    error: UnreadableError | None = None


class Damages:
    """What a replica does not have intact, by position."""

    def __init__(self, found: Iterable[Damage]) -> None:
        self._damages = sorted(found, key=lambda each: each.start)

    def __iter__(self) -> Iterator[Damage]:
        return iter(self._damages)

    def within(self, start: int, end: int) -> Iterator[Damage]:
        """Those that overlap ``[start, end)``, in order."""
        place = max(bisect_left(self._damages, start, key=lambda each: each.start) - 1, 0)
        for damage in islice(self._damages, place, None):
            if damage.start >= end:
                return
            if damage.end > start:
                yield damage

    def first_within(self, start: int, end: int) -> Damage | None:
        """The first one that overlaps ``[start, end)``."""
        return next(self.within(start, end), None)


@dataclass(frozen=True)
class CopyEntries:
    """The entries of a copy by position; index and term are -1 for old messages.

    Entries that are not intact have a problem, and their header may be wrong.
    """

    pos: Longs
    size: Longs
    index: Longs
    term: Longs
    is_intact: Bools
    is_message: Bools

    def __len__(self) -> int:
        return len(self.pos)


def read_copy(
    copy: SegmentCopy, engine_name: str, ranges: Sequence[Range] | None = None
) -> tuple[CopyEntries, list[Damage]]:
    """The entries of a copy and its damage, in all of it or in `ranges`, which begin and end where entries begin.

    The witness decides in a range up to the copy's end; in others continuity is enough. A file that cannot be read is
    damage.
    """
    segment = copy.segment
    index = DLedgerIndex(path_of(copy.index)) if copy.index is not None and segment.source == DLEDGER else None
    ranges = [(segment.base, copy.end)] if ranges is None else ranges
    damages: list[Damage] = []
    batches = _with_many_rows(_batches(copy, engine_name, ranges, damages))
    entries = joined([_entries(copy, batch, index, damages) for batch in batches])
    return entries, sorted(damages, key=lambda damage: damage.start)


def _batches(
    copy: SegmentCopy, engine_name: str, ranges: Sequence[Range], damages: list[Damage]
) -> Iterator[pa.RecordBatch]:
    engine = engine_of(engine_name, copy.segment)
    for start, end in ranges:
        # A witness would read the headers of the whole segment.
        segment = copy.segment if end == copy.end else replace(copy.segment, witness=None)
        reached = start
        try:
            for batch, _ in engine.scan(ScanRequest(segment, start, end, _COLUMNS, max_batch_rows=_BATCH_ROWS)):
                if (failed := read_error(segment, batch)) is not None:
                    last, batch = batch.slice(len(batch) - 1), batch.slice(0, len(batch) - 1)
                    start, text = int(last["pos"][0].as_py()), last["problem"][0].as_py()
                    damages.append(Damage(copy.source, start, end, None, text, error=failed))
                if len(batch):
                    reached = int(batch.column("pos")[-1].as_py() + batch.column("size")[-1].as_py())
                    yield batch
        except (OSError, StoreError) as error:
            damages.append(Damage(copy.source, reached, end, None, str(error)))


def _with_many_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows; small batches are joined."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += len(batch)
        if rows >= _BATCH_ROWS // 2:
            yield _one_batch(kept)
            kept, rows = [], 0
    if kept:
        yield _one_batch(kept)


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def joined(parts: Sequence[CopyEntries]) -> CopyEntries:
    """The entries of all parts, which are in order."""
    longs, bools = np.empty(0, np.int64), np.empty(0, np.bool_)
    parts = [CopyEntries(longs, longs, longs, longs, bools, bools), *parts]
    fields = CopyEntries.__dataclass_fields__
    return CopyEntries(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


def with_cached_witness(copy: SegmentCopy) -> SegmentCopy:
    """The copy with a witness that reads once for all calls of engines."""
    witness = copy.segment.witness
    if witness is None or isinstance(witness, _CachedWitness):
        return copy
    return replace(copy, segment=replace(copy.segment, witness=_CachedWitness(witness)))


class _CachedWitness:
    """A `spec.Witness` that keeps what another one found for its segment."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness
        self._known: KnownEntries | None = None

    def known_entries(self, segment: Segment) -> KnownEntries:
        if self._known is None:
            self._known = self._witness.known_entries(segment)
        return self._known


def _entries(
    copy: SegmentCopy, batch: pa.RecordBatch, index: DLedgerIndex | None, damages: list[Damage]
) -> CopyEntries:
    numbers = {name: numbers_of(batch[name], -1) for name in _NUMBERS}
    problem = batch.column("problem")
    kinds, kind = texts_of(batch.column("kind"))
    is_frame, is_message, is_noop = (
        np.array([is_kind(each) for each in kinds], np.bool_)[kind]
        for is_kind in (_is_frame, "message".__eq__, "noop".__eq__)
    )
    is_intact = is_frame & ~is_damage(batch["problemCode"], TIMES if copy.segment.check_pos else TIMES_AND_POSITION)
    texts: dict[int, str] = {}
    sealed = {name: numbers_of(batch[name], 0) for name in _SEALED}
    is_control = is_frame & are_controls({**sealed, "magic": np.full(len(batch), MAGIC_NORMAL)})
    for name in ("channel", "chainCrc"):
        # No version of Java sets these fields.
        is_wrong = (sealed[name] != 0) & ~is_control
        for row in np.flatnonzero(is_intact & is_wrong).tolist():
            texts[row] = f"expected {name} 0, found {sealed[name][row]}"
        is_intact &= ~is_wrong
    topics, topic = texts_of(batch.column("topic"))
    # One that a leader replicated is in no list of its replica.
    is_filler = is_intact & np.array([*(each == FILLER_TOPIC for each in topics), False], np.bool_)[topic]
    if copy.fillers:
        is_filler |= is_intact & np.isin(numbers["pos"], list(copy.fillers))
    if is_filler.any():
        texts.update(dict.fromkeys(np.flatnonzero(is_filler).tolist(), FILLER))
        is_intact &= ~is_filler
        is_frame &= ~is_filler
    if index is not None:
        for row, text in _contradicted_by_units(index, numbers, is_frame, is_noop).items():
            if is_intact[row]:
                texts[row] = text
                is_intact[row] = False
    for row in np.flatnonzero(~is_intact).tolist():
        start, length, own_index = (int(numbers[name][row]) for name in ("pos", "size", "index"))
        text = texts.get(row) or problem[row].as_py() or ""
        known = own_index if own_index >= 0 else None
        damages.append(Damage(copy.source, start, start + length, known, text, bool(is_filler[row])))
    rows = np.flatnonzero(is_frame)
    pos, size, number, term = (numbers[name][rows] for name in _NUMBERS)
    return CopyEntries(pos, size, number, term, is_intact[rows], is_message[rows])


def _is_frame(kind: str | None) -> bool:
    return kind != "corrupt"


def _contradicted_by_units(
    files: DLedgerIndex, numbers: dict[str, Longs], is_frame: Bools, is_noop: Bools
) -> dict[int, str]:
    """What is wrong with the rows whose term or magic is another in an index unit of the same extent.

    A unit that names another extent is damaged itself: the extents of adjacent entries prove each other. So is one
    whose term does not fit the rows around it, and of a first or last row one with another term than the next row.
    """
    rows = np.flatnonzero(is_frame)
    is_same, term, magic = units_agree(files, *(numbers[name][rows] for name in ("index", "pos", "size")))
    own = numbers["term"][rows]
    # A NOOP has no body; leaders of 0.4.0 give its unit the magic of other entries.
    is_other_kind = is_same & is_noop[rows] & (magic == MAGIC_NORMAL) & (numbers["size"][rows] > ENTRY_HEADER_SIZE)
    contradicted = {
        int(rows[row]): f"expected magic {MAGIC_NORMAL} as in the index unit, found {MAGIC_NOOP}"
        for row in np.flatnonzero(is_other_kind).tolist()
    }
    for row in np.flatnonzero(is_same & (term != own)).tolist():
        around = [own[place] for place in (row - 1, row + 1) if 0 <= place < len(own)]
        if around and around[0] <= term[row] <= around[-1]:
            contradicted[int(rows[row])] = f"expected term {term[row]} as in the index unit, found {own[row]}"
    return contradicted


def are_controls(columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Which rows are control entries; `columns` has `SEALED_COLUMNS`."""
    found = np.zeros(len(columns["channel"]), np.bool_)
    for row in np.flatnonzero(columns["channel"] != 0).tolist():
        found[row] = control_kind([int(columns[name][row]) for name in SEALED_COLUMNS]) != 0
    return found


_MAX_RANGES = 256


def ranges_to_read(
    copy: SegmentCopy, windows: Sequence[Range], other: SegmentCopy, entries: CopyEntries
) -> list[Range]:
    """The ranges of a copy outside of which its entries are those of the `other` copy, which has the `entries`.

    `windows` are the ranges up to the end of the shorter copy in which bytes differ.
    """
    base = copy.segment.base
    ends = sorted((copy.end, other.end))
    if ends[0] < ends[1]:
        windows = [*windows, (ends[0], ends[1])]
    ranges = _widened(windows, entries, base, copy.end)
    is_mostly_equal = 2 * sum(high - low for low, high in ranges) <= copy.end - base
    return ranges if is_mostly_equal and len(ranges) <= _MAX_RANGES else [(base, copy.end)]


def _widened(windows: Sequence[Range], entries: CopyEntries, base: int, end: int) -> list[Range]:
    """The windows, widened to intact entries of the other copy before and after them that are the same in both.

    They begin some entries earlier, as an engine needs them to judge damage.
    """
    starts = entries.pos[entries.is_intact]
    stops = starts + entries.size[entries.is_intact]
    ranges: list[Range] = []
    for low, high in windows:
        before = int(np.searchsorted(stops, low, "right")) - 1
        after = int(np.searchsorted(starts, high))
        # With fewer entries before damage, an engine reads the log from its start.
        start = int(starts[max(before - RECENT_FRAMES, 0)]) if before >= 0 else base
        stop = int(starts[after]) if after < len(starts) else end
        if ranges and start < ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(stop, ranges[-1][1])
        elif start < end:
            ranges.append((start, stop))
    return [(low, min(high, end)) for low, high in ranges]
