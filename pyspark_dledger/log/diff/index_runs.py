"""The entries of several replicas side by side: who holds which index, with what term, and whose bytes are the same.

In bounded memory. Replicas hold identical bytes mostly, so bytes are compared first, without looking at what they mean;
only around those that differ entries are compared with each other, themselves, not digests of them.
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
from pyspark_dledger.log.diff.same_bytes import SameBytes, clipped, stretches
from pyspark_dledger.log.plan import Partition, read_partition

# Everything that an entry holds, and where it stands. `size` follows from the body.
_HEADER = ("term", "magic", "channel", "chainCrc", "bodyCrc")
_PLACE_COLUMNS = ("index", "pos", "size", "term")
ENTRY_COLUMNS = ("index", "pos", "size", *_HEADER, "entryBody")

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ReplicaShare:
    """What is read of one replica: entries of ``[begin, end]``, the indexes that it should hold, in `partition`.

    ``committed`` is the highest index that it knows to be committed, -1 if none. ``check_pos`` as in `Segment`.
    """

    partition: Partition
    begin: int
    end: int
    committed: int
    check_pos: bool


class IndexRun(NamedTuple):
    """Consecutive indexes that are alike in everything but their bytes. Tuples have a value for each replica.

    ``terms`` is None where a replica does not hold these entries. ``same_as`` is the first replica with the same
    bytes, itself if there is none before it. ``pos`` is the first entry's place on the first replica that holds it;
    ``sizes`` are bytes. ``contradicts``: two replicas have other terms although both say that this is committed.
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
        """The replicas that hold these entries intact."""
        return [number for number, term in enumerate(self.terms) if term is not None]


@dataclass(frozen=True)
class _Piece:
    """Entries of one replica with consecutive indexes. ``place`` is where they stand, ``pos`` the same if it counts."""

    first: int
    columns: dict[str, _Array]
    bodies: pa.Array

    def __len__(self) -> int:
        return len(self.bodies)

    def part(self, start: int, count: int, first: int) -> _Piece:
        """`count` entries from the place `start` on, whose index is `first`."""
        columns = {name: column[start : start + count] for name, column in self.columns.items()}
        return _Piece(first, columns, self.bodies.slice(start, count))


def compare_entries(shares: Sequence[ReplicaShare], first: int, last: int) -> Iterator[IndexRun]:
    """The runs of the indexes ``[first, last]``, which together cover each of them once.

    Where all replicas hold the same bytes, the entries of the first are read for all of them.
    """
    found: list[SameBytes] = []
    if all(share.check_pos and share.begin <= first and last <= share.end for share in shares):
        found = stretches([share.partition for share in shares], first, last)
    if not found:
        yield from _entry_runs(shares, first, last)
    for stretch in found:
        is_last = stretch is found[-1] and not stretch.is_equal
        parts = [replace(share, partition=clipped(share.partition, stretch, is_last)) for share in shares]
        if stretch.is_equal:
            for run in _entry_runs([_without_bodies(parts[0])], stretch.first, stretch.last):
                yield _for_all(run, len(shares))
        else:
            yield from _entry_runs(parts, stretch.first, stretch.last)


def _without_bodies(share: ReplicaShare) -> ReplicaShare:
    requests = (part for part in share.partition.ranges if isinstance(part, ScanRequest))
    ranges = tuple(replace(request, columns=_PLACE_COLUMNS) for request in requests)
    return replace(share, partition=replace(share.partition, ranges=ranges))


def _for_all(run: IndexRun, count: int) -> IndexRun:
    """A run of one replica as that of `count` replicas with the same entries."""
    return run._replace(terms=run.terms * count, same_as=run.same_as * count, sizes=run.sizes * count)


def _entry_runs(shares: Sequence[ReplicaShare], first: int, last: int) -> Iterator[IndexRun]:
    """The runs of ``[first, last]``, from a comparison entry by entry."""
    cursors = [_Cursor(share) for share in shares]
    # Why a replica lacks an entry changes where it begins and ends, so no run goes over that.
    edges = sorted({last + 1, *(edge for share in shares for edge in (share.begin, share.end + 1))})
    at = first
    while at <= last:
        heads = [cursor.head() for cursor in cursors]
        count = next(edge for edge in edges if edge > at) - at
        for head in heads:
            if head is not None:
                count = min(count, len(head) if head.first == at else head.first - at)
        assert count > 0
        pieces = [head.part(0, count, at) if head is not None and head.first == at else None for head in heads]
        yield from _runs(pieces, shares, at, count)
        for cursor, piece in zip(cursors, pieces, strict=True):
            if piece is not None:
                cursor.skip(count)
        at += count


class _Cursor:
    """Reads one replica, piece by piece."""

    def __init__(self, share: ReplicaShare) -> None:
        self._pieces = _pieces(share)
        self._piece: _Piece | None = None
        self._is_read = False

    def head(self) -> _Piece | None:
        """The entries that come next; None at the end."""
        if not self._is_read:
            self._piece, self._is_read = next(self._pieces, None), True
        return self._piece

    def skip(self, count: int) -> None:
        assert self._piece is not None
        if count == len(self._piece):
            self._piece, self._is_read = None, False
        else:
            self._piece = self._piece.part(count, len(self._piece) - count, self._piece.first + count)


