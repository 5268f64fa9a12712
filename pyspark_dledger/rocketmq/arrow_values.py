"""Arrow columns as numpy arrays without a copy. Arrow's own conversion loads pandas for nulls and booleans."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """The numbers of a column of integers; undefined where it is null."""
    dtype = np.dtype(f"i{column.type.bit_width // 8}")
    return np.frombuffer(column.buffers()[1] or b"", dtype)[column.offset : column.offset + len(column)]


def is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a column is not null."""
    bits = column.buffers()[0]
    if bits is None or not column.null_count:
        return np.full(len(column), column.null_count == 0)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return flags[column.offset : column.offset + len(column)].astype(bool)
