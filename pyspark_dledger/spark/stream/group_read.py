"""A range of a live group's committed entries as rows: what one task of a stream reads, all by itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.tail.tail import report_loss
from pyspark_dledger.spark.group_address import GroupAddress
from pyspark_dledger.spark.stream.group_log import GroupLog, begin_of

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes of one request; a node answers with no more than this.
_REQUEST_BYTES = 4 * 1024 * 1024
# Bytes that are decoded together, so that Arrow batches reach the size that suits Spark.
_CHUNK_BYTES = 16 * 1024 * 1024
_OWN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True)
class GroupPartition:
    """What one task reads: entries ``[first_index, last_index]``. ``scan`` is the request for any part of them.

    ``number`` tells the tasks of a micro-batch apart: each begins with another member.
    """

    address: GroupAddress
    first_index: int
    last_index: int
    scan: ScanRequest
    engine: str
    fail_on_data_loss: bool = True
    number: int = 0


@dataclass(frozen=True)
class _Chunk:
    """Consecutive entries without a gap between them, as they stand in the log from ``pos`` on."""

    pos: int
    parts: tuple[Buffer, ...]

    @property
    def size(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    @property
    def end(self) -> int:
        return self.pos + self.size


def scan_template(columns: tuple[str, ...], options: ReadOptions) -> ScanRequest:
    """What is wanted of any range of a stream: `columns` of the rows that pass the options' filters."""
    return ScanRequest(
        segment=Segment("", "", 0, 0, DLEDGER),
        start=0,
        end=0,
        columns=columns,
        # Of a stream startingTimestamp says where it begins.
        filters=replace(option_filters(options), store_timestamp=None),
        mode=options.mode,
        verify_crc=options.verify_crc,
        max_body_bytes=options.max_body_bytes,
        max_batch_rows=options.max_batch_rows,
        max_batch_bytes=options.max_batch_bytes,
        end_is_boundary=True,
    )


def read_group_partition(partition: GroupPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of the log.

    Raises GroupError where no member answers, DataLossError for entries that have expired since they were planned,
    unless failOnDataLoss is false, and MalformedError with mode=FAILFAST.
    """
    with GroupLog(partition.address, partition.number) as group:
        for chunk in _ahead(_joined(_pieces(group, partition))):
            yield from _rows(chunk, partition)


def _pieces(group: GroupLog, partition: GroupPartition) -> Iterator[_Chunk]:
    """The answers of the members, without what lies behind the partition."""
    index = partition.first_index
    while index <= partition.last_index:
        try:
            found = group.read(index, _REQUEST_BYTES)
        except IndexRangeError as error:
            index = _index_behind_loss(group, partition, index, error)
            continue
        data = memoryview(found.data)
        header = decode_entry_header(bytes(data[:ENTRY_HEADER_SIZE]))
        if header.index != index:
            raise StoreError(
                f"group {group.group}: expected entry {index}, found entry {header.index}: run `dledger verify` on the "
                "stores of its members"
            )
        count = min(found.count, partition.last_index - index + 1)
        yield _Chunk(header.pos, (data[: _size_of(data, count)] if count < found.count else data,))
        index += count


def _index_behind_loss(group: GroupLog, partition: GroupPartition, index: int, error: IndexRangeError) -> int:
    """Where to go on when `index` is not to be had: at the lowest index that a member has."""
    begin = begin_of(group.statuses())
    if begin <= index:
        raise error
    lost = f"entries {index} to {min(begin - 1, partition.last_index)}"
    report_loss(
        f"group {group.group}: expected {lost}, found them expired at every member",
        f"reading goes on with index {begin}: they are skipped",
        partition.fail_on_data_loss,
    )
    return begin


def _size_of(data: memoryview, count: int) -> int:
    """How many bytes the first `count` entries take."""
    end = 0
    for _ in range(count):
        end += decode_entry_header(bytes(data[end : end + ENTRY_HEADER_SIZE])).size
    return end


def _joined(pieces: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Neighbouring pieces together, up to about `_CHUNK_BYTES`; where a file of the log ends there is a gap."""
    joined: _Chunk | None = None
    for piece in pieces:
        if joined is not None and piece.pos == joined.end and joined.size + piece.size <= _CHUNK_BYTES:
            joined = replace(joined, parts=joined.parts + piece.parts)
            continue
        if joined is not None:
            yield joined
        joined = piece
    if joined is not None:
        yield joined


def _ahead(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """The same, each fetched while the one before it is decoded and sent on."""
    with ThreadPoolExecutor(1, "dledger-read-ahead") as thread:
        coming = thread.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = thread.submit(next, chunks, None)
            yield chunk


def _rows(chunk: _Chunk, partition: GroupPartition) -> Iterator[pa.RecordBatch]:
    from pyspark_dledger.format.scan.bodies import expand

    with _as_file(chunk.parts) as path:
        segment = Segment(path, partition.address.group, chunk.pos, chunk.size, DLEDGER)
        part = replace(
            partition.scan,
            segment=segment,
            start=segment.base,
            end=segment.end,
            committed_index=partition.last_index,
        )
        yield from expand(get_engine(partition.engine).scan(part), part)


@contextmanager
def _as_file(parts: tuple[Buffer, ...]) -> Iterator[str]:
    """A path where the scans find these bytes: a file in memory where the system has such, else a temporary one."""
    if hasattr(os, "memfd_create") and _OWN_FILES.is_dir():
        with open(os.memfd_create("dledger-chunk", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            _write_all(memory.fileno(), parts)
            yield str(_OWN_FILES / str(memory.fileno()))
    else:
        with tempfile.NamedTemporaryFile(prefix="dledger-chunk-", buffering=0) as file:
            _write_all(file.fileno(), parts)
            yield file.name


def _write_all(descriptor: int, parts: tuple[Buffer, ...]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
