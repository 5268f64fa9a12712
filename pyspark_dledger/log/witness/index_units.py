"""Finds the units of a node's index that have entries of one segment.

Units are in the order of their index, so their positions grow up to the log's end. Units of truncated entries can
follow it. Any unit can be damaged, so a search compares medians.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS, INDEX_UNIT_SIZE
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, UnitBlock
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PROBE = 2048
"""Units of one probe, 64 KiB: a damaged page of 4 KiB does not decide it."""
_CHUNK = 64 * 1024
"""Units of one read, 2 MiB."""


class Units(NamedTuple):
    """Units as columns, in the order of their index. Sizes in bytes."""

    index: Longs  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: Longs
    size: Longs
    term: Longs
    magic: Longs

    def of(self, chosen: Bools | slice) -> Units:
        """The chosen units; the same if they are all."""
        if not isinstance(chosen, slice) and chosen.all():
            return self
        return Units(*(column[chosen] for column in self))


NO_UNITS = Units(*[np.empty(0, np.int64)] * 5)


class SegmentUnits(NamedTuple):
    """The units with entries of a segment, and some units before the first of them, in the order of their index."""

    before: Units
    inside: Units


class IndexUnits:
    """The units in a folder of index files. Files that cannot be read, and other files, are ignored."""

    def __init__(self, folder: Path) -> None:
        self._index = DLedgerIndex(folder)
        self._firsts = [file.base // INDEX_UNIT_SIZE for file in self._index.files]
        counts = np.cumsum([0, *(file.size // INDEX_UNIT_SIZE for file in self._index.files)]).tolist()
        # The number of units before each file: files can be missing.
        self._starts, self._total = counts[:-1], counts[-1]

    def has_file_after(self, index: int) -> bool:
        """Whether a file begins after the unit of `index`: Java creates it with its first unit."""
        return any(first > index for first in self._firsts)

    def of(self, segment: Segment, start: int) -> SegmentUnits:
        """The units with entries of the segment from `start` on, found by a binary search."""
        low, high = 0, -(-self._total // _PROBE)
        while low < high:
            middle = (low + high) // 2
            median = self._median(middle)
            if median is not None and median < start:
                low = middle + 1
            else:
                high = middle
        return self._collect(segment, start, max(low - 2, 0) * _PROBE, low * _PROBE)

    def all_of(self, segment: Segment, start: int) -> SegmentUnits:
        """The same by reading all units, for a damaged index."""
        return self._collect(segment, start, 0, self._total)

    def _median(self, probe: int) -> int | None:
        units = _joined(self._read(probe * _PROBE, (probe + 1) * _PROBE))
        return int(np.median(units.pos)) if len(units.pos) else None

    def _collect(self, segment: Segment, start: int, number: int, at_least: int) -> SegmentUnits:
        """The units from `number` on, to the end of the segment; at least those up to number `at_least`."""
        before = NO_UNITS
        inside: list[Units] = []
        for at in range(number, self._total, _CHUNK):
            units = _joined(self._read(at, at + _CHUNK))
            if not any(len(part.pos) for part in inside):
                is_first = _is_between(units, start, segment.end)
                first = int(np.argmax(is_first)) if is_first.any() else len(is_first)
                before = _joined([before, units.of(slice(0, first))]).of(slice(-_PROBE, None))
                units = units.of(slice(first, None))
            stop = _end_of_segment(units, segment.end)
            # Those of truncated entries can have any position in the segment.
            found = units.of(slice(0, stop))
            found = found.of(_is_between(found, segment.base, segment.end))
            inside.append(found)
            if stop < len(units.pos) or (number < at > at_least and not len(found.pos)):
                break
        return SegmentUnits(before, _joined(inside))

    def _read(self, start: int, stop: int) -> Iterator[Units]:
        """The intact units from number `start` to `stop`."""
        stop = min(stop, self._total)
        while start < stop:
            number = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[number + 1] if number + 1 < len(self._starts) else self._total)
            shift = self._firsts[number] - self._starts[number]
            yield from map(_intact, self._index.blocks(start + shift, end + shift))
            start = end


def _is_between(units: Units, start: int, end: int) -> Bools:
    """Which units have entries in the positions ``[start, end)``."""
    return np.asarray((units.pos >= start) & (units.pos + units.size <= end))


def _end_of_segment(units: Units, end: int) -> int:
    """How many units there are up to two that continue each other after the segment: what follows them is stale."""
    is_past = units.pos >= end
    pairs = is_past[1:] & is_past[:-1] & (np.diff(units.index) == 1) & (np.diff(units.pos) > 0)
    return int(np.argmax(pairs)) if pairs.any() else len(units.pos)


def _intact(block: UnitBlock) -> Units:
    """The intact units of a block, of which each has its own index."""
    records = block.units
    index = np.arange(len(records), dtype=np.int64) + block.first
    units = Units(*(records[name].astype(np.int64) for name in ("index", "pos", "size", "term", "magic")))
    is_intact = (units.magic >= ENTRY_MAGICS[0]) & (units.magic <= ENTRY_MAGICS[-1]) & (units.index == index)
    is_intact &= (units.size >= ENTRY_HEADER_SIZE) & (units.term >= -1)
    is_intact &= (units.pos >= 0) & (units.pos <= 2 * HIGHEST_BASE - 1 - units.size)
    return units.of(is_intact)


def _joined(parts: Iterator[Units] | list[Units]) -> Units:
    listed = list(parts)
    return Units(*(np.concatenate(columns) for columns in zip(*listed, strict=True))) if listed else NO_UNITS
