"""Identities of the values of ``idColumns``."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as sql

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.spark.sink.id_columns import id_columns
from pyspark_dledger.spark.sink.row_format import row_format
from pyspark_dledger.spark.sink.write_options import WriteOptions, parse_write_options

DAY = dt.date(2024, 2, 29)
TIME = dt.datetime(2024, 2, 29, 1, 2, 3, 456789)
INT, LONG, TEXT = sql.IntegerType(), sql.LongType(), sql.StringType()


def identity(*values: Any, types: tuple[sql.DataType, ...] = (), names: str = "ab") -> bytes:
    """Return the identity of a row of these values."""
    schema = sql.StructType()
    for name, kind in zip(names, types, strict=False):
        schema.add(name, kind)
    arrays = [pa.array([value], _ARROW.get(type(kind))) for value, kind in zip(values, types, strict=True)]
    rows = pa.RecordBatch.from_arrays(arrays, names=schema.names)
    found = id_columns(schema, tuple(schema.names)).ids(rows, 0, get_engine().new_ordinals())
    return bytes(found.tobytes())


_ARROW: dict[type[sql.DataType], pa.DataType] = {
    sql.IntegerType: pa.int32(),
    sql.LongType: pa.int64(),
    sql.TimestampType: pa.timestamp("us", "UTC"),
    sql.TimestampNTZType: pa.timestamp("us"),
}


def test_identities_differ_by_values_and_types() -> None:
    found = [
        identity("a", "bc", types=(TEXT, TEXT)),
        identity("ab", "c", types=(TEXT, TEXT)),
        identity("abc", types=(TEXT,)),
        identity("", "abc", types=(TEXT, TEXT)),
        identity(b"abc", types=(sql.BinaryType(),)),
        identity("1", types=(TEXT,)),
        identity(1, types=(LONG,)),
        identity(-1, types=(LONG,)),
        identity(True, types=(sql.BooleanType(),)),
        identity(decimal.Decimal("1.0"), types=(sql.DecimalType(2, 1),)),
        identity(decimal.Decimal("1.00"), types=(sql.DecimalType(3, 2),)),
        identity(DAY, types=(sql.DateType(),)),
        identity(TIME, types=(sql.TimestampType(),)),
        identity(TIME, types=(sql.TimestampNTZType(),)),
    ]
    assert len(set(found)) == len(found)


def test_integers_of_all_sizes_are_one_type() -> None:
    assert identity(5, types=(INT,)) == identity(5, types=(LONG,))


def test_unfit_columns_are_refused() -> None:
    schema = sql.StructType().add("Id", LONG).add("tags", sql.MapType(TEXT, TEXT))
    assert id_columns(schema, ("ID",)).text == "id:i"
    with pytest.raises(OptionError, match="expected columns of Id, tags, found key"):
        id_columns(schema, ("key",))
    with pytest.raises(OptionError, match="found tags of type map<string,string>: cast it"):
        id_columns(schema, ("tags",))
    rows = pa.record_batch({"Id": pa.array([1, None]), "tags": pa.nulls(2)})
    with pytest.raises(OptionError, match=r"row 9: expected a value in id \(idColumns\), found null"):
        id_columns(schema, ("id",)).ids(rows, 8, get_engine().new_ordinals())


def test_id_columns_need_not_be_written() -> None:
    schema = sql.StructType().add("body", TEXT).add("number", LONG)
    options = WriteOptions(path="/log", topic="T", id_columns=("number",))
    assert row_format(schema, options).columns == ((0, "body"),)
    with pytest.raises(OptionError, match="option idColumns does not apply to raw entries"):
        row_format(schema, WriteOptions(path="/log", id_columns=("number",)))


def test_an_application_has_a_version() -> None:
    options = parse_write_options({"path": "/log", "txnAppId": "a", "txnVersion": "0", "idColumns": "a, b"})
    assert (options.txn_app_id, options.txn_version, options.id_columns) == ("a", 0, ("a", "b"))
    for given in ({"txnAppId": "a"}, {"txnVersion": "1"}):
        with pytest.raises(OptionError, match="txnAppId and txnVersion belong together"):
            parse_write_options({"path": "/log", **given})
    with pytest.raises(OptionError, match="txnVersion: expected an integer"):
        parse_write_options({"path": "/log", "txnAppId": "a", "txnVersion": "-1"})


def test_many_rows_have_the_identities_of_each_row() -> None:
    schema = sql.StructType().add("id", LONG)
    columns = id_columns(schema, ("id",))
    rows = pa.record_batch({"id": range(100)})
    whole = columns.ids(rows, 0, get_engine().new_ordinals())
    single = [columns.ids(rows.slice(number, 1), number, get_engine().new_ordinals()) for number in range(100)]
    assert (whole == np.concatenate(single)).all()
