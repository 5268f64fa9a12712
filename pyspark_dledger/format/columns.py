"""The columns of the ``log`` table: names, Arrow types and meaning, in their fixed order."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())


class Column(NamedTuple):
    """One column: its name, its Arrow type, its source and its meaning.

    ``origin`` is ``row`` (known for every row), ``entry`` (the DLedger header) or ``message`` (the message must be
    parsed, also for ``body``).
    """

    name: str
    type: pa.DataType
    origin: str
    doc: str


COLUMNS = (
    Column("kind", pa.string(), "message", "`message`, `entry`, `noop`, `config` or `corrupt`"),
    Column("source", pa.string(), "row", "`dledger`, or `commitlog` before dividedCommitlogOffset"),
    Column("index", pa.int64(), "entry", "index of the entry; null in the old CommitLog"),
    Column("term", pa.int64(), "entry", "term of the entry; can be -1 or 0"),
    Column("pos", pa.int64(), "row", "position of the entry in the log, in bytes"),
    Column("size", pa.int32(), "row", "length in bytes, header included; of a corrupt row its extent"),
    Column("magic", pa.int32(), "entry", "header field, as on disk"),
    Column("channel", pa.int32(), "entry", "header field, as on disk"),
    Column("chainCrc", pa.int32(), "entry", "header field, as on disk"),
    Column("bodyCrc", pa.int32(), "entry", "header field, as on disk"),
    Column("bodySize", pa.int32(), "entry", "length of the body in bytes"),
    Column("committed", pa.bool_(), "entry", "proven committed; null if no bound is known"),
    Column("problem", pa.string(), "message", "what was expected and found; null for an intact row"),
    Column("segment", pa.string(), "row", "name of the file"),
    Column("topic", pa.string(), "message", "topic"),
    Column("queueId", pa.int32(), "message", "queue of the topic"),
    Column("queueOffset", pa.int64(), "message", "offset in the queue"),
    Column("commitLogOffset", pa.int64(), "message", "the message's physicalOffset (pos + 48 under DLedger)"),
    Column("storeSize", pa.int32(), "message", "length of the message in bytes"),
    Column("messageMagic", pa.int32(), "message", "-626843481 (V1) or -626843477 (V2)"),
    Column("flag", pa.int32(), "message", "as stored"),
    Column("sysFlag", pa.int32(), "message", "as stored"),
    Column("reconsumeTimes", pa.int32(), "message", "as stored"),
    Column("bornTimestamp", TIMESTAMP, "message", "milliseconds; null outside years 1 to 9999"),
    Column("storeTimestamp", TIMESTAMP, "message", "milliseconds; null outside years 1 to 9999"),
    Column("bornHost", pa.string(), "message", "`ip:port` or `[ip]:port`"),
    Column("storeHost", pa.string(), "message", "`ip:port` or `[ip]:port`"),
    Column("messageCrc", pa.int32(), "message", "the message's bodyCRC, as stored"),
    Column("preparedTransactionOffset", pa.int64(), "message", "as stored"),
    Column("transaction", pa.string(), "message", "`none`, `prepared`, `commit` or `rollback`"),
    Column("compression", pa.string(), "message", "`none`, `zlib`, `lz4` or `zstd`"),
    Column("tags", pa.string(), "message", "property TAGS"),
    Column("keys", pa.string(), "message", "property KEYS"),
    Column("uniqKey", pa.string(), "message", "property UNIQ_KEY: what clients call msgId"),
    Column("offsetMsgId", pa.string(), "message", "hex of store host, port and commitLogOffset"),
    Column("properties", PROPERTIES, "message", "as Java parses them"),
    Column("body", pa.binary(), "message", "the message's body decompressed, or the entry's body"),
    Column("healedFrom", pa.string(), "row", "with `heal`: the row's replica; null for the first"),
)
ENTRY_BODY = Column("entryBody", pa.binary(), "entry", "the bytes that DLedger replicated")

ALL_COLUMNS = (*COLUMNS, ENTRY_BODY)
COLUMN_BY_NAME = {column.name: column for column in ALL_COLUMNS}
"""Every column by its exact name, ``entryBody`` included."""

PUT_ID = Column("putId", pa.binary(), "message", "the identity of a put, 24 bytes; null without a valid one")
FACT_COLUMNS = (
    Column("problemCode", pa.int32(), "message", "the `ProblemCode` of problem; null for an intact row"),
    Column("problemExpected", pa.int64(), "message", "the number that was expected, 0 without one"),
    Column("problemFound", pa.int64(), "message", "the number that was found, 0 without one"),
    Column("problemErrno", pa.int32(), "message", "the system's error number of bytes that cannot be read"),
)
"""These and `PUT_ID` are for this package only: no columns of the ``log`` table."""

SCANNED_COLUMNS = {column.name: column for column in (*ALL_COLUMNS, PUT_ID, *FACT_COLUMNS)}
"""Every column of an engine's scan, by name."""

DEFAULT_NAMES = tuple(column.name for column in COLUMNS)


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of ``names`` in that order; all fields are nullable, as in Spark."""
    return pa.schema([pa.field(name, SCANNED_COLUMNS[name].type) for name in names])
