"""The definition of a table: its columns, its parts, and how a part is read. All are in `rocketmq.tables`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.integers import MAX_TIMESTAMP, MIN_TIMESTAMP
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.io.files import path_of

if TYPE_CHECKING:
    from pyspark_dledger.log.io.store_paths import StorePaths
    from pyspark_dledger.log.options import ReadOptions
    from pyspark_dledger.log.store_view import StoreView


class TableColumn(NamedTuple):
    """A column of a table: its name, its Arrow type and its meaning."""

    name: str
    type: pa.DataType
    doc: str


@dataclass(frozen=True)
class Table:
    """A table other than the ``log`` table.

    ``plan`` returns parts that together have every row once: picklable values, one for each task. ``read`` yields the
    rows of a part as batches of `schema`.
    """

    name: str
    doc: str
    columns: tuple[TableColumn, ...]
    plan: Callable[[StoreView, ReadOptions], list[Any]]
    read: Callable[[Any], Iterator[pa.RecordBatch]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema; every field is nullable, as Spark's are."""
        return table_schema(self.columns)


def table_schema(columns: Iterable[TableColumn]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def batches_of(schema: pa.Schema, rows: Iterable[dict[str, Any]], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of `schema`, with at most `batch_rows` each."""
    remaining = iter(rows)
    while part := list(islice(remaining, batch_rows)):
        yield pa.RecordBatch.from_pylist(part, schema=schema)


def row_of(columns: Iterable[TableColumn], item: object) -> dict[str, Any]:
    """The row of an object whose attributes are the columns in snake case."""
    return {each.name: getattr(item, re.sub("([A-Z])", r"_\1", each.name).lower()) for each in columns}


def timestamps(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    """Java times (ms) as a timestamp column; null outside the years 1 to 9999."""
    is_null = (milliseconds < MIN_TIMESTAMP) | (milliseconds > MAX_TIMESTAMP)
    return pa.array(np.where(is_null, 0, milliseconds) * 1000, mask=is_null).view(TIMESTAMP)


def relative_file(paths: StorePaths, file: str) -> str:
    """A file as tables show it: relative to the store's root; absolute if it is outside."""
    if paths.root is not None and path_of(file).is_relative_to(paths.root):
        return path_of(file).relative_to(paths.root).as_posix()
    return file
