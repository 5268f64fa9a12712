"""What rows of a DataFrame become in a log: messages or raw entries, made of the columns that can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from pyspark_dledger.common.integers import INT32_MAX, INT32_MIN
from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import PROPERTIES
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, BodyParts
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA, topic_problem
from pyspark_dledger.format.layout import PROPERTY_ID, TRANSACTION_FLAGS
from pyspark_dledger.spark.sink.id_columns import IdColumns, id_columns
from pyspark_dledger.spark.sink.write_options import WriteOptions

_Integers = npt.NDArray[np.signedinteger[Any]]
BODY, TOPIC, DELIVER_AT = "body", "topic", "deliverAt"
_MICROSECONDS_PER_MS = 1000

_Fits = Callable[[sql.DataType], bool]


class _Column(NamedTuple):
    """A column that can be written: whether a type of a DataFrame fits, in words, and its column in a put."""

    fits: _Fits
    type_names: str
    target: str


def _one_of(*types: type[sql.DataType]) -> _Fits:
    return lambda found: isinstance(found, types)


_is_text = _one_of(sql.StringType)
_is_integer = _one_of(sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType)
_is_bytes = _one_of(sql.BinaryType, sql.StringType)


def _is_properties(found: sql.DataType) -> bool:
    return isinstance(found, sql.MapType) and _is_text(found.keyType) and _is_text(found.valueType)


def _are_keys(found: sql.DataType) -> bool:
    return _is_bytes(found) or (isinstance(found, sql.ArrayType) and _is_bytes(found.elementType))


def _are_headers(found: sql.DataType) -> bool:
    if not isinstance(found, sql.ArrayType) or not isinstance(found.elementType, sql.StructType):
        return False
    fields = found.elementType.fields
    return [field.name for field in fields] == ["key", "value"] and all(_is_bytes(field.dataType) for field in fields)


_BODY = _Column(_is_bytes, "binary or string", BODY)
_KEYS = _Column(_are_keys, "string, binary or array<string>", "keys")
_QUEUE_ID = _Column(_is_integer, "int", "queueId")
_IS_TIME = _one_of(sql.TimestampType, sql.LongType)
_BORN_TIMESTAMP = _Column(_IS_TIME, "timestamp, or long in milliseconds", "bornTimestamp")
_MESSAGE_COLUMNS: Mapping[str, _Column] = {
    TOPIC: _Column(_is_text, "string", TOPIC),
    BODY: _BODY,
    "queueId": _QUEUE_ID,
    "tags": _Column(_is_text, "string", "tags"),
    "keys": _KEYS,
    "properties": _Column(_is_properties, "map<string,string>", "properties"),
    "flag": _Column(_is_integer, "int", "flag"),
    "bornTimestamp": _BORN_TIMESTAMP,
    "transaction": _Column(_is_text, "string", "transaction"),
    "delayLevel": _Column(_is_integer, "int", "delayLevel"),
    DELIVER_AT: _Column(_IS_TIME, "timestamp, or long in milliseconds", DELIVER_AT),
    # Those of Kafka's source and sink.
    "key": _KEYS,
    "value": _BODY,
    "headers": _Column(_are_headers, "array<struct<key:string,value:binary>>", "properties"),
    "partition": _QUEUE_ID,
    "timestamp": _BORN_TIMESTAMP,
}
_RAW_COLUMNS: Mapping[str, _Column] = {BODY: _BODY, "value": _BODY}
_NEVER_NULL = (TOPIC, BODY)
NOT_IN_LOGS, NOT_IN_CLUSTERS = (DELIVER_AT,), ("transaction",)
"""The columns that cannot be written to a log, and those that cannot be sent to a cluster."""


class RowFormat(NamedTuple):
    """Messages or raw entries. ``columns`` are positions in the DataFrame and names; ``topic`` overrides the column.

    ``id_columns`` identify a row; they may be written, too.
    """

    is_message: bool
    columns: tuple[tuple[int, str], ...]
    topic: str | None
    id_columns: IdColumns | None = None

    def bodies(self, batch: pa.RecordBatch, first_row: int) -> BodyParts:
        """Return the bodies of raw rows without a copy. `first_row` is the number of the first row in its partition.

        Raises OptionError, which names the row, for a null or a body that is too large.
        """
        ((position, name),) = self.columns
        column = batch.column(position)
        _check_nulls(column, name, first_row)
        offsets, data = _buffers(column)
        sizes = np.diff(offsets)
        _check_sizes(sizes, first_row)
        return BodyParts(len(sizes), sizes.astype(">u4").tobytes(), data[int(offsets[0]) : int(offsets[-1])])

    def puts(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Convert rows to those of ``PUT_SCHEMA``, without absent columns, and `DELIVER_AT` in milliseconds.

        Raises OptionError, which names the row, for a value that no message can have.
        """
        found: dict[str, pa.Array] = {}
        for position, name in self.columns:
            column, target = batch.column(position), _MESSAGE_COLUMNS[name].target
            if target in _NEVER_NULL:
                _check_nulls(column, name, first_row)
            found[target] = _converted(column, name, first_row)
        if self.topic is not None:
            found[TOPIC] = pa.array([self.topic], pa.string()).take(pa.array(np.zeros(batch.num_rows, np.int32)))
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def row_format(schema: sql.StructType, options: WriteOptions, left_out: Sequence[str] = NOT_IN_LOGS) -> RowFormat:
    """Return the format for rows of that schema. Raises OptionError for columns and types that cannot be written."""
    names = [field.name.lower() for field in schema.fields]
    is_message = options.write_as == "message" or (
        options.write_as == "auto" and (options.topic is not None or TOPIC in names)
    )
    if not is_message and options.topic is not None:
        raise OptionError("option topic does not apply to raw entries: leave out the topic, or writeAs=raw")
    if options.topic is not None and (problem := topic_problem(options.topic.encode())):
        raise OptionError(f"option topic: {problem}: name another one")
    for name, value in (("idColumns", options.id_columns), ("txnAppId", options.txn_app_id)):
        if value and not is_message:
            raise OptionError(f"option {name} does not apply to raw entries: give a topic, or leave it out")
    of_messages = {name: column for name, column in _MESSAGE_COLUMNS.items() if name not in left_out}
    columns = _written_columns(schema, of_messages if is_message else _RAW_COLUMNS, options)
    targets = [_MESSAGE_COLUMNS[name].target for _, name in columns]
    if BODY not in targets:
        listed = ", ".join(field.name for field in schema.fields) or "none"
        raise OptionError(f"expected a column body, found {listed}: name the column to write body")
    if is_message and TOPIC not in targets and options.topic is None:
        raise OptionError("messages need a topic: give a column topic, or the option topic")
    if options.topic is not None:
        columns = tuple((position, name) for position, name in columns if name != TOPIC)
    ids = id_columns(schema, options.id_columns) if options.id_columns else None
    return RowFormat(is_message, columns, options.topic, ids)


