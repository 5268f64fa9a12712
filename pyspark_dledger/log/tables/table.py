"""The definition of a table: its columns, its parts, and how a part is read. All are in `rocketmq.tables`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.integers import MAX_TIMESTAMP, MIN_TIMESTAMP, microseconds
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView

if TYPE_CHECKING:
    from pyspark_dledger.log.io.store_paths import StorePaths


class TableColumn(NamedTuple):
    """A column of a table: its name, its Arrow type and its meaning.

    ``attribute`` is that of an object which is a row, by default the name in snake case.
    """

    name: str
    type: pa.DataType
    doc: str
    attribute: str | None = None


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


def whole_table(
    name: str, doc: str, columns: tuple[TableColumn, ...], rows: Callable[[StoreView], Iterable[object]]
) -> Table:
    """A table of one part, because each row depends on the whole store; `rows` as in `batches_of`."""

    def read(part: tuple[str, ReadOptions]) -> Iterator[pa.RecordBatch]:
        path, options = part
        yield from batches_of(columns, rows(StoreView(path, options)), options.max_batch_rows)

    return Table(name, doc, columns, lambda store, options: [(store.path, options)], read)


def batches_of(columns: Sequence[TableColumn], rows: Iterable[object], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows as record batches with at most `batch_rows` each. A row is a dict, or an object as `row_of` takes it."""
    schema, remaining = table_schema(columns), iter(rows)
    while part := list(islice(remaining, batch_rows)):
        found = [row if isinstance(row, dict) else row_of(columns, row) for row in part]
        yield pa.RecordBatch.from_pylist(found, schema=schema)


def row_of(columns: Iterable[TableColumn], item: object) -> dict[str, Any]:
    """The row of an object whose attributes are the columns; its times are in milliseconds since 1970."""
    return {each.name: _value(each.type, getattr(item, each.attribute or _snake_case(each.name))) for each in columns}


@cache
def _snake_case(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def _value(kind: pa.DataType, value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.items())
    return microseconds(value) if value is not None and kind == TIMESTAMP else value


def timestamps(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    """Java times (ms) as a timestamp column; null outside the years 1 to 9999."""
    is_null = (milliseconds < MIN_TIMESTAMP) | (milliseconds > MAX_TIMESTAMP)
    return pa.array(np.where(is_null, 0, milliseconds) * 1000, mask=is_null).view(TIMESTAMP)


def relative_file(paths: StorePaths, file: str) -> str:
    """A file as tables show it: relative to the store's root; absolute if it is outside."""
    if paths.root is not None and path_of(file).is_relative_to(paths.root):
        return path_of(file).relative_to(paths.root).as_posix()
    return file
