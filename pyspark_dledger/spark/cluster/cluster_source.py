"""The Spark data source ``rocketmq``. It imports nothing but pyspark; the methods import the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_dledger.spark import NEEDS_PYSPARK
from pyspark_dledger.spark.plain_errors import plain_errors

try:
    from pyspark.sql.datasource import DataSource
except ImportError as error:
    raise ImportError(f"the data source rocketmq {NEEDS_PYSPARK}") from error

if TYPE_CHECKING:
    from pyspark.sql import datasource
    from pyspark.sql.types import StructType

    from pyspark_dledger.spark.cluster.cluster_write_options import ClusterWriteOptions


class RocketMQDataSource(DataSource):
    """Read and write messages of a running RocketMQ cluster: one row per message.

    Name
    ----
    ``rocketmq``

    Options
    -------
    All options are in `docs/rocketmq.md`. The most used ones:

    - ``nameServer``: ``HOST:PORT;HOST:PORT``
    - ``topic``: comma-separated; or ``topicPattern``
    - ``startingOffsets``, ``endingOffsets``: ``earliest``, ``latest``, ``committed`` or offsets of queues as JSON
    - ``startingTimestamp``: instead of startingOffsets
    - ``maxOffsetsPerTrigger``: maximum messages of a micro-batch

    Modes
    -----
    Reads and writes, batch and streaming. Writes are at least once.

    Examples
    --------
    >>> orders = spark.read.format("rocketmq").option("nameServer", "10.0.0.1:9876").option("topic", "Orders").load()

    >>> orders.write.format("rocketmq").mode("append").option("nameServer", "10.0.0.1:9876").save()

    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @plain_errors
    def schema(self) -> StructType:
        """Return the schema. Nothing is connected."""
        from pyspark_dledger.spark.schema import cluster_schema

        return cluster_schema()

    @plain_errors
    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        from pyspark_dledger.cluster.options import parse_cluster_options
        from pyspark_dledger.spark.cluster.cluster_readers import ClusterReader

        return ClusterReader(parse_cluster_options(self.options, is_stream=False), schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark_dledger.cluster.options import parse_cluster_options
        from pyspark_dledger.spark.cluster.cluster_readers import ClusterStreamReader

        return ClusterStreamReader(parse_cluster_options(self.options, is_stream=True), schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        """Return the writer of a batch job. Raises all errors that need no row here, on the driver."""
        from pyspark_dledger.spark.cluster.cluster_writers import ClusterBatchWriter

        return ClusterBatchWriter(self._write_options(overwrite), schema)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a micro-batch, for its tasks or its commit."""
        from pyspark_dledger.spark.cluster.cluster_writers import ClusterStreamWriter

        return ClusterStreamWriter(self._write_options(overwrite), schema)

    def _write_options(self, overwrite: bool) -> ClusterWriteOptions:
        from pyspark_dledger.errors import OptionError
        from pyspark_dledger.spark.cluster.cluster_write_options import parse_cluster_write_options

        if overwrite:
            raise OptionError("mode overwrite is not possible: messages of a topic stay; use mode append")
        return parse_cluster_write_options(self.options)