def _written_columns(
    schema: sql.StructType, accepted: Mapping[str, _Column], options: WriteOptions
) -> tuple[tuple[int, str], ...]:
    by_key = {name.lower(): name for name in accepted}
    ids = {name.lower() for name in options.id_columns}
    columns: list[tuple[int, str]] = []
    for position, field in enumerate(schema.fields):
        name = by_key.get(field.name.lower())
        if name is None:
            if not options.ignore_extra_columns and field.name.lower() not in ids:
                raise _extra_column(field, accepted)
            continue
        for _, other in columns:
            if other == name:
                raise OptionError(f"column {name} is there twice: select one of them, its case does not matter")
            if accepted[other].target == accepted[name].target:
                raise OptionError(
                    f"columns {other} and {name} are both the {accepted[name].target} of a message: select one of them"
                )
        _check_type(name, field, accepted[name])
        columns.append((position, name))
    return tuple(columns)


def _extra_column(field: sql.StructField, accepted: Mapping[str, _Column]) -> OptionError:
    if TOPIC in accepted:
        expected, hint = f"the columns of messages, {nearest(field.name, accepted)}", ""
    else:
        expected, hint = f"the column {BODY} of raw entries", "; a topic, column or option, makes messages"
    return OptionError(
        f"column {field.name} cannot be written: expected {expected}; select these, or leave others out with "
        f"ignoreExtraColumns=true{hint}"
    )


def _check_type(name: str, field: sql.StructField, accepted: _Column) -> None:
    found = field.dataType
    if not accepted.fits(found):
        raise OptionError(f"column {name}: expected {accepted.type_names}, found {found.simpleString()}: cast it")


def _check_nulls(column: pa.Array, name: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(np.argmax(np.asarray(column.is_null())))
        raise OptionError(f"row {row}: expected a {name}, found null: fill it, or leave such rows out")


def _check_sizes(sizes: _Integers, first_row: int) -> None:
    if len(sizes) and sizes.max() > MAX_BODY_SIZE:
        row = int(np.argmax(sizes > MAX_BODY_SIZE))
        raise OptionError(
            f"row {first_row + row}: expected a body of at most {MAX_BODY_SIZE} bytes (the limit of an entry), found "
            f"{sizes[row]}"
        )


def _buffers(column: pa.Array) -> tuple[_Integers, memoryview]:
    """Return the bytes of all values, and the offsets where each begins and the last ends."""
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    kind = np.int64 if is_large else np.int32
    if offsets is None:
        return np.zeros(1, kind), memoryview(b"")
    found = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1]
    return found, memoryview(data if data is not None else b"").cast("B")


