"""Reads a copy that is mostly equal to another: only the entries around different bytes are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pyspark_dledger.format.scan.expectation import RECENT_FRAMES
from pyspark_dledger.log.copies.segment_bytes import SegmentBytes, unequal_windows
from pyspark_dledger.log.copies.segment_copy import CopyEntries, Damage, SegmentCopy, joined, read_copy

_MAX_RANGES = 256

Range = tuple[int, int]


def read_mostly_equal(
    copy: SegmentCopy,
    own: SegmentBytes,
    other: SegmentCopy,
    others: SegmentBytes,
    entries: CopyEntries,
    damages: Sequence[Damage],
    engine_name: str,
) -> tuple[CopyEntries, list[Damage], list[Range]]:
    """The entries of a copy and its damage, and the ranges outside of which it has the bytes of the `other` copy.

    `entries` and `damages` are those of the other copy.
    """
    base = copy.segment.base
    common = min(copy.end, other.end)
    windows = list(unequal_windows([own, others], base, common))
    if common < max(copy.end, other.end):
        windows.append((common, max(copy.end, other.end)))
    ranges = _widened(windows, entries, base, copy.end)
    if len(ranges) > _MAX_RANGES or 2 * sum(high - low for low, high in ranges) > copy.end - base:
        return *read_copy(copy, engine_name), [(base, max(copy.end, other.end))]
    parts: list[CopyEntries] = []
    found: list[Damage] = []
    at = base
    for low, high in [*ranges, (copy.end, copy.end)]:
        parts.append(_between(entries, at, low))
        found += [replace_source(each, copy.source) for each in damages if at <= each.start < low]
        if low < high:
            # Between entries that both have, continuity is enough; a witness would read the headers of the segment.
            segment = copy.segment if high == copy.end else replace(copy.segment, witness=None)
            read, more = read_copy(replace(copy, segment=segment, end=high), engine_name, low)
            parts.append(read)
            found += more
        at = high
    return joined(parts), found, ranges


def replace_source(damage: Damage, source: int) -> Damage:
    """The damage in equal bytes of another source."""
    return damage._replace(source=source)


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


def _between(entries: CopyEntries, start: int, end: int) -> CopyEntries:
    """The entries that begin in ``[start, end)``."""
    low, high = np.searchsorted(entries.pos, [start, end]).tolist()
    return CopyEntries(*(getattr(entries, name)[low:high] for name in CopyEntries.__dataclass_fields__))
