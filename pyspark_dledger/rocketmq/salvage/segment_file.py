"""Writes one file of a restored log: copies its pieces from their donors, adds fillers, and reads it back.

As Java writes it: entries from the start, a blank where the log continues in the next file, and zeros. Fillers are
rolled-back messages, which are in no queue and in no index: brokers read them like any message and pass over them
(``CommitLogDispatcherBuildConsumeQueue``, ``IndexService.buildIndex`` of RocketMQ 4.9.8 and 5.3.3). A task leaves the
units of its entries in a file: the files of index, ConsumeQueues and keys are written from them after all tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.integers import MAX_TIMESTAMP
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.arrow_functions import values_of
from pyspark_dledger.format.codec import encode_blank, encode_entry, encode_message_blank, record_dtype
from pyspark_dledger.format.dispatched_rows import DISPATCHED_COLUMNS
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    MAGIC_NORMAL,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
    MIN_MESSAGE_SIZE,
    segment_name,
)
from pyspark_dledger.format.message import STORED_SIZE, filler_message, filler_messages, store_timestamp
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.copies.segment_copy import is_damage
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import open_file
from pyspark_dledger.log.io.salvage_fillers import TOPIC
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.salvage.lost_entries import LostEntry, Repair
from pyspark_dledger.log.salvage.pieces import Piece
from pyspark_dledger.log.salvage.restored_log import Extent, end_of, start_of
from pyspark_dledger.rocketmq.dispatch.log_part import UnitRules, all_rows, part_of
from pyspark_dledger.rocketmq.jobs.new_files import (
    ChecksumFile,
    DirectFile,
    FileWindow,
    WrittenRange,
    leave,
    written_ranges,
)
from pyspark_dledger.rocketmq.jobs.target_folder import FileReport, PartReport, new_file, source_errors
from pyspark_dledger.rocketmq.rebuild.dispatched_units import (
    NO_UNITS,
    DispatchedUnits,
    save_units,
    units_of_chunk,
)

_TOPIC = TOPIC.encode()
MIN_SIZE = MIN_MESSAGE_SIZE + 1
"""Bytes of the smallest filler: its topic has one character."""


def entry_filler(lost: LostEntry, has_messages: bool, store_timestamp: int) -> bytes:
    """The DLedger entry for a lost one. Its body is a message if the log has messages and it fits, else zeros."""
    start, end = lost.pos + ENTRY_HEADER_SIZE, lost.pos + lost.size
    is_message = has_messages and end - start >= MIN_SIZE
    body = filler_message(_TOPIC, start, end, store_timestamp) if is_message else bytes(end - start)
    return encode_entry(lost.index, lost.term, lost.pos, body)


def message_fillers(lost: LostEntry, store_timestamp: int) -> bytes:
    """Messages of a CommitLog that fill the extent of lost ones, which is at least `MIN_SIZE` long."""
    return b"".join(filler_messages(_TOPIC, lost.pos, lost.pos + lost.size, store_timestamp))


def index_units(batch: pa.RecordBatch) -> npt.NDArray[Any]:
    """The DLedger index units of entries."""
    units = np.zeros(len(batch), record_dtype(INDEX_UNIT))
    units["magic"] = MAGIC_NORMAL
    for name in ("pos", "size", "index", "term"):
        units[name] = values_of(batch[name])
    return units


_COPY_BYTES = 1024 * 1024
_CHECKED_COLUMNS = ("pos", "size", "index", "term", "problem", "problemCode")


@dataclass(frozen=True)
class SegmentPart:
    """A file of the restored log: its extents by position, and the path of each donor's file by its number.

    ``path`` is relative to the target. The log continues in the next file if ``has_blank``. ``units`` are
    the rules of its units for queues and keys, up to the index ``committed``; None if they are not built.
    """

    path: str
    base: int
    size: int
    source: str
    extents: tuple[Extent, ...]
    donors: dict[int, str]
    has_blank: bool
    has_messages: bool
    engine: str
    committed: int | None = None
    # Not in the repr, which identifies a plan: the topics of a running broker change.
    units: UnitRules | None = field(default=None, repr=False)


def write_file(part: SegmentPart, number: int, target: Path) -> PartReport:
    """Write a file, and the units of its entries for `load_units`, and read the file back.

    Raises StoreError if a source changed since the plan or the disk returns other bytes, OSError.
    """
    with new_file(target, part.path) as temporary, DirectFile(temporary) as file:
        ranges = list(written_ranges((data, 0) for data in _written(part, file)))
        file.finish(part.size)
        left, (rows, problems) = leave(target, number, lambda stream: _read_back(part, file, ranges, stream))
    lost = sum(isinstance(extent, LostEntry) for extent in part.extents)
    file_written = FileReport(part.path, part.size, ranges[-1].crc, rows)
    return PartReport(number, (file_written,), part.size, lost, problems=problems, left=left)


def _written(part: SegmentPart, file: DirectFile) -> Iterator[memoryview]:
    """Write the file up to its zeros."""
    for data in _contents(part, file):
        yield data
        file.advance(len(data))


def _contents(part: SegmentPart, target: DirectFile) -> Iterator[memoryview]:
    """The bytes of the file up to its zeros, each time in memory that the target reserved."""
    at = part.base
    stored = 0
    with ExitStack() as opened:
        files = {number: opened.enter_context(_opened(path)) for number, path in part.donors.items()}
        for extent in part.extents:
            at = end_of(extent)
            if isinstance(extent, LostEntry):
                filler = entry_filler(extent, part.has_messages, stored) if part.source == DLEDGER else None
                yield _reserved(target, filler if filler is not None else message_fillers(extent, stored))
                continue
            path, file = part.donors[extent.donor], files[extent.donor]
            if isinstance(extent, Repair):
                at_body = extent.pos + ENTRY_HEADER_SIZE - part.base
                body = read_existing(path, at_body, extent.size - ENTRY_HEADER_SIZE)
                yield _reserved(target, encode_entry(extent.index, extent.term, extent.pos, body))
                continue
            for start in range(extent.start, extent.end, _COPY_BYTES):
                data = target.reserve(min(_COPY_BYTES, extent.end - start))
                with source_errors(path):
                    count = file.read_into(start - part.base, data)
                if count != len(data):
                    raise StoreError(f"{path}: the file has become shorter: salvage again")
                yield data
            header = ENTRY_HEADER_SIZE if part.source == DLEDGER else 0
            if part.has_messages:
                head = read_existing(path, extent.last_pos + header - part.base, STORED_SIZE)
                if len(head) == STORED_SIZE and 0 < store_timestamp(head, 0) <= MAX_TIMESTAMP:
                    stored = store_timestamp(head, 0)
    rest = part.base + part.size - at
    if part.has_blank and rest >= MIN_BLANK_SIZE:
        blank = encode_blank(rest) if part.source == DLEDGER else encode_message_blank(rest)
        yield _reserved(target, blank)


def _opened(path: str) -> OpenFile:
    with source_errors(path):
        return open_file(path)


def _reserved(target: DirectFile, data: bytes) -> memoryview:
    memory = target.reserve(len(data))
    memory[:] = data
    return memory


def _read_back(
    part: SegmentPart, file: DirectFile, ranges: Sequence[WrittenRange], stream: ChecksumFile
) -> tuple[int, int]:
    """Read the file, and write the units of its entries to a stream.

    Returns the numbers of entries, and of those that are damaged as planned.

    Raises StoreError unless the file has the written bytes, which are the planned entries, all intact.
    """
    at, log_end = start_of(part.extents[0]), end_of(part.extents[-1])
    rows = problems = 0
    # An entry that begins in a range can end after it.
    for written, window in file.read_back(part.path, ranges, lambda end: _limited(part, end + MAX_ENTRY_SIZE)):
        stop = part.base + _limited(part, written.end)
        if at < stop:
            batch, units = _entries(part, window, at, stop)
            damaged = np.flatnonzero(is_damage(batch["problemCode"])).tolist()
            at = _checked(part, batch, damaged, at)
            problems += len(damaged)
            rows += len(batch)
            save_units(stream, units._replace(index_units=index_units(batch)) if part.source == DLEDGER else units)
    if at != log_end:
        raise _unplanned(part, f"entries up to {at} of {log_end}")
    return rows, problems


def _limited(part: SegmentPart, offset: int) -> int:
    """An offset in the file, at most that of the log's end."""
    return min(offset, end_of(part.extents[-1]) - part.base)


