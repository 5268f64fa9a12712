"""Finds the ranges of replicas' files with equal bytes: there, the entries of one replica are those of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from pyspark_dledger.format.spec import Filters, IntFilter, ScanRequest
from pyspark_dledger.log.copies.segment_bytes import SegmentBytes, unequal_windows
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.log.io.store_engine import store_engine
from pyspark_dledger.log.plan import Partition

# Bytes around a difference in which each entry is compared.
RANGE_BYTES = 64 * 1024 * 1024


class FileRange(NamedTuple):
    """The indexes ``[first, last]``, at positions ``[start, end)`` on every replica."""

    first: int
    last: int
    start: int
    end: int
    is_equal: bool


def split_by_equality(partitions: Sequence[Partition], first: int, last: int) -> list[FileRange]:
    """Split the indexes ``[first, last]`` into ranges with equal bytes on all replicas, and others.

    Empty if the files of the replicas have different bases or sizes.
    """
    layouts = {tuple((part.segment.base, part.segment.size, part.start) for part in _ranges(one)) for one in partitions}
    if len(layouts) > 1:
        return []
    aligned = list(zip(*map(_ranges, partitions), strict=True))
    if not aligned:
        return []
    unequal = [window for requests in aligned for window in _unequal_windows(requests)]
    cuts = list(_cuts(partitions[0], aligned, unequal))
    end = min(part[-1].end for part in map(_ranges, partitions))
    starts = [(first, aligned[0][0].start), *(cut for cut in cuts if first < cut[0] <= last)]
    found: list[FileRange] = []
    for (index, start), (following, stop) in zip(starts, [*starts[1:], (last + 1, end)], strict=True):
        is_equal = not any(low < stop and start < high for low, high in unequal)
        if found and found[-1].is_equal == is_equal:
            found[-1] = found[-1]._replace(last=following - 1, end=stop)
        else:
            found.append(FileRange(index, following - 1, start, stop, is_equal))
    return found


def _ranges(partition: Partition) -> list[ScanRequest]:
    return [part for part in partition.ranges if isinstance(part, ScanRequest)]


def _unequal_windows(requests: Sequence[ScanRequest]) -> list[tuple[int, int]]:
    """The ranges of positions in which the bytes of replicas differ or cannot be read; all of remote files."""
    start, end = requests[0].start, min(request.end for request in requests)
    if any(request.segment.file.is_remote for request in requests):
        return [(start, end)]
    with ExitStack() as opened:
        first, *others = (SegmentBytes(request.segment, opened) for request in requests)
        found = unequal_windows(first, [(other, end) for other in others], start)
        return sorted(window for windows in found for window in windows)


def _cuts(
    partition: Partition, aligned: list[tuple[ScanRequest, ...]], unequal: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Index and position of entries, around unequal bytes, at which all replicas can be split."""
    engine = store_engine(partition.engine)
    for requests in aligned if unequal else []:
        request = requests[0]
        cuts = [request.start]
        if any(low < request.end and request.start < high for low, high in unequal):
            cuts += engine.split(request.segment, request.start, min(one.end for one in requests), RANGE_BYTES)
        for cut in cuts:
            headers = [entry_at(one.segment, cut) for one in requests]
            if headers[0] is not None and all(header == headers[0] for header in headers):
                after = entry_at(request.segment, cut + headers[0].size)
                if after is None or after.index == headers[0].index + 1:
                    yield headers[0].index, cut


def clipped(partition: Partition, part: FileRange, is_last: bool) -> Partition:
    """The part of a read that is in a range; the last range extends to the end of the read."""
    filters = Filters(index=IntFilter(part.first, part.last))
    ranges = []
    for request in _ranges(partition):
        start = max(request.start, part.start)
        end = request.end if is_last else min(request.end, part.end)
        if start < end:
            ranges.append(replace(request, start=start, end=end, filters=filters))
    return Partition(tuple(ranges), partition.engine)
