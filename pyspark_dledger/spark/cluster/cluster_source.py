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


class RocketMQDataSource(DataSource):
    """Read messages of a running RocketMQ cluster: one row per message.

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
    Reads, batch and streaming.

    Examples
    --------
    >>> orders = spark.read.format("rocketmq").option("nameServer", "10.0.0.1:9876").option("topic", "Orders").load()

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
