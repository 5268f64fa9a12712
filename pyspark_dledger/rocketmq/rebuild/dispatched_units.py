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
from pyspark_dledger.format.dispatched_rows import DispatchedRows, Keys
from pyspark_dledger.format.encode.encoded import PutIds
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


_NO_INDEX = np.empty(0, record_dtype(INDEX_UNIT))
_NONE = np.empty(0, np.int64)
_NO_IDS = PutIds(_NONE, b"", _NONE)


class DispatchedUnits(NamedTuple):
    """The units and keys of a chunk of the log, which ends at position ``end``; the ``rows`` are without identities.

    ``first_skipped`` describes the first of the skipped rows. ``index_units`` are those of DLedger's index for its
    entries, if they are wanted.
    """

    end: int
    rows: DispatchedRows
    first_skipped: str = ""
    index_units: Units = _NO_INDEX


NO_UNITS = DispatchedUnits(
    0, DispatchedRows([], [], _NONE, np.empty(0, UNIT_DTYPE), Keys(_NONE, _NONE, _NONE), _NO_IDS)
)
"""Nothing of a chunk."""
_NUMBERS = ("messages", "batches", "skipped", "last_stored")


def plan_ranges(log: StoreView, end: int | None, part_bytes: int) -> tuple[list[SegmentRange], int]:
    """The ranges of a log up to a position, and the number of bytes in missing files between them."""
    options = replace(log.options, max_partition_bytes=part_bytes, min_partitions=None)
    partitions = plan_between(log, ("pos",), options, Filters(), None, 0, INT64_MAX if end is None else end)
    ranges = [each for partition in partitions for each in partition.ranges]
    missing = sum(each.end - each.start for each in ranges if isinstance(each, FileGap))
    scans = [each for each in ranges if isinstance(each, ScanRequest)]
    return [SegmentRange(number, each.segment, each.start, each.end) for number, each in enumerate(scans)], missing


def units_in_order(
    rules: UnitRules, engine: str, ranges: list[SegmentRange], folder: Path | None, map_parts: MapParts
) -> Iterator[tuple[SegmentRange, Iterable[DispatchedUnits]]]:
    """The units of each range, in the order of the log.

    Other processes leave what they read in `folder`, which a job writes: after a kill, the same call continues it.
    Raises StoreError if a range cannot be read, or a process did not return one.
    """
    if map_parts is map_here:
        for each in ranges:
            yield each, read_range(rules, engine, each)
        return
    assert folder is not None
    with locked_folder(folder, _VERB):
        reports = _job_reports(rules, engine, ranges, folder, map_parts)
        for each, report in zip(ranges, reports, strict=True):
            assert report.left is not None
            yield each, load_units(left_file(folder, report.left))
    shutil.rmtree(folder)


def _job_reports(
    rules: UnitRules, engine: str, ranges: list[SegmentRange], folder: Path, map_parts: MapParts
) -> Sequence[PartReport]:
    """The reports of the ranges; what an earlier run left of other ranges, or of another log, is deleted."""
    states = [file_state(each.segment.path) for each in ranges]
    plan = hashlib.sha256(repr((rules, engine, ranges, states)).encode("utf-8", "surrogatepass")).hexdigest()
    job = Job(folder, _VERB, {"source": "the log", "ranges": plan}, map_parts, None)
    try:
        earlier = job.earlier()
    except StoreError:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        earlier = None
    return job.write(partial(_leave_units, rules, engine), ranges, 0, earlier=earlier)[0]


def _leave_units(rules: UnitRules, engine: str, part: SegmentRange, number: int, target: Path) -> PartReport:
    """Read a range and leave its units in a file."""
    left, _ = leave(target, number, lambda stream: save_all(stream, read_range(rules, engine, part)))
    return PartReport(number, (), part.end - part.start, left=left)


def read_range(rules: UnitRules, engine: str, each: SegmentRange) -> Iterator[DispatchedUnits]:
    """The units of a range, chunk by chunk. Raises StoreError if the segment cannot be read."""
    pos = each.start
    while pos < each.end:
        end = min(each.end, pos + _CHUNK_BYTES)
        chunk = read_part(engine_of(engine, each.segment), each.segment, pos, end, rules)
        yield units_of_chunk(rules, chunk)
        pos = chunk.end


def units_of_chunk(rules: UnitRules, chunk: LogPart) -> DispatchedUnits:
    """The units and keys of the messages of a chunk."""
    keys = chunk.rows.keys if rules.has_keys else chunk.rows.keys[:0]
    return DispatchedUnits(chunk.end, chunk.rows._replace(keys=keys, ids=_NO_IDS), chunk.first_skipped)


def save_units(file: BinaryIO | RawIOBase, found: DispatchedUnits) -> None:
    """Write the units of a chunk: a line of JSON, then the arrays in numpy's format. Raises OSError."""
    data = BytesIO()  # numpy reports a full disk without its error number
    rows, keys = found.rows, found.rows.keys
    numbers = {name: getattr(rows, name) for name in _NUMBERS}
    data.write(json.dumps([found.end, found.first_skipped, rows.queues, rows.counts, numbers]).encode() + b"\n")
    for array in (rows.queue_offset, rows.units, keys.offset, keys.stored, keys.key_hash, found.index_units):
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
            end, first_skipped, names, counts, numbers = json.loads(line)
            queue_offset, units, *keys, index = (np.load(file, allow_pickle=False) for _ in range(6))
            named = [(topic, number) for topic, number in names]
            rows = DispatchedRows(named, counts, queue_offset, units, Keys(*keys), _NO_IDS, **numbers)
            yield DispatchedUnits(end, rows, first_skipped, index)
