"""A range of a live group's committed entries: what one task reads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_dledger.common.memory_file import memory_file
from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.log.gaps import OF_STREAMS, report_loss
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.group.group_log import GroupEntry, GroupLog, begin_index, group_entry

if TYPE_CHECKING:
    import pyarrow as pa

# The most that a node returns for one request, in bytes.
_REQUEST_BYTES = 4 * 1024 * 1024
# Bytes that are decoded together: Arrow batches get a size that suits Spark.
_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class GroupScan:
    """How all parts of a read are read. `request` is the template for scans; a stream advises on its checkpoint."""

    address: GroupAddress
    request: ScanRequest
    engine: str
    fail_on_data_loss: bool = True
    is_stream: bool = True


@dataclass(frozen=True)
class GroupPartition:
    """Entries from `first_index` to `last`, as they were when the read was planned.

    Tasks of different `number` begin with different members.
    """

    scan: GroupScan
    first_index: int
    last: GroupEntry
    number: int = 0

    @property
    def last_index(self) -> int:
        return self.last.index


@dataclass(frozen=True)
class _Chunk:
    """Bytes of consecutive entries without a gap, from position `pos` of the log on."""

    pos: int
    parts: tuple[Buffer, ...]

    @property
    def size(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    @property
    def end(self) -> int:
        return self.pos + self.size


def read_group_partition(partition: GroupPartition) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition, in the order of the log.

    Raises GroupError if no member responds, DataLossError for entries that expired since they were planned, unless
    failOnDataLoss is false, StoreError for other entries than planned, and MalformedError with mode=FAILFAST.
    """
    with GroupLog(partition.scan.address, partition.number) as group, memory_file() as fill:
        for chunk in _prefetched(_merged(_fetch(group, partition))):
            yield from _rows(chunk, fill(chunk.parts), partition)


def _fetch(group: GroupLog, partition: GroupPartition) -> Iterator[_Chunk]:
    """Yield the entries of the partition as members return them."""
    index = partition.first_index
    while index <= partition.last_index:
        try:
            found = group.read(index, _REQUEST_BYTES)
        except IndexRangeError as error:
            index = _index_after_loss(group, partition, index, error)
            continue
        data = memoryview(found.data)
        header = decode_entry_header(bytes(data[:ENTRY_HEADER_SIZE]))
        if header.index != index:
            raise StoreError(
                f"{group.name}: expected entry {index}, found entry {header.index}: run `dledger verify` on the stores "
                "of its members"
            )
        count = min(found.count, partition.last_index - index + 1)
        if index + count > partition.last_index:
            data = _up_to_last(group, partition, data, count)
        yield _Chunk(header.pos, (data,))
        index += count


def _up_to_last(group: GroupLog, partition: GroupPartition, data: memoryview, count: int) -> memoryview:
    """Return the first `count` entries of `data`. Raises StoreError if the last one is not the one that was planned."""
    begin = _size_of(data, count - 1)
    found = group_entry(data[begin:])
    if found != partition.last:
        raise StoreError(
            f"{group.name}: expected {partition.last} as planned, found {found}: another group has its members' "
            "addresses; correct peers, or plan the read again"
        )
    return data[: begin + found.end - found.pos]


def _index_after_loss(group: GroupLog, partition: GroupPartition, index: int, error: IndexRangeError) -> int:
    """Return the lowest index that a member has, where `index` has expired."""
    begin = begin_index(group.statuses())
    if begin <= index:
        raise error
    lost = f"entries {index} to {min(begin - 1, partition.last_index)}"
    report_loss(
        f"{group.name}: expected {lost}, found them expired at every member",
        f"reading continues with index {begin}; they are skipped",
        partition.scan.fail_on_data_loss,
        OF_STREAMS if partition.scan.is_stream else "plan the read again",
    )
    return begin


def _size_of(data: memoryview, count: int) -> int:
    """Return the size of the first `count` entries in bytes."""
    end = 0
    for _ in range(count):
        end += decode_entry_header(bytes(data[end : end + ENTRY_HEADER_SIZE])).size
    return end


def _merged(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Merge adjacent chunks up to about `_CHUNK_BYTES`. At the end of each file the log has a gap."""
    merged: _Chunk | None = None
    for chunk in chunks:
        if merged is not None and chunk.pos == merged.end and merged.size + chunk.size <= _CHUNK_BYTES:
            merged = replace(merged, parts=merged.parts + chunk.parts)
            continue
        if merged is not None:
            yield merged
        merged = chunk
    if merged is not None:
        yield merged


def _prefetched(chunks: Iterator[_Chunk]) -> Iterator[_Chunk]:
    """Fetch each chunk while the one before it is decoded."""
    with ThreadPoolExecutor(1, "dledger-read-ahead") as thread:
        fetched = thread.submit(next, chunks, None)
        while (chunk := fetched.result()) is not None:
            fetched = thread.submit(next, chunks, None)
            yield chunk


def _rows(chunk: _Chunk, path: str, partition: GroupPartition) -> Iterator[pa.RecordBatch]:
    from pyspark_dledger.format.scan.bodies import expand

    scan = partition.scan
    segment = Segment.local(path, scan.address.group, chunk.pos, chunk.size, DLEDGER)
    part = replace(
        scan.request,
        segment=segment,
        start=segment.base,
        end=segment.end,
        committed_index=partition.last_index,
        end_is_boundary=True,
    )
    yield from expand(get_engine(scan.engine).scan(part), part)