def _pieces(share: ReplicaShare) -> Iterator[_Piece]:
    """The entries of a replica. One whose index does not fit where it stands is left out: its header is damaged."""
    last: tuple[int, int] | None = None
    for batch in read_partition(share.partition):
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names if name != "entryBody"}
        index = columns["index"]
        ends = columns["pos"] + columns["size"]
        kept = _fitting(index, columns["pos"], ends, last)
        if not len(kept):
            continue
        last = int(index[kept[-1]]), int(ends[kept[-1]])
        columns["place"] = columns["pos"] if share.check_pos else columns.pop("pos")
        # Without bodies only its length is asked for.
        whole = _Piece(0, columns, batch.column("entryBody" if "entryBody" in batch.schema.names else "index"))
        # Neighbours in the batch with neighbouring indexes are one piece.
        cuts = (np.flatnonzero((np.diff(index[kept]) != 1) | (np.diff(kept) != 1)) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, len(kept)], strict=True):
            row = int(kept[start])
            yield whole.part(row, end - start, int(index[row]))


def _fitting(index: _Array, pos: _Array, ends: _Array, last: tuple[int, int] | None) -> _Array:
    """Which rows of a batch continue the log behind the entry `last` (its index and end), as row numbers."""
    rows = np.arange(len(index))
    if not len(index):
        return rows
    start = int(index[0])
    if (last is None or _has_room(*last, start, int(pos[0]))) and np.array_equal(index, rows + start):
        return rows
    start = 0
    kept: list[int] = []
    if last is None:
        # The first of two that follow each other is believed, if there are such two, and what fits before it.
        start = int(next(iter(np.flatnonzero(np.diff(index) == 1)), 0))
        kept = _fitting_before(index, pos, ends, start)
        last = int(index[start]) - 1, int(pos[start])
    values = zip(index[start:].tolist(), pos[start:].tolist(), ends[start:].tolist(), strict=True)
    for row, (here, place, end) in enumerate(values, start):
        if _has_room(last[0], last[1], here, place):
            kept.append(row)
            last = here, end
    return np.array(kept, rows.dtype)


def _fitting_before(index: _Array, pos: _Array, ends: _Array, start: int) -> list[int]:
    """Which rows before `start` the one there continues."""
    kept: list[int] = []
    following = start
    for row in range(start - 1, -1, -1):
        if _has_room(int(index[row]), int(ends[row]), int(index[following]), int(pos[following])):
            kept.insert(0, row)
            following = row
    return kept


def _has_room(last: int, end: int, index: int, pos: int) -> bool:
    """Whether an entry `index` at `pos` may follow `last`, which ends at `end`: what is missing had 48 bytes each."""
    return last < index and index - last - 1 <= (pos - end) // ENTRY_HEADER_SIZE


def _runs(pieces: list[_Piece | None], shares: Sequence[ReplicaShare], first: int, count: int) -> Iterator[IndexRun]:
    """The runs of `count` indexes that each replica either holds all or none of."""
    held = [(number, piece) for number, piece in enumerate(pieces) if piece is not None]
    nothing = (None,) * len(pieces)
    if not held:
        yield IndexRun(first, first + count - 1, None, nothing, nothing, (0,) * len(pieces), False)
        return
    alike = _alike(held, count)
    terms = np.stack([piece.columns["term"] for _, piece in held])
    contradicts = _contradictions(held, terms, shares, first, count)
    changes = (np.diff(terms) != 0).any(axis=0) | (np.diff(alike) != 0).any(axis=0) | np.diff(contradicts)
    cuts = (np.flatnonzero(changes) + 1).tolist()
    places = {number: place for place, (number, _) in enumerate(held)}
    for start, end in zip([0, *cuts], [*cuts, count], strict=True):
        yield IndexRun(
            first + start,
            first + end - 1,
            int(held[0][1].columns["place"][start]),
            tuple(int(terms[places[n], start]) if n in places else None for n in range(len(pieces))),
            tuple(held[alike[places[n], start]][0] if n in places else None for n in range(len(pieces))),
            tuple(0 if piece is None else int(piece.columns["size"][start:end].sum()) for piece in pieces),
            bool(contradicts[start]),
        )


def _alike(held: list[tuple[int, _Piece]], count: int) -> _Array:
    """For each holder and entry, the first holder (by its place in `held`) whose entry is the same."""
    alike = np.repeat(np.arange(len(held))[:, None], count, axis=1)
    for place in range(1, len(held)):
        for before in range(place):
            open_ = (alike[place] == place) & (alike[before] == before)
            if open_.any():
                alike[place][open_ & _same(held[before][1], held[place][1])] = before
    return alike


def _same(first: _Piece, second: _Piece) -> _Array:
    """Which entries of two pieces are the same, byte for byte; `pos` counts where both replicas check it."""
    same: _Array = pc.equal(first.bodies, second.bodies).to_numpy(zero_copy_only=False)
    for name in (*_HEADER, "pos"):
        if name in first.columns and name in second.columns:
            same = same & (first.columns[name] == second.columns[name])
    return same


def _contradictions(
    held: list[tuple[int, _Piece]], terms: _Array, shares: Sequence[ReplicaShare], first: int, count: int
) -> _Array:
    """Which entries have other terms on two replicas that both say that they are committed."""
    found = np.zeros(count, bool)
    index = np.arange(first, first + count)
    for place in range(1, len(held)):
        for before in range(place):
            known = min(shares[held[place][0]].committed, shares[held[before][0]].committed)
            found |= (terms[place] != terms[before]) & (index <= known)
    return found
