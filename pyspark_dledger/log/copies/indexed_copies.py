"""Reads the logs of DLedger 0.4.0 for a comparison by index: its replicas can have an entry at different positions.

The place of an entry is its index times `STEP`, so that all else compares places as it compares positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log.copies.segment_copy import CopyEntries, Damage, Longs, SegmentCopy, joined, read_copy

STEP = MAX_ENTRY_SIZE
_POS = slice(24, 32)
"""Where the header of an entry has its position, which is the leader's."""


@dataclass(frozen=True)
class IndexedPart:
    """All segments of all replicas, which one task compares by index. ``size`` is in bytes."""

    copies: tuple[SegmentCopy, ...]
    size: int
    engine: str
    base: int = 0
    source: str = DLEDGER


class IndexedBytes:
    """The entries of one replica, by place."""

    def __init__(self, segments: Sequence[Segment], entries: CopyEntries) -> None:
        self._segments, self._bases = segments, [segment.base for segment in segments]
        self._index, self._pos, self._size = entries.index, entries.pos, entries.size

    def read(self, start: int, _: int) -> bytes:
        """The bytes of the entry at a place, without a position in its header; empty without one."""
        row = int(np.searchsorted(self._index, start // STEP))
        if row == len(self._index) or self._index[row] != start // STEP:
            return b""
        pos = int(self._pos[row])
        segment = self._segments[int(np.searchsorted(self._bases, pos, "right")) - 1]
        data = bytearray(segment.read(pos, int(self._size[row])))
        data[_POS] = bytes(len(data[_POS]))
        return bytes(data)

    def digests(self, starts: Longs) -> list[bytes]:
        """The digests of the entries at places."""
        return [hashlib.sha256(self.read(start, 0)).digest() for start in starts.tolist()]


def read_indexed(part: IndexedPart) -> tuple[dict[int, CopyEntries], dict[int, IndexedBytes], list[Damage]]:
    """The entries of all replicas with their places for positions, their bytes, and what is damaged."""
    entries: dict[int, CopyEntries] = {}
    files: dict[int, IndexedBytes] = {}
    damages: list[Damage] = []
    for source in sorted({copy.source for copy in part.copies}):
        own = [copy for copy in part.copies if copy.source == source]
        found = [read_copy(copy, part.engine) for copy in own]
        listed = _in_order(joined([each for each, _ in found]))
        files[source] = IndexedBytes([copy.segment for copy in own], listed)
        places = listed.index * STEP
        entries[source] = replace(listed, pos=places, size=np.full(len(places), STEP))
        known = ((each, each.index) for _, those in found for each in those if each.index is not None)
        damages += [each._replace(start=index * STEP, end=(index + 1) * STEP) for each, index in known]
    return entries, files, damages


def _in_order(entries: CopyEntries) -> CopyEntries:
    """The entries without those whose index does not fit to the entries around them."""
    index, pos, ends = entries.index, entries.pos, entries.pos + entries.size
    if not len(index):
        return entries
    # Trust the first entry that is followed by the next index, and all that match it.
    start = int(next(iter(np.flatnonzero(np.diff(index) == 1)), 0))
    kept = [start]
    for row in range(start - 1, -1, -1):
        if _has_room(index[row], ends[row], index[kept[0]], pos[kept[0]]):
            kept.insert(0, row)
    for row in range(start + 1, len(index)):
        if _has_room(index[kept[-1]], ends[kept[-1]], index[row], pos[row]):
            kept.append(row)
    fields = CopyEntries.__dataclass_fields__
    return CopyEntries(*(getattr(entries, name)[kept] for name in fields))


def _has_room(last: int, end: int, index: int, pos: int) -> bool:
    """Whether an entry `index` at `pos` can follow the entry `last` with end `end`."""
    return bool(last < index and index - last - 1 <= (pos - end) // ENTRY_HEADER_SIZE)
