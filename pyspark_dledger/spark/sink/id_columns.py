"""The columns that identify a row (``idColumns``), and the identities of their values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.encode.encoded import Ordinals, PutSettings
from pyspark_dledger.format.encode.identities import Words, read_ids
from pyspark_dledger.format.engine import get_engine

# A letter for each type: values of different types differ. Integers of all sizes are one type.
_LETTERS: dict[type[sql.DataType], str] = {
    sql.ByteType: "i",
    sql.ShortType: "i",
    sql.IntegerType: "i",
    sql.LongType: "i",
    sql.StringType: "s",
    sql.BinaryType: "b",
    sql.BooleanType: "t",
    sql.DateType: "d",
    sql.TimestampType: "m",
    sql.TimestampNTZType: "n",
    sql.DecimalType: "x",
}
_SETTINGS = PutSettings(bytes(8), 0, bytes(8), bytes(8), {"k": 1})


class _IdColumn(NamedTuple):
    """A position in the DataFrame, a name, and the letter of the type."""

    position: int
    name: str
    letter: str


class IdColumns(NamedTuple):
    """Makes identities of the values of some columns."""

    columns: tuple[_IdColumn, ...]

    @property
    def text(self) -> str:
        """The columns' names and types."""
        return ",".join(f"{column.name}:{column.letter}" for column in self.columns)

    def ids(self, rows: pa.RecordBatch, first_row: int, ordinals: Ordinals) -> Words:
        """The identity of each row, without producer, run and partition. ``ordinals`` count the rows of one task.

        Raises OptionError for a null, and for values that another row of the task has.
        """
        parts = [part for column in self.columns for part in self._encoded(rows, column, first_row)]
        batch = pa.record_batch(
            {"topic": pa.repeat("k", rows.num_rows), "body": pc.binary_join_element_wise(*parts, b"")}
        )
        before = len(ordinals)
        found = _hashes(batch, ordinals)
        if len(ordinals) - before < rows.num_rows:
            self._raise_repeated(batch, found, rows, first_row)
        return found

    def _encoded(self, rows: pa.RecordBatch, column: _IdColumn, first_row: int) -> tuple[pa.Array, pa.Array]:
        """Type and length of each value, and the value."""
        values = rows.column(column.position)
        if values.null_count:
            row = first_row + int(np.argmax(np.asarray(values.is_null())))
            raise OptionError(f"row {row}: expected a value in {column.name} (idColumns), found null: fill it")
        if column.letter in "dmn":
            values = values.cast(pa.int32() if column.letter == "d" else pa.timestamp("us", values.type.tz))
            values = values.cast(pa.int64())
        data = values.cast(pa.binary() if column.letter in "bs" else pa.string()).cast(pa.binary())
        sizes = pc.binary_length(data).cast(pa.string())
        return pc.binary_join_element_wise(column.letter, sizes, ":", "").cast(pa.binary()), data

    def _raise_repeated(self, batch: pa.RecordBatch, found: Words, rows: pa.RecordBatch, first_row: int) -> None:
        """Raise OptionError, which names the first row whose values an earlier row has."""
        for number in range(batch.num_rows):
            one = _hashes(batch.slice(number, 1), get_engine().new_ordinals())
            if (one[0] != found[number]).any():
                break
        values = ", ".join(f"{each.name}={rows.column(each.position)[number].as_py()!r}" for each in self.columns)
        raise OptionError(
            f"row {first_row + number}: expected other values than in earlier rows (idColumns), found {values} again: "
            "name columns that identify a row"
        )


def _hashes(batch: pa.RecordBatch, ordinals: Ordinals) -> Words:
    return read_ids(get_engine().encode_messages(batch, _SETTINGS, ordinals))


def id_columns(schema: sql.StructType, names: tuple[str, ...]) -> IdColumns:
    """Return the columns with these names, in any case. Raises OptionError for unknown ones and unfit types."""
    fields = {field.name.lower(): (position, field) for position, field in enumerate(schema.fields)}
    columns = []
    for name in names:
        if name.lower() not in fields:
            listed = ", ".join(field.name for field in schema.fields)
            raise OptionError(f"option idColumns: expected columns of {listed}, found {name}: correct it")
        position, field = fields[name.lower()]
        letter = next((letter for kind, letter in _LETTERS.items() if isinstance(field.dataType, kind)), None)
        if letter is None:
            raise OptionError(
                f"option idColumns: expected integers, texts, binary, booleans, dates, times or decimals, found "
                f"{field.name} of type {field.dataType.simpleString()}: cast it"
            )
        if letter == "x":
            assert isinstance(field.dataType, sql.DecimalType)
            letter = f"x{field.dataType.scale}."
        columns.append(_IdColumn(position, field.name.lower(), letter))
    return IdColumns(tuple(columns))
