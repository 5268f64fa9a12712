"""The batch reader of the ``log`` table: planned on the driver, read in tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.plan import plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.schema import arrow_schema, column_names


class LogReader(DataSourceReader):
    """Reads the columns of `schema`, under the user's names; it is pickled and sent to the tasks."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        self.path = path
        self.options = options
        self.columns = column_names(schema)
        self.schema = arrow_schema(schema)
        self.filters = option_filters(options)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the scan. Spark makes one partition of an empty plan, whose value is None."""
        log = StoreView(self.path, self.options)
        return [InputPartition(partition) for partition in plan_read(log, self.columns, self.options, self.filters)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one partition; PySpark 4.0 and 4.1 pass None itself for an empty plan."""
        if partition is None or partition.value is None:
            return
        for batch in plain_batches(read_partition(partition.value)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)


def plain_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Let the errors of `batches` that are ours pass without the frames below them."""
    next_batch = plain_errors(lambda: next(batches, None))
    while (batch := next_batch()) is not None:
        yield batch
