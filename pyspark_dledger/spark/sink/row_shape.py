"""Rows of a DataFrame on their way into a log: which columns are taken, checked on the schema; values, in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies
from pyspark_dledger.format.encode.put_rows import topic_problem
from pyspark_dledger.format.layout import TRANSACTION_FLAGS
from pyspark_dledger.spark.sink.write_options import WriteOptions

_Integers = npt.NDArray[np.signedinteger[Any]]
BODY, TOPIC = "body", "topic"
_INTEGERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_TEXTS: tuple[type[DataType], ...] = (StringType,)
_MICROSECONDS_OF_MS = 1000
# Bytes of one block of bodies: what a larger batch is cut into.
_MOST_BLOCK = 64 * 1024 * 1024


class AcceptedColumn(NamedTuple):
    """A column that can be written: its types in a DataFrame, the same in words, and its type as a put."""

    types: tuple[type[DataType], ...]
    expected: str
    arrow: pa.DataType


_MESSAGE_COLUMNS: Mapping[str, AcceptedColumn] = {
    TOPIC: AcceptedColumn(_TEXTS, "string", pa.string()),
    BODY: AcceptedColumn((BinaryType, StringType), "binary or string", pa.binary()),
    "queueId": AcceptedColumn(_INTEGERS, "int", pa.int32()),
    "tags": AcceptedColumn(_TEXTS, "string", pa.string()),
    "keys": AcceptedColumn(_TEXTS, "string", pa.string()),
    "properties": AcceptedColumn((MapType,), "map<string,string>", pa.map_(pa.string(), pa.string())),
    "flag": AcceptedColumn(_INTEGERS, "int", pa.int32()),
    "bornTimestamp": AcceptedColumn((TimestampType, LongType), "timestamp, or long in milliseconds", pa.int64()),
    "transaction": AcceptedColumn(_TEXTS, "string", pa.int32()),
    "delayLevel": AcceptedColumn(_INTEGERS, "int", pa.int32()),
}
_RAW_COLUMNS: Mapping[str, AcceptedColumn] = {BODY: _MESSAGE_COLUMNS[BODY]}
# Without a value a row of these is no message.
_NEVER_NULL = (TOPIC, BODY)


class RowShape(NamedTuple):
    """What the rows of a DataFrame become: messages, or raw bodies. ``columns`` are taken, by position, in order."""

    is_message: bool
    columns: tuple[tuple[int, str], ...]
    topic: str | None

    def bodies(self, batch: pa.RecordBatch, first_row: int) -> Iterator[Bodies]:
        """The bodies of raw rows, packed with one copy. Raises OptionError, which names the row, for one too large.

        ``first_row`` is the number of the first row in its partition.
        """
        ((position, _),) = self.columns
        column = batch.column(position)
        _check_nulls(column, BODY, first_row)
        offsets, data = _buffers(column)
        sizes = np.diff(offsets)
        _check_sizes(sizes, first_row)
        for start, end in _blocks(offsets):
            lengths = sizes[start:end].astype(">u4").tobytes()
            yield Bodies(end - start, b"".join((lengths, data[int(offsets[start]) : int(offsets[end])])))

    def puts(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """The rows as the engines take them (``PUT_SCHEMA``, without the columns that are not there).

        Raises OptionError, which names the row, for a value that no message can have.
        """
        found: dict[str, pa.Array] = {}
        for position, name in self.columns:
            column = batch.column(position)
            if name in _NEVER_NULL:
                _check_nulls(column, name, first_row)
            found[name] = _normal(column, name, first_row)
        if self.topic is not None:
            found[TOPIC] = pa.array([self.topic], pa.string()).take(pa.array(np.zeros(batch.num_rows, np.int32)))
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def shape_of(schema: StructType, options: WriteOptions) -> RowShape:
    """What rows of that schema become. Raises OptionError for columns and types that cannot be written."""
    names = [field.name.lower() for field in schema.fields]
    is_message = options.write_as == "message" or (
        options.write_as == "auto" and (options.topic is not None or TOPIC in names)
    )
    if not is_message and options.topic is not None:
        raise OptionError("option topic: expected none for raw entries, found one: leave it out, or writeAs=raw")
    if options.topic is not None and (problem := topic_problem(options.topic.encode())):
        raise OptionError(f"option topic: {problem}: name another one")
    accepted = _MESSAGE_COLUMNS if is_message else _RAW_COLUMNS
    columns = _taken(schema, accepted, options)
    found = [name for _, name in columns]
    if BODY not in found:
        raise OptionError(f"expected a column body, found {_listed(schema)}: name the column to write body")
    if is_message and TOPIC not in found and options.topic is None:
        raise OptionError("expected a topic for messages, found none: give a column topic, or the option topic")
    if options.topic is not None:
        columns = tuple((position, name) for position, name in columns if name != TOPIC)
    return RowShape(is_message, columns, options.topic)


def _taken(
    schema: StructType, accepted: Mapping[str, AcceptedColumn], options: WriteOptions
) -> tuple[tuple[int, str], ...]:
    by_key = {name.lower(): name for name in accepted}
    columns: list[tuple[int, str]] = []
    for position, field in enumerate(schema.fields):
        name = by_key.get(field.name.lower())
        if name is None:
            if not options.ignore_extra_columns:
                raise _extra(field, accepted)
            continue
        if name in (taken for _, taken in columns):
            raise OptionError(f"column {name} is there twice: select one of them, its case does not matter")
        _check_type(name, field, accepted[name])
        columns.append((position, name))
    return tuple(columns)


def _extra(field: StructField, accepted: Mapping[str, AcceptedColumn]) -> OptionError:
    if TOPIC in accepted:
        expected, more = f"the columns of messages, {nearest(field.name, accepted)}", ""
    else:
        expected, more = f"the column {BODY} of raw entries", "; rows with a topic, column or option, are messages"
    return OptionError(
        f"column {field.name} cannot be written: expected {expected}; select these, or leave others out with "
        f"ignoreExtraColumns=true{more}"
    )


def _check_type(name: str, field: StructField, accepted: AcceptedColumn) -> None:
    found = field.dataType
    fits = isinstance(found, accepted.types)
    if isinstance(found, MapType):
        fits = fits and isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if not fits:
        raise OptionError(
            f"column {name}: expected {accepted.expected}, found {found.simpleString()}: cast it before it is written"
        )


def _listed(schema: StructType) -> str:
    return ", ".join(field.name for field in schema.fields) or "none"


def _check_nulls(column: pa.Array, name: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(np.argmax(np.asarray(column.is_null())))
        raise OptionError(f"row {row}: expected a {name}, found null: fill it, or leave such rows out")


def _check_sizes(sizes: _Integers, first_row: int) -> None:
    if len(sizes) and sizes.max() > MAX_BODY_SIZE:
        row = int(np.argmax(sizes > MAX_BODY_SIZE))
        raise OptionError(
            f"row {first_row + row}: expected a body of at most {MAX_BODY_SIZE} bytes, found {sizes[row]}: an entry "
            "takes no more"
        )


def _buffers(column: pa.Array) -> tuple[_Integers, memoryview]:
    """Where each value begins and the last ends in the bytes of all, and these."""
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    kind = np.int64 if is_large else np.int32
    if offsets is None:
        return np.zeros(1, kind), memoryview(b"")
    found = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1]
    return found, memoryview(data if data is not None else b"").cast("B")


def _blocks(offsets: _Integers) -> Iterator[tuple[int, int]]:
    """Ranges of values that take about `_MOST_BLOCK` bytes each, but at least one value."""
    start, count = 0, len(offsets) - 1
    while start < count:
        # As a Python integer: behind 2 GiB of bodies the sum does not fit 32 bits.
        end = int(np.searchsorted(offsets, int(offsets[start]) + _MOST_BLOCK, "right")) - 1
        end = min(max(end, start + 1), count)
        yield start, end
        start = end


def _normal(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """A column as the engines take it."""
    if name == "bornTimestamp":
        return _milliseconds(column)
    if name == "transaction":
        return _sys_flags(column, first_row)
    accepted = _MESSAGE_COLUMNS[name].arrow
    if column.type.equals(accepted):
        return column
    if pa.types.is_int64(column.type) and pa.types.is_int32(accepted):
        _check_int(column, name, first_row)
    return column.cast(accepted)


def _check_int(column: pa.Array, name: str, first_row: int) -> None:
    wrong = np.asarray(pc.fill_null(pc.or_(pc.less(column, -(2**31)), pc.greater(column, 2**31 - 1)), False))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise OptionError(
            f"row {first_row + row}: expected a {name} of 32 bits, found {column[row].as_py()}: correct it"
        )


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_int64(column.type):
        return column
    # Whole milliseconds before 1970, too, are at or before the time that was given.
    ticks = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    floored = np.floor_divide(np.asarray(ticks.fill_null(0)), _MICROSECONDS_OF_MS)
    return pa.array(floored, pa.int64(), mask=np.asarray(column.is_null()))


def _sys_flags(column: pa.Array, first_row: int) -> pa.Array:
    found = pc.index_in(column, pa.array(list(TRANSACTION_FLAGS), column.type))
    wrong = np.asarray(pc.and_(found.is_null(), column.is_valid()))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise OptionError(
            f"row {first_row + row}: expected a transaction {', '.join(TRANSACTION_FLAGS)} or null, found "
            f"{column[row].as_py()!r}: correct it"
        )
    return pa.array(list(TRANSACTION_FLAGS.values()), pa.int32()).take(found.cast(pa.int32()))
