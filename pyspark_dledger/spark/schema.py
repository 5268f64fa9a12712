"""The Spark schemas of the tables, and the columns that a user's schema chooses."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as sql

from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import COLUMN_BY_NAME, DEFAULT_NAMES, ENTRY_BODY, PROPERTIES, TIMESTAMP
from pyspark_dledger.log.options import ReadOptions

LOG, CLUSTER = "log", "rocketmq"

_SPARK_TYPES: dict[pa.DataType, sql.DataType] = {
    pa.bool_(): sql.BooleanType(),
    pa.int32(): sql.IntegerType(),
    pa.int64(): sql.LongType(),
    pa.string(): sql.StringType(),
    pa.binary(): sql.BinaryType(),
    TIMESTAMP: sql.TimestampType(),
    PROPERTIES: sql.MapType(sql.StringType(), sql.StringType()),
    pa.list_(pa.string()): sql.ArrayType(sql.StringType()),
    pa.list_(pa.int32()): sql.ArrayType(sql.IntegerType()),
    pa.list_(pa.int64()): sql.ArrayType(sql.LongType()),
    pa.map_(pa.string(), pa.int64()): sql.MapType(sql.StringType(), sql.LongType()),
    pa.map_(pa.int64(), pa.int64()): sql.MapType(sql.LongType(), sql.LongType()),
}
_NEVER_NULL = frozenset({"kind", "source", "pos", "size", "segment"})


def whole_schema(options: ReadOptions) -> sql.StructType:
    """Return the schema of the table in the options."""
    if options.table == LOG:
        return log_schema(options.include_entry_body)
    types = column_types(options.table)
    return sql.StructType([sql.StructField(name, _SPARK_TYPES[kind]) for name, kind in types.items()])


def log_schema(include_entry_body: bool) -> sql.StructType:
    """Return the schema of the ``log`` table."""
    names = (*DEFAULT_NAMES, ENTRY_BODY.name) if include_entry_body else DEFAULT_NAMES
    return sql.StructType([sql.StructField(name, _SPARK_TYPES[COLUMN_BY_NAME[name].type]) for name in names])


def cluster_schema() -> sql.StructType:
    """Return the schema of messages of a running cluster."""
    return sql.StructType([sql.StructField(name, _SPARK_TYPES[kind]) for name, kind in column_types(CLUSTER).items()])


def column_types(table: str) -> dict[str, pa.DataType]:
    """Return the Arrow type of each column of a table."""
    if table == LOG:
        return {name: column.type for name, column in COLUMN_BY_NAME.items()}
    if table == CLUSTER:
        from pyspark_dledger.cluster.rows import CLUSTER_COLUMNS

        return {column.name: column.type for column in CLUSTER_COLUMNS}
    from pyspark_dledger.rocketmq.tables import TABLES

    return {column.name: column.type for column in TABLES[table].columns}


def column_names(schema: sql.StructType, table: str = LOG) -> tuple[str, ...]:
    """Return the columns that `schema` chooses, in its order and in the table's spelling.

    Raises OptionError for an unknown column, a duplicate, or a wrong type.
    """
    types = column_types(table)
    if not schema.fields:
        example = "index long" if table == LOG else f"{next(iter(types))} string"
        raise OptionError(f"the schema names no column: name at least one, such as {example}, or leave .schema() out")
    names: list[str] = []
    for field in schema.fields:
        name = _column_name(field.name, table, types)
        if name in names:
            raise OptionError(f"column {name} is named twice in the schema: name it once, its case does not matter")
        _check_type(name, _SPARK_TYPES[types[name]], field, table)
        names.append(name)
    return tuple(names)


def arrow_schema(schema: sql.StructType, table: str = LOG) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a user's `schema`."""
    types = column_types(table)
    return pa.schema([
        pa.field(field.name, types[_column_name(field.name, table, types)], nullable=field.nullable)
        for field in schema.fields
    ])  # fmt: skip


def _column_name(name: str, table: str, types: dict[str, pa.DataType]) -> str:
    known = {column.lower(): column for column in types}.get(name.lower())
    if known is None:
        raise OptionError(f"unknown column {name}: {nearest(name, types, f' of table {table}')}")
    return known


def _check_type(name: str, expected: sql.DataType, field: sql.StructField, table: str) -> None:
    found = field.dataType
    if isinstance(expected, sql.TimestampType) and isinstance(found, sql.TimestampNTZType):
        raise OptionError(
            f"column {name} is a timestamp with a time zone, found timestamp_ntz: write timestamp_ltz, which "
            "does not depend on spark.sql.timestampType"
        )
    if found != expected:
        raise OptionError(
            f"column {name} is {_shown(expected)}, found {_shown(found)}: write {name} {_shown(expected)}"
        )
    if not field.nullable and (table != LOG or name not in _NEVER_NULL):
        raise OptionError(f"column {name} can be null, found NOT NULL: leave NOT NULL out")


def _shown(kind: sql.DataType) -> str:
    values = " with values NOT NULL" if isinstance(kind, sql.MapType) and not kind.valueContainsNull else ""
    return f"{kind.simpleString()}{values}"
