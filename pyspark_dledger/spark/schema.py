"""The Spark schema of the ``log`` table, and a user's choice of its columns."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import COLUMN_BY_NAME, DEFAULT_NAMES, ENTRY_BODY, PROPERTIES, TIMESTAMP
from pyspark_dledger.log.options import nearest

_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    TIMESTAMP: TimestampType(),
    PROPERTIES: MapType(StringType(), StringType()),
}
_NAME_BY_KEY = {name.lower(): name for name in COLUMN_BY_NAME}
_NEVER_NULL = frozenset({"kind", "source", "pos", "size", "segment"})


def log_schema(include_entry_body: bool) -> StructType:
    """Return the whole schema of the ``log`` table."""
    names = (*DEFAULT_NAMES, ENTRY_BODY.name) if include_entry_body else DEFAULT_NAMES
    return StructType([StructField(name, _spark_type(name)) for name in names])


def column_names(schema: StructType) -> tuple[str, ...]:
    """Return the columns that `schema` asks for, in its order and in their own spelling.

    Raises an OptionError for a column that does not exist, that is named twice, or whose type does not fit.
    """
    if not schema.fields:
        raise OptionError("the schema names no column: name at least one, such as index long, or leave .schema() out")
    names: list[str] = []
    for field in schema.fields:
        name = _column_name(field.name)
        if name in names:
            raise OptionError(f"column {name} is named twice in the schema: name it once, its case does not matter")
        _check_type(name, field)
        names.append(name)
    return tuple(names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for the user's `schema`."""
    return pa.schema(
        [
            pa.field(field.name, COLUMN_BY_NAME[_column_name(field.name)].type, nullable=field.nullable)
            for field in schema.fields
        ]
    )


def _spark_type(name: str) -> DataType:
    return _SPARK_TYPES[COLUMN_BY_NAME[name].type]


def _column_name(name: str) -> str:
    known = _NAME_BY_KEY.get(name.lower())
    if known is None:
        raise OptionError(f"unknown column {name}: the nearest of table log is {nearest(name, COLUMN_BY_NAME)}")
    return known


def _check_type(name: str, field: StructField) -> None:
    expected, found = _spark_type(name), field.dataType
    if isinstance(expected, TimestampType) and isinstance(found, TimestampNTZType):
        raise OptionError(
            f"column {name} is a timestamp with a time zone, found timestamp_ntz: write timestamp_ltz, which holds "
            "whatever spark.sql.timestampType makes of timestamp"
        )
    if found != expected:
        raise OptionError(
            f"column {name} is {_shown(expected)}, found {_shown(found)}: write {name} {_shown(expected)}"
        )
    if not field.nullable and name not in _NEVER_NULL:
        raise OptionError(f"column {name} can be null, found NOT NULL: leave NOT NULL out")


def _shown(kind: DataType) -> str:
    values = " with values NOT NULL" if isinstance(kind, MapType) and not kind.valueContainsNull else ""
    return f"{kind.simpleString()}{values}"
