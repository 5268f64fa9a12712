"""Compares the entries of replicas: which replicas have an index, with what term, and which have the same bytes.

Memory is bounded. Replicas mostly have identical bytes, so files are compared first, byte by byte. Only where bytes
differ, entries are compared, by all their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.diff.equal_bytes import FileRange, clipped, split_by_equality
from pyspark_dledger.log.plan import Partition, read_partition

# All fields of an entry, and its position. `size` follows from the body.
_HEADER = ("term", "magic", "channel", "chainCrc", "bodyCrc")
_POSITION_COLUMNS = ("index", "pos", "size", "term")
ENTRY_COLUMNS = ("index", "pos", "size", *_HEADER, "entryBody")

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ReplicaShare:
    """The read of one replica: `partition` has its entries; ``[begin, end]`` are the indexes of its log.

    ``committed`` is its committed index, -1 if not known. ``check_pos`` as in `Segment`.
    """

    partition: Partition
    begin: int
    end: int
    committed: int
    check_pos: bool


class IndexRange(NamedTuple):
    """Consecutive indexes with the same result of the comparison. Tuples have a value for each replica.

    ``terms`` is None if a replica does not have these entries. ``same_as`` is the number of the first replica with
    the same bytes, possibly its own. ``pos`` is the position of the first entry on the first replica that has it;
    ``sizes`` are bytes. ``contradicts``: two replicas have different terms, and both have them committed.
    """

    first_index: int
    last_index: int
    pos: int | None
    terms: tuple[int | None, ...]
    same_as: tuple[int | None, ...]
    sizes: tuple[int, ...]
    contradicts: bool

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1

    @property
    def holders(self) -> list[int]:
        """The replicas that have these entries intact."""
        return [number for number, term in enumerate(self.terms) if term is not None]


@dataclass(frozen=True)
class _EntrySlice:
    """Entries of one replica with consecutive indexes.

    The column ``position`` has their positions; there is a column ``pos`` only if the replica checks it.
    """

    first: int
    columns: dict[str, _Array]
    bodies: pa.Array

    def __len__(self) -> int:
        return len(self.bodies)

    def part(self, start: int, count: int, first: int) -> _EntrySlice:
        """`count` entries from row `start`, which has the index `first`."""
        columns = {name: column[start : start + count] for name, column in self.columns.items()}
        return _EntrySlice(first, columns, self.bodies.slice(start, count))


def compare_entries(shares: Sequence[ReplicaShare], first: int, last: int) -> Iterator[IndexRange]:
    """The ranges that together cover the indexes ``[first, last]`` once.

    Where all replicas have the same bytes, only the entries of the first one are read.
    """
    file_ranges: list[FileRange] = []
    if all(share.check_pos and share.begin <= first and last <= share.end for share in shares):
        file_ranges = split_by_equality([share.partition for share in shares], first, last)
    if not file_ranges:
        yield from _compare_each(shares, first, last)
    for part in file_ranges:
        is_last = part is file_ranges[-1] and not part.is_equal
        clipped_shares = [replace(share, partition=clipped(share.partition, part, is_last)) for share in shares]
        if part.is_equal:
            for index_range in _compare_each([_without_bodies(clipped_shares[0])], part.first, part.last):
                yield _for_all(index_range, len(shares))
        else:
            yield from _compare_each(clipped_shares, part.first, part.last)


def _without_bodies(share: ReplicaShare) -> ReplicaShare:
    requests = (part for part in share.partition.ranges if isinstance(part, ScanRequest))
    ranges = tuple(replace(request, columns=_POSITION_COLUMNS) for request in requests)
    return replace(share, partition=replace(share.partition, ranges=ranges))


def _for_all(one: IndexRange, count: int) -> IndexRange:
    """A range of one replica, as that of `count` replicas with the same entries."""
    return one._replace(terms=one.terms * count, same_as=one.same_as * count, sizes=one.sizes * count)


def _compare_each(shares: Sequence[ReplicaShare], first: int, last: int) -> Iterator[IndexRange]:
    """The ranges of ``[first, last]``, from a comparison of each entry."""
    cursors = [_Cursor(share) for share in shares]
    # At the begin and the end of a replica, the reason for a missing entry changes, and so a range ends there.
    edges = sorted({last + 1, *(edge for share in shares for edge in (share.begin, share.end + 1))})
    at = first
    while at <= last:
        heads = [cursor.head() for cursor in cursors]
        count = next(edge for edge in edges if edge > at) - at
        for head in heads:
            if head is not None:
                count = min(count, len(head) if head.first == at else head.first - at)
        assert count > 0
        slices = [head.part(0, count, at) if head is not None and head.first == at else None for head in heads]
        yield from _index_ranges(slices, shares, at, count)
        for cursor, entries in zip(cursors, slices, strict=True):
            if entries is not None:
                cursor.skip(count)
        at += count


class _Cursor:
    """Reads the entries of one replica in slices."""

    def __init__(self, share: ReplicaShare) -> None:
        self._slices = _read_slices(share)
        self._slice: _EntrySlice | None = None
        self._is_read = False

    def head(self) -> _EntrySlice | None:
        """The next entries; None at the end."""
        if not self._is_read:
            self._slice, self._is_read = next(self._slices, None), True
        return self._slice

    def skip(self, count: int) -> None:
        assert self._slice is not None
        if count == len(self._slice):
            self._slice, self._is_read = None, False
        else:
            self._slice = self._slice.part(count, len(self._slice) - count, self._slice.first + count)


def _read_slices(share: ReplicaShare) -> Iterator[_EntrySlice]:
    """The entries of a replica. One whose index does not match its position has a damaged header and is left out."""
    last: tuple[int, int] | None = None
    for batch in read_partition(share.partition):
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names if name != "entryBody"}
        index = columns["index"]
        ends = columns["pos"] + columns["size"]
        kept = _fitting(index, columns["pos"], ends, last)
        if not len(kept):
            continue
        last = int(index[kept[-1]]), int(ends[kept[-1]])
        columns["position"] = columns["pos"] if share.check_pos else columns.pop("pos")
        # Without bodies, only the length of this column is used.
        whole = _EntrySlice(0, columns, batch.column("entryBody" if "entryBody" in batch.schema.names else "index"))
        # Adjacent rows with consecutive indexes are one slice.
        cuts = (np.flatnonzero((np.diff(index[kept]) != 1) | (np.diff(kept) != 1)) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, len(kept)], strict=True):
            row = int(kept[start])
            yield whole.part(row, end - start, int(index[row]))


def _fitting(index: _Array, pos: _Array, ends: _Array, last: tuple[int, int] | None) -> _Array:
    """The numbers of the rows of a batch that continue the log after the entry `last` (its index and end)."""
    rows = np.arange(len(index))
    if not len(index):
        return rows
    start = int(index[0])
    if (last is None or _has_room(*last, start, int(pos[0]))) and np.array_equal(index, rows + start):
        return rows
    start = 0
    kept: list[int] = []
    if last is None:
        # Trust the first entry that is followed by the next index, and those before it that match it.
        start = int(next(iter(np.flatnonzero(np.diff(index) == 1)), 0))
        kept = _fitting_before(index, pos, ends, start)
        last = int(index[start]) - 1, int(pos[start])
    values = zip(index[start:].tolist(), pos[start:].tolist(), ends[start:].tolist(), strict=True)
    for row, (here, position, end) in enumerate(values, start):
        if _has_room(last[0], last[1], here, position):
            kept.append(row)
            last = here, end
    return np.array(kept, rows.dtype)


def _fitting_before(index: _Array, pos: _Array, ends: _Array, start: int) -> list[int]:
    """The numbers of the rows before `start` that match the row `start`."""
    kept: list[int] = []
    following = start
    for row in range(start - 1, -1, -1):
        if _has_room(int(index[row]), int(ends[row]), int(index[following]), int(pos[following])):
            kept.insert(0, row)
            following = row
    return kept


def _has_room(last: int, end: int, index: int, pos: int) -> bool:
    """Whether an entry `index` at `pos` can follow the entry `last` with end `end`; each missing one needs 48 bytes."""
    return last < index and index - last - 1 <= (pos - end) // ENTRY_HEADER_SIZE


def _index_ranges(
    slices: list[_EntrySlice | None], shares: Sequence[ReplicaShare], first: int, count: int
) -> Iterator[IndexRange]:
    """The ranges of `count` indexes; each replica has all of them or none."""
    present = [(number, entries) for number, entries in enumerate(slices) if entries is not None]
    nothing = (None,) * len(slices)
    if not present:
        yield IndexRange(first, first + count - 1, None, nothing, nothing, (0,) * len(slices), False)
        return
    equal_to = _equal_to(present, count)
    terms = np.stack([entries.columns["term"] for _, entries in present])
    contradicts = _contradictions(present, terms, shares, first, count)
    changes = (np.diff(terms) != 0).any(axis=0) | (np.diff(equal_to) != 0).any(axis=0) | np.diff(contradicts)
    cuts = (np.flatnonzero(changes) + 1).tolist()
    rows = {number: row for row, (number, _) in enumerate(present)}
    for start, end in zip([0, *cuts], [*cuts, count], strict=True):
        yield IndexRange(
            first + start,
            first + end - 1,
            int(present[0][1].columns["position"][start]),
            tuple(int(terms[rows[n], start]) if n in rows else None for n in range(len(slices))),
            tuple(present[equal_to[rows[n], start]][0] if n in rows else None for n in range(len(slices))),
            tuple(0 if entries is None else int(entries.columns["size"][start:end].sum()) for entries in slices),
            bool(contradicts[start]),
        )


def _equal_to(present: list[tuple[int, _EntrySlice]], count: int) -> _Array:
    """For each replica in `present` and each entry, the number in `present` of the first with the same entry."""
    equal_to = np.repeat(np.arange(len(present))[:, None], count, axis=1)
    for number in range(1, len(present)):
        for before in range(number):
            unknown = (equal_to[number] == number) & (equal_to[before] == before)
            if unknown.any():
                equal_to[number][unknown & _same(present[before][1], present[number][1])] = before
    return equal_to


def _same(first: _EntrySlice, second: _EntrySlice) -> _Array:
    """Which entries of two slices have the same bytes; `pos` is compared if both replicas check it."""
    same: _Array = pc.equal(first.bodies, second.bodies).to_numpy(zero_copy_only=False)
    for name in (*_HEADER, "pos"):
        if name in first.columns and name in second.columns:
            same = same & (first.columns[name] == second.columns[name])
    return same


def _contradictions(
    present: list[tuple[int, _EntrySlice]], terms: _Array, shares: Sequence[ReplicaShare], first: int, count: int
) -> _Array:
    """Which entries have different terms on two replicas that both have them committed."""
    found = np.zeros(count, bool)
    index = np.arange(first, first + count)
    for number in range(1, len(present)):
        for before in range(number):
            committed = min(shares[present[number][0]].committed, shares[present[before][0]].committed)
            found |= (terms[number] != terms[before]) & (index <= committed)
    return found
