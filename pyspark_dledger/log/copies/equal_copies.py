"""Finds what must be read of a copy that is mostly equal to another: the entries around different bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyspark_dledger.format.scan.expectation import RECENT_FRAMES
from pyspark_dledger.log.copies.segment_copy import CopyEntries, Range, SegmentCopy

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
