"""Rows on their way into a log: slices, large types, nulls, values that cannot be written."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StringType, StructType

from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.format.encode.encoded import BodyParts, PutSettings
from pyspark_dledger.format.encode.put_rows import check_batch
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.spark.sink import row_format as formats
from pyspark_dledger.spark.sink import task_writer
from pyspark_dledger.spark.sink.job_identity import micro_batch_job
from pyspark_dledger.spark.sink.row_format import RowFormat, joined_keys, row_format
from pyspark_dledger.spark.sink.write_options import WriteOptions

RAW = RowFormat(False, ((0, "body"),), None)
VALUES = [b"", b"one", b"\xff\x00", b"x" * 300, b"last"]
UTC = dt.timezone.utc


def unpacked(column: pa.Array) -> list[bytes]:
    batch = pa.RecordBatch.from_arrays([column], names=["body"])
    found = RAW.bodies(batch, 0)
    return get_engine().unpack_bodies(found.packed()) if found.count else []


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bodies_of_binary_columns(kind: pa.DataType) -> None:
    column = pa.array(VALUES, kind)
    assert unpacked(column) == VALUES
    assert unpacked(column.slice(1, 3)) == VALUES[1:4]
    assert unpacked(column.slice(5)) == unpacked(pa.array([], kind)) == []
    assert unpacked(pa.array([b"", b""], kind)) == [b"", b""]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_bodies_of_text_columns_are_utf_8(kind: pa.DataType) -> None:
    assert unpacked(pa.array(["a", "", "é支"], kind).slice(1)) == [b"", "é支".encode()]


def test_error_names_the_row_of_a_null_or_too_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"row 102: expected a body, found null: fill it"):
        RAW.bodies(pa.RecordBatch.from_arrays([pa.array([b"", b"", None])], names=["body"]), 100)
    monkeypatch.setattr(formats, "MAX_BODY_SIZE", 5)
    with pytest.raises(OptionError, match=r"row 101: expected a body of at most 5 bytes .*, found 6"):
        RAW.bodies(pa.RecordBatch.from_arrays([pa.array([b"12345", b"123456"])], names=["body"]), 100)


def test_batches_with_skewed_rows_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "_MAX_ENCODED", 1000)
    values = [b"x" * 900] * 3 + [b"y"] * 50 + [b"z" * 5000]
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["body"])
    parts = list(task_writer._slices(batch, 100))
    assert [start for start, _ in parts] == [
        100 + sum(part.num_rows for _, part in parts[:i]) for i in range(len(parts))
    ]
    assert [body for _, part in parts for body in part.column(0).to_pylist()] == values
    assert all(part.nbytes <= 1000 or part.num_rows == 1 for _, part in parts)
    assert list(task_writer._slices(batch.slice(0, 0), 0)) == []


class Appended(NamedTuple):
    first_index: int
    last_index: int


class FailingSender(task_writer.RawSender):
    """Fails, after a while, at the body ``bad``."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def encode(self, batch: pa.RecordBatch, first_row: int) -> Iterator[BodyParts]:
        yield RAW.bodies(batch, first_row)

    def send(self, bodies: BodyParts) -> Any:
        (body,) = get_engine().unpack_bodies(bodies.packed())
        time.sleep(0.05)
        if body == b"bad":
            raise StoreError("on purpose")
        self.sent.append(bytes(body))
        return Appended(0, 0)


def test_nothing_is_written_after_an_error() -> None:
    batches = [pa.RecordBatch.from_arrays([pa.array([body])], names=["body"]) for body in (b"1", b"bad", b"2", b"3")]
    sender = FailingSender()
    with pytest.raises(StoreError, match="on purpose"):
        task_writer._send(iter(batches), sender, task_writer.TaskCommit(0))
    assert sender.sent == [b"1"]


def test_micro_batch_without_an_identity_is_rejected() -> None:
    """All such micro-batches would be duplicates of one another."""
    given = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0", "spark.jobGroup.id": "run"}
    job = micro_batch_job(SimpleNamespace(getLocalProperty=given.get))
    assert (job.name, job.run) == ("q/0", "run")
    with pytest.raises(DLedgerError, match="expected the local properties"):
        micro_batch_job(SimpleNamespace(getLocalProperty={}.get))


