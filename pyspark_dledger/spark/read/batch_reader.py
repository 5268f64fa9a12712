"""The batch readers: planned on the driver, read in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.spark.part_reader import PartReader
from pyspark_dledger.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark_dledger.log.tables.table import Table


class LogReader(PartReader, DataSourceReader):
    """Reads the ``log`` table."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        super().__init__(schema)
        self.path = path
        self.options = options
        self.filters = option_filters(options)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the scan."""
        store = StoreView(self.path, self.options)
        return [InputPartition(part) for part in plan_read(store, self.columns, self.options, self.filters)]

    def read_part(self, part: Partition) -> Iterator[pa.RecordBatch]:
        """See `PartReader.read_part`."""
        return read_partition(part)


class TableReader(PartReader, DataSourceReader):
    """Reads any other table."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        super().__init__(schema, options.table)
        self.path = path
        self.options = options

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the table."""
        store = StoreView(self.path, self.options)
        return [InputPartition(part) for part in self._table().plan(store, self.options)]

    def read_part(self, part: Any) -> Iterator[pa.RecordBatch]:
        """See `PartReader.read_part`."""
        return self._table().read(part)

    def _table(self) -> Table:
        from pyspark_dledger.rocketmq.tables.registry import TABLES

        return TABLES[self.options.table]