def _entries(part: SegmentPart, window: FileWindow, start: int, end: int) -> tuple[pa.RecordBatch, DispatchedUnits]:
    """The rows that begin at positions ``[start, end)``, and their units for queues and keys."""
    size = window.end - window.start
    segment = Segment.local(window.path, segment_name(part.base), part.base + window.start, size, part.source)
    engine = engine_of(part.engine, segment)
    rules = part.units
    columns = _CHECKED_COLUMNS if rules is None else tuple(dict.fromkeys((*_CHECKED_COLUMNS, *DISPATCHED_COLUMNS)))
    request = ScanRequest(segment, start, end, columns)
    batch = all_rows(engine, request)
    if rules is None:
        return batch, NO_UNITS
    count = len(batch)
    if part.committed is not None:
        count = int(np.searchsorted(values_of(batch["index"]), part.committed, "right"))
    return batch, units_of_chunk(rules, part_of(engine, request, batch.slice(0, count), rules))


def _checked(part: SegmentPart, batch: pa.RecordBatch, damaged: Sequence[int], at: int) -> int:
    """The end of the last row. Raises StoreError unless the rows are contiguous from `at`, and as intact as planned."""
    pos = values_of(batch["pos"])
    kept_so = [each for each in part.extents if isinstance(each, Piece) and each.is_suspect]
    for row in damaged:
        if not any(piece.start <= pos[row] < piece.end for piece in kept_so):
            raise _unplanned(part, f"at {pos[row]}: {batch['problem'][row]}")
    ends = pos + values_of(batch["size"])
    if not len(batch) or pos[0] != at or (pos[1:] != ends[:-1]).any():
        raise _unplanned(part, f"no contiguous entries from {at}")
    return int(ends[-1])


def _unplanned(part: SegmentPart, found: str) -> StoreError:
    return StoreError(
        f"{part.path}: expected the planned entries in the new file, found {found}: a source changed meanwhile, or "
        "the disk is damaged: salvage again"
    )
