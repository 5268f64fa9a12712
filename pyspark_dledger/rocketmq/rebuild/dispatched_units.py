"""Extracts ConsumeQueue units and index keys from a log, chunk by chunk and in its order.

Ranges of the log can be read by other processes, in any order. Their units and keys come through files, so that no
process needs memory for a whole log.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import record_dtype
from pyspark_dledger.format.dispatched_rows import Keys, Longs, QueueName
from pyspark_dledger.format.layout import INDEX_UNIT
from pyspark_dledger.format.spec import Filters, ScanRequest, Segment
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.queue_files import UNIT_DTYPE, Units
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.plan import plan_between
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.dispatch.log_part import LogPart, UnitRules, read_part
from pyspark_dledger.rocketmq.jobs import MapParts, map_here
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.new_files import leave, left_file
from pyspark_dledger.rocketmq.jobs.target_folder import PartReport, file_state, locked_folder

_VERB = "rebuild"

# Read into memory at a time.
_CHUNK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class SegmentRange:
    """The entries that begin at positions ``[start, end)`` of a segment; ranges are numbered in the log's order."""

    number: int
    segment: Segment
    start: int
    end: int


@dataclass(frozen=True)
class UnitSpec:
    """What to extract: units, and keys if `index` is set."""

    index: bool
    rules: UnitRules
    engine: str


class ChunkCounts(NamedTuple):
    """The numbers of messages in a chunk.

    ``messages`` can be in a queue or the index. ``skipped`` rows are no messages, or no queue can have them;
    ``first_skipped`` describes the first one. ``batches`` are messages of batchconsumequeue. ``last_stored`` is the
    last message's storeTimestamp in milliseconds, 0 without messages.
    """

    messages: int
    skipped: int
    first_skipped: str
    batches: int
    last_stored: int


_NO_INDEX = np.empty(0, record_dtype(INDEX_UNIT))


class DispatchedUnits(NamedTuple):
    """The units and keys of a chunk of the log, which ends at position ``end``; as in `DispatchedRows`.

    ``index_units`` are those of DLedger's index for its entries, if they are wanted.
    """

    end: int
    names: list[QueueName]
    unit_counts: list[int]
    queue_offset: Longs
    units: Units
    keys: Keys
    counts: ChunkCounts
    index_units: Units = _NO_INDEX


NO_UNITS = DispatchedUnits(
    0,
    [],
    [],
    np.empty(0, np.int64),
    np.empty(0, UNIT_DTYPE),
    Keys(*(np.empty(0, np.int64) for _ in range(3))),
    ChunkCounts(0, 0, "", 0, 0),
)
"""Nothing of a chunk."""


def plan_ranges(log: StoreView, end: int | None, part_bytes: int) -> tuple[list[SegmentRange], int]:
    """The ranges of a log up to a position, and the number of bytes in missing files between them."""
    options = replace(log.options, max_partition_bytes=part_bytes, min_partitions=None)
    partitions = plan_between(log, ("pos",), options, Filters(), None, 0, INT64_MAX if end is None else end)
    ranges = [each for partition in partitions for each in partition.ranges]
    missing = sum(each.end - each.start for each in ranges if isinstance(each, FileGap))
    scans = [each for each in ranges if isinstance(each, ScanRequest)]
    return [SegmentRange(number, each.segment, each.start, each.end) for number, each in enumerate(scans)], missing


def units_in_order(
    spec: UnitSpec, ranges: list[SegmentRange], folder: Path | None, map_parts: MapParts
) -> Iterator[tuple[SegmentRange, Iterable[DispatchedUnits]]]:
    """The units of each range, in the order of the log.

    Other processes leave what they read in `folder`, which a job writes: after a kill, the same call continues it.
    Raises StoreError if a range cannot be read, or a process did not return one.
    """
    if map_parts is map_here:
        for each in ranges:
            yield each, read_range(spec, each)
        return
    assert folder is not None
    with locked_folder(folder, _VERB):
        reports = _job_reports(spec, ranges, folder, map_parts)
        for each, report in zip(ranges, reports, strict=True):
            assert report.left is not None
            yield each, load_units(left_file(folder, report.left))
    shutil.rmtree(folder)


def _job_reports(spec: UnitSpec, ranges: list[SegmentRange], folder: Path, map_parts: MapParts) -> Sequence[PartReport]:
    """The reports of the ranges; what an earlier run left of other ranges, or of another log, is deleted."""
    states = [file_state(each.segment.path) for each in ranges]
    plan = hashlib.sha256(repr((spec, ranges, states)).encode("utf-8", "surrogatepass")).hexdigest()
    job = Job(folder, _VERB, {"source": "the log", "ranges": plan}, map_parts, None)
    try:
        earlier = job.earlier()
    except StoreError:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        earlier = None
    return job.write(partial(_leave_units, spec), ranges, 0, earlier=earlier)[0]


def _leave_units(spec: UnitSpec, part: SegmentRange, number: int, target: Path) -> PartReport:
    """Read a range and leave its units in a file."""
    left, _ = leave(target, number, lambda stream: save_all(stream, read_range(spec, part)))
    return PartReport(number, (), part.end - part.start, left=left)


def read_range(spec: UnitSpec, each: SegmentRange) -> Iterator[DispatchedUnits]:
    """The units of a range, chunk by chunk. Raises StoreError if the segment cannot be read."""
    engine = engine_of(spec.engine, each.segment)
    pos = each.start
    while pos < each.end:
        chunk = read_part(engine, each.segment, pos, min(each.end, pos + _CHUNK_BYTES), spec.rules)
        yield units_of_chunk(spec, chunk)
        pos = chunk.end


def units_of_chunk(spec: UnitSpec, chunk: LogPart) -> DispatchedUnits:
    """The units and keys of the messages of a chunk."""
    rows = chunk.rows
    counts = ChunkCounts(rows.messages, rows.skipped, chunk.first_skipped, rows.batches, rows.last_stored)
    keys = rows.keys if spec.index else rows.keys[:0]
    return DispatchedUnits(chunk.end, rows.queues, rows.counts, rows.queue_offset, rows.units, keys, counts)


def save_units(file: BinaryIO | RawIOBase, found: DispatchedUnits) -> None:
    """Write the units of a chunk: a line of JSON, then the arrays in numpy's format. Raises OSError."""
    data = BytesIO()  # numpy reports a full disk without its error number
    data.write(json.dumps([found.end, found.names, found.unit_counts, found.counts]).encode() + b"\n")
    keys = found.keys
    for array in (found.queue_offset, found.units, keys.offset, keys.stored, keys.key_hash, found.index_units):
        np.save(data, array, allow_pickle=False)
    file.write(data.getbuffer())


def save_all(file: BinaryIO | RawIOBase, found: Iterable[DispatchedUnits]) -> None:
    """Write the units of chunks for `load_units`. Raises OSError."""
    for units in found:
        save_units(file, units)


def load_units(path: Path) -> Iterator[DispatchedUnits]:
    """The units in a file, chunk by chunk."""
    with path.open("rb") as file:
        while line := file.readline():
            end, names, unit_counts, counts = json.loads(line)
            queue_offset, units, *keys, index = (np.load(file, allow_pickle=False) for _ in range(6))
            named = [(topic, number) for topic, number in names]
            values = end, named, unit_counts, queue_offset, units, Keys(*keys), ChunkCounts(*counts), index
            yield DispatchedUnits(*values)
