"""Columns of Arrow on their way into a log, as they come: slices, large types, nulls."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StringType, StructType

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.put_rows import check_batch
from pyspark_dledger.spark import rows
from pyspark_dledger.spark.rows import RowShape, shape_of
from pyspark_dledger.spark.write_options import WriteOptions

RAW = RowShape(False, ((0, "body"),), None)
VALUES = [b"", b"one", b"\xff\x00", b"x" * 300, b"last"]
UTC = dt.timezone.utc


def unpacked(column: pa.Array) -> list[bytes]:
    batch = pa.RecordBatch.from_arrays([column], names=["body"])
    return [bytes(body) for block in RAW.bodies(batch, 0) for body in get_engine().unpack_bodies(block)]


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


def test_large_batches_are_packed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_MOST_BLOCK", 1000)
    values = [b"%d" % number * size for number, size in enumerate((10, 400, 500, 600, 5000, 0, 0, 3))]
    column = pa.array([b"before", *values], pa.binary()).slice(1)
    batch = pa.RecordBatch.from_arrays([column], names=["body"])
    blocks = list(RAW.bodies(batch, 0))
    assert len(blocks) > 3
    assert all(block.count == 1 or len(block.block) <= 1000 + 4 * block.count for block in blocks)
    assert unpacked(column) == values


def test_a_null_or_too_large_body_is_named_by_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"row 102: expected a body, found null: fill it"):
        list(RAW.bodies(pa.RecordBatch.from_arrays([pa.array([b"", b"", None])], names=["body"]), 100))
    monkeypatch.setattr(rows, "MAX_BODY_SIZE", 5)
    with pytest.raises(OptionError, match=r"row 101: expected a body of at most 5 bytes, found 6"):
        list(RAW.bodies(pa.RecordBatch.from_arrays([pa.array([b"12345", b"123456"])], names=["body"]), 100))


def schema_of(text: str) -> StructType:
    """``name type, ...``, without a Spark that would parse it."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, MapType(StringType(), StringType()) if kind == "map" else kind)
    return schema


def puts(schema: str, arrays: list[pa.Array], **options: Any) -> pa.RecordBatch:
    shape = shape_of(schema_of(schema), WriteOptions(path="/log", **options))
    batch = pa.RecordBatch.from_arrays(arrays, names=schema_of(schema).names)
    found = shape.puts(batch, 0)
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


def test_spark_names_the_values_of_maps_its_own_way() -> None:
    """And says of keys, or of whole columns, that they are never null."""
    kind = pa.map_(pa.field("entry", pa.string(), nullable=False), pa.field("val", pa.string(), nullable=False))
    column = pa.array([[("k", "v")]], kind)
    found = puts("body string, properties map", [pa.array(["a"]), column], topic="T")
    assert found.column("properties").to_pylist() == [[("k", "v")]]


def test_a_topic_of_the_options_is_that_of_every_row() -> None:
    found = puts("body string, topic string", [pa.array(["a", "b"]), pa.array([None, "other"])], topic="T")
    assert found.to_pydict() == {"body": [b"a", b"b"], "topic": ["T", "T"]}


def test_a_null_topic_is_an_error() -> None:
    with pytest.raises(OptionError, match="row 1: expected a topic, found null"):
        puts("body string, topic string", [pa.array(["a", "b"]), pa.array(["T", None])])


def test_numbers_that_do_not_fit_are_named() -> None:
    wrong = pa.array(np.array([5, -(2**31), -(2**31) - 1]))
    with pytest.raises(OptionError, match="row 2: expected a queueId of 32 bits, found -2147483649"):
        puts("body string, queueId long", [pa.array(["a", "b", "c"]), wrong], topic="T")
