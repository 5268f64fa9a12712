"""What all readers share: a task reads one part of a plan as Arrow batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.schema import LOG, arrow_schema, column_names


class PartReader(ABC):
    """Reads the columns in `schema`, with the user's spelling of their names. It is pickled for the tasks."""

    def __init__(self, schema: StructType, table: str = LOG) -> None:
        self.columns = column_names(schema, table)
        self.schema = arrow_schema(schema, table)

    @abstractmethod
    def read_part(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows of one part, with at least ``self.columns``."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one partition. For an empty plan Spark makes one: without a value, or None in PySpark 4.0 and 4.1."""
        if partition is None or partition.value is None:
            return
        batches = iter(self.read_part(partition.value))
        next_batch = plain_errors(lambda: next(batches, None))
        while (batch := next_batch()) is not None:
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in self.columns], schema=self.schema)
