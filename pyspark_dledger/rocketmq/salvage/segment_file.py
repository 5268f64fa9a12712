"""Writes one file of a restored log: copies its pieces from their donors, adds fillers, and reads it back.

As Java writes it: entries from the start, a blank where the log continues in the next file, and zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_dledger.common.durable import sync_file
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.codec import encode_blank, encode_entry, record_dtype, record_struct
from pyspark_dledger.format.column_values import values_of
from pyspark_dledger.format.dispatched_rows import DISPATCHED_COLUMNS
from pyspark_dledger.format.layout import (
    BLANK,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    MAX_ENTRY_SIZE,
    MESSAGE_MAGIC_BLANK,
    MIN_BLANK_SIZE,
    segment_name,
)
from pyspark_dledger.format.message import STORED_SIZE, store_timestamp
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.log.copies.problems import is_damage
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import OpenFile, open_file
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.salvage.lost_entries import LostEntry
from pyspark_dledger.log.salvage.pieces import Piece
from pyspark_dledger.log.salvage.repairs import Repair
from pyspark_dledger.log.salvage.restored_log import Extent, end_of, start_of
from pyspark_dledger.rocketmq.dispatch.log_part import all_rows, part_of
from pyspark_dledger.rocketmq.jobs.direct_file import DirectFile, FileWindow
from pyspark_dledger.rocketmq.jobs.manifest import FileReport, PartReport
from pyspark_dledger.rocketmq.jobs.target_folder import (
    ChecksumFile,
    left_path,
    new_file,
    read_back_error,
    source_errors,
)
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, UnitSpec, units_of_chunk
from pyspark_dledger.rocketmq.salvage.fillers import entry_filler, message_fillers
from pyspark_dledger.rocketmq.salvage.left_units import index_units, save_left

_COPY_BYTES = 1024 * 1024
_SPAN_BYTES = 32 * 1024 * 1024
_BLANK = record_struct(BLANK)
_CHECKED_COLUMNS = ("pos", "size", "index", "term", "problem", "problemCode")
_NO_UNITS = np.empty(0, record_dtype(INDEX_UNIT))


@dataclass(frozen=True)
class FilePart:
    """A file of the restored log: its extents by position, and the path of each donor's file by its number.

    ``path`` is relative to the target. The log continues in the next file if ``has_blank``. ``units`` is what to
    extract for queues and keys, up to the index ``committed``; None if they are not built.
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
    units: UnitSpec | None = field(default=None, repr=False)


class _Span(NamedTuple):
    """Bytes ``[start, end)`` of a file; ``crc`` is the CRC-32 of the file up to ``end``."""

    start: int
    end: int
    crc: int


def write_file(part: FilePart, number: int, target: Path) -> PartReport:
    """Write a file, and the units of its entries for `left_units.load_left`, and read the file back.

    Raises StoreError if a source changed since the plan or the disk returns other bytes, OSError.
    """
    with ExitStack() as opened:
        temporary = opened.enter_context(new_file(target, part.path))
        file = opened.enter_context(DirectFile(temporary))
        spans = list(_copied(part, file))
        file.finish(part.size)
        unit_file = opened.enter_context(new_file(target, left_path(number)))
        with ChecksumFile(unit_file) as stream:
            rows, problems = _read_back(part, file, spans, stream)
        sync_file(unit_file)
        left = FileReport(left_path(number), unit_file.stat().st_size, stream.crc32, 0)
    lost = sum(isinstance(extent, LostEntry) for extent in part.extents)
    file_written = FileReport(part.path, part.size, spans[-1].crc, rows)
    return PartReport(number, rows, lost, (), (file_written,), part.size, problems=problems, left=left)


