"""The reference engine: the calls of `engine.Engine` in pure Python, written to be read.

`scan.walk` makes extents of a segment's bytes, `scan.row_values` makes rows of extents, and this module makes Arrow
batches of rows. Files are read in bounded windows. A file that shrinks or cannot be read ends in a corrupt row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.java_text import decode_utf8, java_hash
from pyspark_dledger.errors import DLedgerError, StoreError
from pyspark_dledger.format import codec, json_text, message
from pyspark_dledger.format.columns import SCANNED_COLUMNS, arrow_schema
from pyspark_dledger.format.dispatched_rows import dispatched_rows as dispatched_rows
from pyspark_dledger.format.encode import entry_encoding, identities, put_messages, put_rows
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.facts import PROBLEM_COLUMNS
from pyspark_dledger.format.message import CopiedMessages, compression_type
from pyspark_dledger.format.scan.frames import Frames, frames_of
from pyspark_dledger.format.scan.row_values import COLUMN_READERS, Row, first_problem, malformed, row_test
from pyspark_dledger.format.scan.segment_file import FileBytes, FileShrunk, SegmentFile
from pyspark_dledger.format.scan.survey import take_survey
from pyspark_dledger.format.scan.walk import Walk, find_log_end, find_splits
from pyspark_dledger.format.spec import Compressed, LogEnd, ScanRequest, Segment, Survey, SurveyRequest, TermRun

if TYPE_CHECKING:
    from pyspark_dledger.format.message import Longs

NAME = "python"

map_file = FileBytes

MAX_TERM_RUNS = 1_000_000
# With more bytes, a batch's 32-bit offsets could overflow.
MAX_BATCH_BYTES = 2**29
_MESSAGE_FILTERS = ("kind", "topic", "tags", "queue_id", "store_timestamp")

pack_bodies = entry_encoding.pack_bodies
unpack_bodies = entry_encoding.unpack_bodies
encode_entries = entry_encoding.encode_entries
check_entries = entry_encoding.check_entries
find_torn = entry_encoding.find_torn
find_damaged = entry_encoding.find_damaged
find_wrong_body = entry_encoding.find_wrong_body
write_body_crcs = entry_encoding.write_body_crcs
new_ordinals = put_rows.new_ordinals
encode_messages = put_rows.encode_messages
read_puts = put_messages.read_puts
stamp_puts = put_messages.stamp_puts
number_puts = put_messages.number_puts
locate_puts = put_messages.locate_puts
patch_physical_offsets = put_messages.patch_physical_offsets
new_identity_table = identities.IdentityTable
new_identity_filter = identities.IdentityFilter
json_lines = json_text.json_lines

_Result = TypeVar("_Result")


class _Needs(NamedTuple):
    """The parts of a row that a request needs besides position and header."""

    message: bool
    problem: bool
    bodies: bool
    compressed: bool

    @classmethod
    def of(cls, request: ScanRequest) -> _Needs:
        columns = set(request.columns)
        strict = request.mode != "PERMISSIVE"
        filtered = any(getattr(request.filters, name) is not None for name in _MESSAGE_FILTERS)
        return cls(
            message=strict or filtered or any(SCANNED_COLUMNS[name].origin == "message" for name in columns),
            problem=strict or not columns.isdisjoint(PROBLEM_COLUMNS),
            bodies=not columns.isdisjoint({"body", "entryBody"}),
            compressed=strict or not columns.isdisjoint({"body", *PROBLEM_COLUMNS}),
        )


class _Record(NamedTuple):
    """A row of the result: its values in the order of the columns, and its compressed body, if any.

    ``cost`` is about the number of bytes that it adds to its batch.
    """

    cost: int
    values: tuple[Any, ...]
    compressed: tuple[int, bytes, int] | None


def scan(request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
    with SegmentFile(request.segment) as data:
        records = _records(data, request)
        batch: list[_Record] = []
        size = 0
        max_bytes = min(request.max_batch_bytes, MAX_BATCH_BYTES)
        failure: DLedgerError | None = None
        while True:
            try:
                record = next(records, None)
            except DLedgerError as error:
                record, failure = None, error
            if record is None:
                break
            if batch and (len(batch) >= request.max_batch_rows or size + record.cost > max_bytes):
                yield _to_arrow(request, batch)
                batch, size = [], 0
            batch.append(record)
            size += record.cost
        if batch:
            yield _to_arrow(request, batch)
        if failure:
            raise failure


def _records(data: SegmentFile, request: ScanRequest) -> Iterator[_Record]:
    passes = row_test(request.filters)
    needs = _Needs.of(request)
    frames = frames_of(data)
    pos = request.start
    while True:
        try:
            for span in Walk(frames, pos, min(request.end, request.segment.end), request.end_is_boundary):
                row = Row(data, span, request.committed_index)
                record = _record(row, request, needs) if passes(row) else None
                pos = span.end
                if record:
                    yield record
            return
        except FileShrunk:
            continue  # from `pos` on, with the rest of the file


def _record(row: Row, request: ScanRequest, needs: _Needs) -> _Record | None:
    """The values of a row, or None if the mode drops it."""
    problem = first_problem(row, request.verify_crc) if needs.problem else None
    if problem and request.mode == "FAILFAST":
        raise malformed(request, row.kind, row.span.pos, problem.sentence(row.segment.name))
    if problem and request.mode == "DROPMALFORMED":
        return None
    known = problem.columns(row.segment.name) if problem else {}
    values = tuple(COLUMN_READERS[name](row) if name in COLUMN_READERS else known.get(name) for name in request.columns)
    message = row.message
    compressed = None
    if needs.compressed and message and message.has_compressed_body:
        compressed = compression_type(message.sys_flag), message.body, row.span.pos
    return _Record(_cost(row, needs, compressed is not None), values, compressed)


def _cost(row: Row, needs: _Needs, has_compressed: bool) -> int:
    if row.span.problem:
        return 0
    if needs.bodies:
        return row.span.size
    if not needs.message or not row.message:
        return 0
    left_out = 0 if has_compressed else row.message.body_length
    return row.message.total_size - left_out


def _to_arrow(request: ScanRequest, records: list[_Record]) -> tuple[pa.RecordBatch, list[Compressed]]:
    schema = arrow_schema(request.columns)
    compressed = [
        Compressed(row, kind, stored, pos)
        for row, record in enumerate(records)
        if record.compressed
        for kind, stored, pos in [record.compressed]
    ]
    if not request.columns:
        rows = pa.Array.from_buffers(pa.struct([]), len(records), [None])
        return pa.RecordBatch.from_struct_array(rows), compressed
    columns = zip(*(record.values for record in records), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), compressed


def _with_file(segment: Segment, function: Callable[[SegmentFile], _Result], needs_all: bool = False) -> _Result:
    """The result of ``function`` for an open segment. It is called again if the file shrinks meanwhile.

    Bytes that cannot be read are an error if the result `needs_all`.
    """
    with SegmentFile(segment) as data:
        while True:
            try:
                return function(data)
            except FileShrunk:
                if needs_all:
                    data.check()


def _with_frames(segment: Segment, function: Callable[[Frames], _Result], needs_all: bool = False) -> _Result:
    return _with_file(segment, lambda data: function(frames_of(data)), needs_all)


def log_end(segment: Segment, start: int, search_all: bool) -> LogEnd:
    return _with_frames(segment, lambda frames: find_log_end(frames, start, search_all), needs_all=True)


def split(segment: Segment, start: int, end: int, target_bytes: int) -> list[int]:
    return _with_frames(segment, lambda frames: find_splits(frames, start, end, max(target_bytes, 1)))


def seek(segment: Segment, start: int, end: int, index: int) -> int:
    def first(frames: Frames) -> int:
        for span in Walk(frames, start, end):
            if span.frame and span.frame.header and span.frame.header.index >= index:
                return span.pos
        return end

    return _with_frames(segment, first, needs_all=True)


def term_runs(segment: Segment, start: int, end: int) -> list[TermRun]:
    return _with_frames(segment, lambda frames: _term_runs(frames, start, end), needs_all=True)


def _term_runs(frames: Frames, start: int, end: int) -> list[TermRun]:
    runs: list[TermRun] = []
    for span in Walk(frames, start, end):
        if not span.frame or not span.frame.header:
            continue
        header = span.frame.header
        if runs and runs[-1].term == header.term:
            runs[-1] = runs[-1]._replace(entries=runs[-1].entries + 1)
            continue
        if len(runs) >= MAX_TERM_RUNS:
            raise StoreError(f"{frames.segment.path}: expected at most {MAX_TERM_RUNS} changes of term, found more")
        runs.append(TermRun(header.term, header.index, span.pos, 1))
    return runs


def survey(request: SurveyRequest) -> Survey:
    return _with_frames(request.segment, lambda frames: take_survey(request, frames))


def copy_messages(
    segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
) -> CopiedMessages:
    size, outcomes = _with_file(segment, lambda file: message.copy_messages(file, starts, sizes, into, position))
    return CopiedMessages(size, np.frombuffer(outcomes, np.uint8))


def crc32(data: Buffer, before: int = 0) -> int:
    return codec.crc32(bytes(data), before)


def java_hashes(strings: pa.StringArray) -> npt.NDArray[np.int32]:
    values = strings.cast(pa.binary()).to_pylist()
    return np.array([0 if value is None else java_hash(decode_utf8(value)) for value in values], np.int32)
