"""The batch reader of every table but ``log``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.tables.registry import TABLES
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.log_reader import plain_batches
from pyspark_dledger.spark.schema import arrow_schema, column_names


class TableReader(DataSourceReader):
    """Reads the columns of `schema` of any table but ``log``, under the user's names."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        self.path = path
        self.options = options
        self.columns = column_names(schema, options.table)
        self.schema = arrow_schema(schema, options.table)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the table. Spark makes one partition of an empty plan, whose value is None."""
        table = TABLES[self.options.table]
        return [InputPartition(part) for part in table.plan(StoreView(self.path, self.options), self.options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one part; PySpark 4.0 and 4.1 pass None itself for an empty plan."""
        if partition is None or partition.value is None:
            return
        for batch in plain_batches(TABLES[self.options.table].read(partition.value)):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in self.columns], schema=self.schema)
