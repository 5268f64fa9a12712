"""Messages that brokers sent, as Arrow batches: the scan of a log decodes them, from a file in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.pulls import Pulled, Puller, PullSettings, QueueRange
from pyspark_dledger.common.memory_file import memory_file
from pyspark_dledger.errors import MalformedError
from pyspark_dledger.format.columns import COLUMNS, Column
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.scan.bodies import expand
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment

BROKER = Column("broker", pa.string(), "row", "name of the broker")
CLUSTER_COLUMNS = (
    BROKER,
    *(column for column in COLUMNS if column.origin == "message" and column.name != "kind"),
)
"""The columns of messages that a broker sent: those of a log that are not about its entries."""

# Bytes that are decoded together: batches get a size that suits Spark.
_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ClusterScan:
    """How all parts of a read are read. `request` is the template of scans, without the column broker."""

    address: ClusterAddress
    request: ScanRequest
    engine: str
    pulls: PullSettings = field(default_factory=PullSettings)
    prefers_slave: bool = False


@dataclass(frozen=True)
class ClusterPartition:
    """Ranges of queues that one task reads."""

    scan: ClusterScan
    ranges: tuple[QueueRange, ...]


class _Chunk(NamedTuple):
    """Messages of one broker."""

    broker: str
    parts: list[memoryview]


def read_cluster_partition(partition: ClusterPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in the order of each queue.

    Raises ClusterError if a broker cannot be reached or sends other bytes, DataLossError for messages that expired
    since they were planned, unless failOnDataLoss is false, and MalformedError with mode=FAILFAST.
    """
    scan = partition.scan
    with Cluster(scan.address, scan.prefers_slave) as cluster, memory_file() as fill:
        puller = Puller(cluster, scan.pulls)
        try:
            for chunk in _chunks(puller.pull(partition.ranges)):
                yield from _rows(chunk, fill(chunk.parts), scan)
        finally:
            puller.close()


def _chunks(pulled: Iterable[Pulled]) -> Iterator[_Chunk]:
    for broker, messages in itertools.groupby(pulled, key=lambda item: item.queue.broker):
        parts: list[memoryview] = []
        size = 0
        for item in messages:
            parts.append(item.data)
            size += len(item.data)
            if size >= _CHUNK_BYTES:
                yield _Chunk(broker, parts)
                parts, size = [], 0
        if parts:
            yield _Chunk(broker, parts)


def _rows(chunk: _Chunk, path: str, scan: ClusterScan) -> Iterator[pa.RecordBatch]:
    size = sum(map(len, chunk.parts))
    segment = Segment.local(path, chunk.broker, 0, size, COMMITLOG, check_pos=False)
    part = replace(scan.request, segment=segment, start=0, end=size, end_is_boundary=True)
    try:
        for batch in expand(get_engine(scan.engine).scan(part), part):
            names = pa.repeat(pa.scalar(chunk.broker), batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, names], [*batch.schema.names, BROKER.name])
    except MalformedError as error:
        raise MalformedError(str(error).replace(path, f"broker {chunk.broker}")) from None
