"""The values of Arrow columns as numpy arrays, and the reverse.

Arrow's own conversion of nulls, booleans and Python values loads pandas, which takes 0.2 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import compute as pc

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """The numbers of a column of integers; undefined where it is null."""
    dtype = np.dtype(f"i{column.type.bit_width // 8}")
    return np.frombuffer(column.buffers()[1] or b"", dtype)[column.offset : column.offset + len(column)]


def numbers_of(column: pa.Array, null: int) -> Longs:
    """The numbers of a column of integers; `null` where it is null."""
    values = values_of(column).astype(np.int64, copy=False)
    return values if not column.null_count else np.where(is_valid(column), values, null)


def is_valid(column: pa.Array) -> Bools:
    """Where a column is not null."""
    bits = column.buffers()[0]
    if bits is None or not column.null_count:
        return np.full(len(column), column.null_count == 0)
    return _unpacked(bits, column)


def flags_of(column: pa.Array) -> Bools:
    """The values of a column of booleans; false where it is null."""
    bits = column.buffers()[1]
    return _unpacked(bits, column) & is_valid(column) if bits is not None else np.zeros(len(column), np.bool_)


def _unpacked(bits: pa.Buffer, column: pa.Array) -> Bools:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return flags[column.offset : column.offset + len(column)].astype(bool)


def column_of(values: npt.NDArray[Any]) -> pa.Array:
    """A column of these integers or booleans."""
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def scalar_of(text: str) -> pa.Scalar:
    """The text as a value of Arrow."""
    data = text.encode()
    return pa.StringArray.from_buffers(
        1, column_of(np.array([0, len(data)], np.int32)).buffers()[1], pa.py_buffer(data)
    )[0]


def texts_of(column: pa.Array) -> tuple[list[str], Longs]:
    """The distinct texts of a column, and the number of each row's text; that after the last one for null."""
    encoded = pc.dictionary_encode(column)
    texts: list[str] = encoded.dictionary.to_pylist()
    return texts, numbers_of(encoded.indices, len(texts))
