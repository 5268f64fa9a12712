"""The readers of a running cluster, batch and stream. Tasks connect to brokers themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.cluster.bounds import end_offsets, find_queues, partitioned, ranges_between, start_offsets
from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.offsets import ClusterOffsets, from_checkpoint
from pyspark_dledger.cluster.options import ClusterOptions
from pyspark_dledger.cluster.rows import BROKER, ClusterPartition, ClusterScan, read_cluster_partition
from pyspark_dledger.cluster.tail import ClusterTail
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import option_filters
from pyspark_dledger.log.plan import scan_template
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.batch_reader import PartReader
from pyspark_dledger.spark.schema import CLUSTER
from pyspark_dledger.spark.stream.stream_reader import StreamReader


class ClusterReader(PartReader, DataSourceReader):
    """Reads what brokers have when the read is planned."""

    def __init__(self, options: ClusterOptions, schema: StructType) -> None:
        super().__init__(schema, CLUSTER)
        self.options = options

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the messages. Raises ClusterError if the cluster cannot be reached."""
        options = self.options
        scan = _scan(options, self.columns, "plan the read again")
        with Cluster(scan.address, options.prefers_slave) as cluster:
            queues = find_queues(cluster, options)
            ranges = ranges_between(start_offsets(cluster, options, queues), end_offsets(cluster, options, queues))
        parts = partitioned(ranges, options.read.min_partitions)
        return [InputPartition(ClusterPartition(scan, part)) for part in parts]

    def read_part(self, part: ClusterPartition) -> Iterator[pa.RecordBatch]:
        return read_cluster_partition(part)


class ClusterStreamReader(StreamReader[ClusterOffsets]):
    """Reads new messages of the cluster's queues."""

    def __init__(self, options: ClusterOptions, schema: StructType) -> None:
        super().__init__(options.read, schema, CLUSTER)
        self.cluster_options = options

    def offset(self, value: dict[str, Any] | None) -> ClusterOffsets:
        return from_checkpoint(value)

    def open_tail(self) -> ClusterTail:
        """See `StreamReader.open_tail`. The tail connects at its first call."""
        return ClusterTail(_scan(self.cluster_options, self.columns), self.cluster_options, self.tells_start)

    def read_part(self, part: ClusterPartition) -> Iterator[pa.RecordBatch]:
        return read_cluster_partition(part)

    def commit(self, end: dict[str, Any]) -> None:
        """Report the offsets to the brokers, if a consumer group is given."""
        if isinstance(self.tail, ClusterTail):
            self.tail.report_read(self.offset(end))


def _scan(options: ClusterOptions, columns: tuple[str, ...], remedy: str | None = None) -> ClusterScan:
    filters = option_filters(options.read)
    # Queues and times are chosen by their offsets.
    filters = Filters(tags=filters.tags)
    request = scan_template(tuple(name for name in columns if name != BROKER.name), options.read, filters)
    pulls = options.pulls if remedy is None else replace(options.pulls, remedy=remedy)
    return ClusterScan(options.address, request, get_engine(options.read.engine).NAME, pulls, options.prefers_slave)
