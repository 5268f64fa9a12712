"""Keys and headers in the shapes of Kafka's source, as the columns of a put."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import PROPERTIES
from pyspark_dledger.format.layout import PROPERTY_ID

KEY_SEPARATOR = " "
# ``MessageConst.STRING_HASH_SET`` of RocketMQ 5.3.3: its client refuses them in user properties.
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