def _converted(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """Return a column with its type in a put."""
    target = _MESSAGE_COLUMNS[name].target
    if target in ("bornTimestamp", DELIVER_AT):
        return _milliseconds(column)
    if target == "transaction":
        return _sys_flags(column, first_row)
    if name == "headers":
        return header_properties(column, name, first_row)
    if target == "keys":
        return joined_keys(column, name, first_row) if pa.types.is_nested(column.type) else text_of(column)
    accepted = PUT_SCHEMA.field(target).type
    if column.type.equals(accepted):
        return column
    if pa.types.is_int64(column.type) and pa.types.is_int32(accepted):
        _check_int32(column, name, first_row)
    return column.cast(accepted)


def _check_int32(column: pa.Array, name: str, first_row: int) -> None:
    is_outside = pc.or_(pc.less(column, INT32_MIN), pc.greater(column, INT32_MAX))
    wrong = np.asarray(pc.fill_null(is_outside, False))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise OptionError(f"row {first_row + row}: expected a {name} of 32 bits, found {column[row].as_py()}")


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_int64(column.type):
        return column
    # Rounded down, also before 1970.
    ticks = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    floored = np.floor_divide(np.asarray(ticks.fill_null(0)), _MICROSECONDS_PER_MS)
    return pa.array(floored, pa.int64(), mask=np.asarray(column.is_null()))


def _sys_flags(column: pa.Array, first_row: int) -> pa.Array:
    found = pc.index_in(column, pa.array(list(TRANSACTION_FLAGS), column.type))
    wrong = np.asarray(pc.and_(found.is_null(), column.is_valid()))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise OptionError(
            f"row {first_row + row}: expected a transaction {', '.join(TRANSACTION_FLAGS)} or null, found "
            f"{column[row].as_py()!r}"
        )
    return pa.array(list(TRANSACTION_FLAGS.values()), pa.int32()).take(found.cast(pa.int32()))


KEY_SEPARATOR = " "
# ``MessageConst.STRING_HASH_SET`` of RocketMQ 5.3.3: its client rejects them in user properties.
RESERVED = (
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID "
    "ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES "
    "CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO "
    "INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE MSG_REGION TRACE_ON "
    "INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS "
    "TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC "
    f"DLQ_ORIGIN_MESSAGE_ID __CRC32# {PROPERTY_ID}"
).split()


def text_of(column: pa.Array) -> pa.Array:
    """Return bytes as strings without a copy. They may be no UTF-8: the encoder rejects that, and names the row."""
    if pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    return column.view(pa.string()) if pa.types.is_binary(column.type) else column.cast(pa.string())


def joined_keys(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """Join the keys of each row as RocketMQ does; no keys are null. Raises OptionError, which names the row."""
    rows, values = pc.list_parent_indices(column), text_of(column.flatten())
    _check(values.is_null(), rows, first_row, f"no null in {name}, found one: remove it")
    is_separated = pc.match_substring(values, KEY_SEPARATOR)
    _check(is_separated, rows, first_row, f"no space in a key of {name}, found one: spaces separate keys")
    kind = pa.large_list(pa.string()) if pa.types.is_large_list(column.type) else pa.list_(pa.string())
    joined = pc.binary_join(column.cast(kind), KEY_SEPARATOR)
    return pc.if_else(pc.equal(pc.list_value_length(column), 0), pa.scalar(None, pa.string()), joined)


def header_properties(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """Return headers as properties. Raises OptionError, which names the row, for a reserved or missing name."""
    rows, headers = pc.list_parent_indices(column), column.flatten()
    names, values = (text_of(field) for field in headers.flatten())
    _check(names.is_null(), rows, first_row, f"a key in each of {name}, found null: remove that header")
    found = pc.is_in(names, pa.array(RESERVED))
    reserved = ", ".join(sorted(set(names.filter(found).to_pylist())))
    _check(found, rows, first_row, f"no header {reserved}, which RocketMQ reserves: rename it")
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0)), dtype=np.int32)
    is_null = np.append(np.asarray(column.is_null()), False)
    offsets = pa.array(np.insert(ends, 0, 0), pa.int32(), mask=is_null)
    return pa.MapArray.from_arrays(offsets, names, values).cast(PROPERTIES)


def _check(wrong: pa.Array, rows: pa.Array, first_row: int, expected: str) -> None:
    found = np.asarray(pc.fill_null(wrong, False))
    if found.any():
        row = rows[int(np.argmax(found))].as_py()
        raise OptionError(f"row {first_row + row}: expected {expected}")
