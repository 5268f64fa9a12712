"""Compares what a store's files claim about damaged bytes of a segment, and finds where they contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.arrow_functions import distinct
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.scan.frames import HEADER_DTYPE
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.key_files import message_starts
from pyspark_dledger.log.io.queue_units import messages_by_queue
from pyspark_dledger.log.witness.headers import is_frame, read_headers
from pyspark_dledger.log.witness.index_units import IndexUnits
from pyspark_dledger.log.witness.store_witness import StoreWitness

Longs = npt.NDArray[np.int64]

_HEADER, _INDEX_UNIT, _INDEX_FILE = "header", "index unit", "IndexFile"


class Claim(NamedTuple):
    """What one file says: an entry, or old message, in the positions ``[pos, end)``. -1 where it does not say it.

    An IndexFile says only where a message begins; then ``end`` is ``pos``.
    """

    by: str
    pos: int
    end: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int

    def __str__(self) -> str:
        index = f"index {self.index}, term {self.term}, " if self.index >= 0 else ""
        size = f"{self.end - self.pos} bytes" if self.end > self.pos else "a message"
        return f"{index}{size} at {self.pos} ({self.by})"


class Contradiction(NamedTuple):
    """Two claims about one place that cannot both be true, the first of ``pairs`` in a damaged range.

    With ``is_decided``, ``first`` is what the witness takes for true; otherwise neither.
    """

    first: Claim
    second: Claim
    pairs: int
    is_decided: bool


class _Claims:
    """Claims as columns, by position."""

    def __init__(self, found: list[tuple[str, Longs]]) -> None:
        """`found` has rows of pos, end, index and term for each file."""
        self._names = [name for name, _ in found]
        rows = np.concatenate([np.empty((0, 4), np.int64), *(rows for _, rows in found)])
        sources = np.repeat(np.arange(len(found)), [len(rows) for _, rows in found])
        order = np.lexsort((sources, rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))
        self._rows, self._sources = rows[order], sources[order]

    def within(self, start: int, end: int) -> slice:
        """Those that begin in ``[start, end)``."""
        return slice(*np.searchsorted(self._rows[:, 0], [start, end]).tolist())

    def conflicts(self, part: slice) -> Iterator[tuple[Claim, Claim]]:
        """Pairs of claims in a part that contradict each other, each claim with one before it."""
        rows = self._rows[part]
        if len(rows) < 2:
            return
        pos, end, index, term = rows.T
        # Of the claims before, the one that reaches furthest, and else the last.
        reach = np.maximum.accumulate(end)[:-1]
        furthest = np.maximum.accumulate(np.where(end == np.maximum.accumulate(end), np.arange(len(end)), 0))[:-1]
        is_same = (pos[1:] == pos[:-1]) & (end[1:] == end[:-1])
        has_index = (index[1:] >= 0) & (index[:-1] >= 0)
        differs = is_same & has_index & ((index[1:] != index[:-1]) | (term[1:] != term[:-1]))
        overlaps = ~is_same & (pos[1:] < reach)
        for number in np.flatnonzero(differs | overlaps).tolist():
            before = number if differs[number] else int(furthest[number])
            yield self._claim(part.start + before), self._claim(part.start + number + 1)

    def _claim(self, number: int) -> Claim:
        return Claim(self._names[int(self._sources[number])], *self._rows[number].tolist())


def contradictions(segment: Segment, ranges: list[tuple[int, int]]) -> Iterator[Contradiction]:
    """The contradictions in damaged ranges ``[start, end)`` of a segment, one for each range."""
    witness = segment.witness
    if not isinstance(witness, StoreWitness) or not ranges:
        return
    claims = _Claims(list(_claims(segment, witness, ranges)))
    known = witness.known_entries(segment)
    extents = set(zip(known.pos.tolist(), known.end.tolist(), strict=True))
    for start, end in ranges:
        pairs = list(claims.conflicts(claims.within(start, end)))
        if pairs:
            first, second = pairs[0]
            if (second.pos, second.end) in extents:
                first, second = second, first
            yield Contradiction(first, second, len(pairs), (first.pos, first.end) in extents)


def _claims(segment: Segment, witness: StoreWitness, ranges: list[tuple[int, int]]) -> Iterator[tuple[str, Longs]]:
    low, high = ranges[0][0], max(end for _, end in ranges)
    own = ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0
    positions = [np.empty(0, np.int64)]
    if own and witness.node_dir is not None:
        units = IndexUnits(path_of(witness.node_dir) / "index").of(segment, segment.base).inside
        # The units after the log's end are of truncated entries.
        units = units.of(units.index <= witness.evidence(segment).last_index)
        positions.append(units.pos)
        yield _INDEX_UNIT, np.stack([units.pos, units.pos + units.size, units.index, units.term], axis=1)
    if witness.root is not None:
        for queue, found in messages_by_queue(low, high + own, path_of(witness.root)):
            unknown = np.full(len(found.pos), -1, np.int64)
            pos = found.pos - own
            positions.append(pos)
            rows = np.stack([pos, found.pos + found.size, unknown, unknown], axis=1)
            rows = rows[rows[:, 1] <= high + own]
            yield f"ConsumeQueue {queue.topic}/{queue.queue_id}", rows
        starts = message_starts(low + own, high + own, path_of(witness.root)) - own
        yield _INDEX_FILE, np.stack([starts, starts, *np.full((2, len(starts)), -1, np.int64)], axis=1)
    if own:
        yield _HEADER, _headers(segment, distinct(np.concatenate(positions)), low, high)


def _headers(segment: Segment, pos: Longs, low: int, high: int) -> Longs:
    """What intact headers at the positions say."""
    pos = pos[(pos >= low) & (pos < high)]
    headers = read_headers(segment, pos, HEADER_DTYPE)
    chosen = is_frame(headers, pos, segment)
    pos, headers = pos[chosen], headers[chosen]
    columns = [headers[name].astype(np.int64) for name in ("size", "index", "term")]
    return np.stack([pos, pos + columns[0], *columns[1:]], axis=1)