def _copied(part: FilePart, file: DirectFile) -> Iterator[_Span]:
    """Write the file up to its zeros. Returns its spans."""
    start = end = crc = 0
    for data in _contents(part, file):
        crc = crc32(data, crc)
        file.advance(len(data))
        end += len(data)
        if end - start >= _SPAN_BYTES:
            yield _Span(start, end, crc)
            start = end
    if start < end:
        yield _Span(start, end, crc)


def _contents(part: FilePart, target: DirectFile) -> Iterator[memoryview]:
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
                if len(head) == STORED_SIZE:
                    stored = max(store_timestamp(head, 0), 0) or stored
    rest = part.base + part.size - at
    if part.has_blank and rest >= MIN_BLANK_SIZE:
        blank = encode_blank(rest) if part.source == DLEDGER else _BLANK.pack(rest, MESSAGE_MAGIC_BLANK)
        yield _reserved(target, blank)


def _opened(path: str) -> OpenFile:
    with source_errors(path):
        return open_file(path)


def _reserved(target: DirectFile, data: bytes) -> memoryview:
    memory = target.reserve(len(data))
    memory[:] = data
    return memory


def _read_back(part: FilePart, file: DirectFile, spans: Sequence[_Span], stream: ChecksumFile) -> tuple[int, int]:
    """Read the file, and write the units of its entries to a stream.

    Returns the numbers of entries, and of those that are damaged as planned.

    Raises StoreError unless the file has the written bytes, which are the planned entries, all intact.
    """
    at, log_end = start_of(part.extents[0]), end_of(part.extents[-1])
    rows = problems = crc = 0
    # An entry that begins in a span can end after it.
    windows = file.read([(span.start, max(span.end, _limited(part, span.end + MAX_ENTRY_SIZE))) for span in spans])
    for span, window in zip(spans, windows, strict=True):
        crc = crc32(window.data(span.start, span.end), crc)
        if crc != span.crc or window.end < span.end:
            raise read_back_error(part.path, f"CRC-32 {span.crc:08x} up to {span.end}", f"{crc:08x}")
        stop = part.base + _limited(part, span.end)
        if at < stop:
            batch, units = _entries(part, window, at, stop)
            damaged = np.flatnonzero(is_damage(batch["problemCode"])).tolist()
            at = _checked(part, batch, damaged, at)
            problems += len(damaged)
            rows += len(batch)
            save_left(stream, index_units(batch) if part.source == DLEDGER else _NO_UNITS, units)
    if at != log_end:
        raise _unplanned(part, f"entries up to {at} of {log_end}")
    return rows, problems


def _limited(part: FilePart, offset: int) -> int:
    """An offset in the file, at most that of the log's end."""
    return min(offset, end_of(part.extents[-1]) - part.base)


def _entries(part: FilePart, window: FileWindow, start: int, end: int) -> tuple[pa.RecordBatch, DispatchedUnits | None]:
    """The rows that begin at positions ``[start, end)``, and their units for queues and keys."""
    size = window.end - window.start
    segment = Segment.local(window.path, segment_name(part.base), part.base + window.start, size, part.source)
    engine = engine_of(part.engine, segment)
    spec = part.units
    columns = _CHECKED_COLUMNS if spec is None else tuple(dict.fromkeys((*_CHECKED_COLUMNS, *DISPATCHED_COLUMNS)))
    request = ScanRequest(segment, start, end, columns)
    batch = all_rows(engine, request)
    if spec is None:
        return batch, None
    count = len(batch)
    if part.committed is not None:
        count = int(np.searchsorted(values_of(batch["index"]), part.committed, "right"))
    return batch, units_of_chunk(spec, part_of(engine, request, batch.slice(0, count), **spec.arguments))


def _checked(part: FilePart, batch: pa.RecordBatch, damaged: Sequence[int], at: int) -> int:
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


def _unplanned(part: FilePart, found: str) -> StoreError:
    return StoreError(
        f"{part.path}: expected the planned entries in the new file, found {found}: a source changed meanwhile, or "
        "the disk is damaged: salvage again"
    )
