"""Writes to a cluster without Spark: rows, and the context that Spark gives to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "queueId": pa.int32(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "bornTimestamp": pa.int64(),
    "delayLevel": pa.int32(),
    "deliverAt": pa.timestamp("us", "UTC"),
    "number": pa.int64(),
    "transaction": pa.string(),
}


class Task(NamedTuple):
    """A task whose partition and local properties the test chooses."""

    values: Mapping[str, Any]

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return int(self.values["partition"])

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.values.get(name)


def frame(columns: Mapping[str, list[Any]]) -> tuple[pa.RecordBatch, StructType]:
    """Rows, and their schema in Spark."""
    batch = pa.record_batch({name: pa.array(values, TYPES[name]) for name, values in columns.items()})
    return batch, from_arrow_schema(batch.schema)