def schema_of(text: str) -> StructType:
    """Parse ``name type, ...`` without Spark."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, MapType(StringType(), StringType()) if kind == "map" else kind)
    return schema


def puts(schema: str, arrays: list[pa.Array], **options: Any) -> pa.RecordBatch:
    rows = row_format(schema_of(schema), WriteOptions(path="/log", **options))
    batch = pa.RecordBatch.from_arrays(arrays, names=schema_of(schema).names)
    found = rows.puts(batch, 0)
    check_batch(found)
    return found


def test_columns_become_those_of_a_put() -> None:
    times = [dt.datetime(2026, 7, 21, 3, 12, 0, 1999, UTC), None, dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)]
    found = puts(
        "TOPIC string, body string, queueid long, properties map, borntimestamp timestamp, "
        "transaction string, delayLevel short",
        [
            pa.array(["T", "U", "T"]),
            pa.array(["a", "b", "c"]),
            pa.array([1, None, 3], pa.int64()),
            pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array(["none", None, "rollback"]),
            pa.array([None, 5, 0], pa.int16()),
        ],
    )
    assert found.to_pydict() == {
        "topic": ["T", "U", "T"],
        "body": [b"a", b"b", b"c"],
        "queueId": [1, None, 3],
        "properties": [[("k", "v")], None, []],
        "bornTimestamp": [1784603520001, None, -1],
        "transaction": [0, None, 12],
        "delayLevel": [None, 5, 0],
    }


def test_maps_with_the_field_names_of_spark_are_accepted() -> None:
    """Spark also marks keys, or whole columns, as never null."""
    kind = pa.map_(pa.field("entry", pa.string(), nullable=False), pa.field("val", pa.string(), nullable=False))
    column = pa.array([[("k", "v")]], kind)
    found = puts("body string, properties map", [pa.array(["a"]), column], topic="T")
    assert found.column("properties").to_pylist() == [[("k", "v")]]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KAFKA = StructType.fromJson({"type": "struct", "fields": [
    {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in {
        "key": "binary", "value": "binary", "topic": "string", "partition": "integer", "timestamp": "timestamp",
        "headers": {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": [
            {"name": "key", "type": "string", "nullable": True, "metadata": {}},
            {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
        ]}},
    }.items()
]})  # fmt: skip


def kafka_puts(keys: list[Any], headers: list[Any]) -> pa.RecordBatch:
    """Return puts of rows as Kafka's source has them."""
    count = len(keys)
    numbers, times = pa.array([3] * count, pa.int32()), pa.array([1_999] * count, pa.timestamp("us", "UTC"))
    values, topics = pa.array([b"\xff"] * count), pa.array(["T"] * count)
    arrays = [pa.array(keys, pa.binary()), values, topics, numbers, times, pa.array(headers, HEADERS)]
    rows = row_format(KAFKA, WriteOptions(path="/log"))
    # Sliced arrays keep the values before their offset.
    found = rows.puts(pa.RecordBatch.from_arrays(arrays, names=KAFKA.names).slice(1), 101)
    check_batch(found)
    return found


def test_columns_of_kafka_become_those_of_a_put() -> None:
    header = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    found = kafka_puts([b"x", b"k", None, b""], [header, header, None, []])
    assert found.to_pydict() == {
        "keys": ["k", None, ""],
        "body": [b"\xff"] * 3,
        "topic": ["T"] * 3,
        "queueId": [3] * 3,
        "bornTimestamp": [1] * 3,
        "properties": [[("a", "1"), ("b", None)], None, []],
    }


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"key": "TAGS", "value": b"1"}, "row 102: expected no header TAGS, which RocketMQ reserves"),
        ({"key": None, "value": b"1"}, "row 102: expected a key in each of headers, found null"),
    ],
)
def test_headers_that_are_no_properties_are_rejected(header: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        kafka_puts([b"k"] * 3, [None, [], [{"key": "a", "value": b""}, header]])


@pytest.mark.parametrize(
    ("keys", "headers", "match"),
    [
        ([b"k", b"\xff"], [None] * 2, "row 1: expected UTF-8 as the value of a property"),
        ([b"k"] * 2, [None, [{"key": "a", "value": b"\xff"}]], "row 1: expected UTF-8 as the value of a property"),
        ([b"k"] * 2, [None, [{"key": "a", "value": b"1"}] * 2], "row 1: expected property a once, found it twice"),
    ],
)
def test_bytes_of_kafka_that_are_no_text_are_rejected(keys: list[Any], headers: list[Any], match: str) -> None:
    batch = kafka_puts([b"", *keys], [None, *headers])
    settings = PutSettings(None, 0, bytes(8), bytes(8), {"T": 4})
    for engine in ("native", "python"):
        with pytest.raises(ValueError, match=match):
            get_engine(engine).encode_messages(batch, settings, get_engine(engine).new_ordinals())


def test_arrays_of_keys_are_joined() -> None:
    column = pa.array([["x"], ["k", "l"], [], None, ["m"]]).slice(1)
    assert joined_keys(column, "keys", 0).to_pylist() == ["k l", None, None, "m"]
    for wrong, match in (("a b", "no space in a key of keys"), (None, "no null in keys")):
        with pytest.raises(OptionError, match=f"row 7: expected {match}, found one"):
            joined_keys(pa.array([["k"], [], ["l", wrong]]).slice(1), "keys", 6)


def test_option_topic_overrides_the_column() -> None:
    found = puts("body string, topic string", [pa.array(["a", "b"]), pa.array([None, "other"])], topic="T")
    assert found.to_pydict() == {"body": [b"a", b"b"], "topic": ["T", "T"]}


def test_null_topic_is_an_error() -> None:
    with pytest.raises(OptionError, match="row 1: expected a topic, found null"):
        puts("body string, topic string", [pa.array(["a", "b"]), pa.array(["T", None])])


def test_error_names_a_number_that_does_not_fit() -> None:
    wrong = pa.array([None, 2**31 - 1, 2**31])
    with pytest.raises(OptionError, match="row 2: expected a flag of 32 bits, found 2147483648"):
        puts("body string, flag long", [pa.array(["a", "b", "c"]), wrong], topic="T")
    wrong = pa.array(np.array([5, -(2**31), -(2**31) - 1]))
    with pytest.raises(OptionError, match="row 2: expected a queueId of 32 bits, found -2147483649"):
        puts("body string, queueId long", [pa.array(["a", "b", "c"]), wrong], topic="T")


def test_error_names_an_unknown_transaction() -> None:
    found = pa.array([None, "commit", "maybe"])
    with pytest.raises(OptionError, match=r"row 2: expected a transaction none, prepared, .*found 'maybe'"):
        puts("body string, transaction string", [pa.array(["a", "b", "c"]), found], topic="T")
