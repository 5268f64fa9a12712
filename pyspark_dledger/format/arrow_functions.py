"""`compute`: ``pyarrow.compute``, which is loaded when it is needed.

Loading it takes longer than reading a small store, because it builds a wrapper for each function of Arrow. Functions
that need no options are called without it. Arrow's own conversion of nulls, booleans and Python values loads pandas,
which takes 0.2 s: the functions here make numpy arrays of columns, and the reverse.
Sets of numbers are arrays too, without ``numpy.unique`` and ``numpy.isin``, which load ``numpy.ma``.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.compute as compute

__all__ = ["compute", "grouped"]

# Functions without options, or with default ones, by their names in ``pyarrow.compute``.
_DIRECT = {
    name: name.rstrip("_")
    for name in (
        *("add", "and_", "dictionary_encode", "divide", "equal", "filter", "if_else", "indices_nonzero", "invert"),
        *("is_null", "is_valid", "less", "ln", "min_max", "multiply", "not_equal", "or_kleene", "round", "subtract"),
        *("sum", "take", "value_counts"),
    )
}


def _call(name: str, *arguments: Any, **options: Any) -> Any:
    if name.startswith("match_substring"):
        values, pattern = arguments
        return _core().call_function(name, [values], _core().MatchSubstringOptions(pattern))
    if name in _DIRECT and not options:
        return _core().call_function(_DIRECT[name], list(arguments))
    return getattr(import_module("pyarrow.compute"), name)(*arguments, **options)


def _core() -> Any:
    try:
        return import_module("pyarrow._compute")
    except ImportError:  # its name is not part of Arrow's API
        return import_module("pyarrow.compute")


def grouped(table: pa.Table, by: list[str], wanted: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The groups with ``count_all``, and each wanted column and function as ``COLUMN_FUNCTION``.

    As ``Table.group_by``, which loads ``pyarrow.dataset``.
    """
    try:
        acero: Any = import_module("pyarrow._acero")
    except ImportError:
        acero = import_module("pyarrow.acero")
    aggregates: list[tuple[list[str], str, None, str]] = [([], "hash_count_all", None, "count_all")]
    aggregates += [([column], f"hash_{function}", None, f"{column}_{function}") for column, function in wanted]
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    groups = acero.Declaration("aggregate", acero.AggregateNodeOptions(aggregates, keys=by), [source])
    found: list[dict[str, Any]] = groups.to_table(use_threads=True).to_pylist()
    return found


class _Compute:
    def __getattr__(self, name: str) -> Any:
        return partial(_call, name)

    @staticmethod
    def fill_null(values: pa.Array, fill_value: Any) -> pa.Array:
        return _core().call_function("coalesce", [values, pa.scalar(fill_value, values.type)])

    @staticmethod
    def map_lookup(values: pa.Array, key: str, occurrence: str) -> pa.Array:
        core = _core()
        return core.call_function("map_lookup", [values], core.MapLookupOptions(pa.scalar(key), occurrence))

    @staticmethod
    def cast(values: pa.Array, kind: pa.DataType, *, safe: bool = True) -> pa.Array:
        core = _core()
        options = core.CastOptions.safe(kind) if safe else core.CastOptions.unsafe(kind)
        return core.call_function("cast", [values], options)


if not TYPE_CHECKING:
    compute = _Compute()


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
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return flags[column.offset : column.offset + len(column)].astype(bool)


def column_of(values: npt.NDArray[Any]) -> pa.Array:
    """A column of these integers or booleans."""
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def texts_of(column: pa.Array) -> tuple[list[str], Longs]:
    """The distinct texts of a column, and the number of each row's text; that after the last one for null."""
    encoded = compute.dictionary_encode(column)
    texts: list[str] = encoded.dictionary.to_pylist()
    return texts, numbers_of(encoded.indices, len(texts))


Array = npt.NDArray[Any]


def distinct(numbers: Array) -> Array:
    """The distinct numbers in ascending order."""
    ordered = np.sort(numbers, axis=None)
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def are_in(numbers: Array, ordered: Array) -> npt.NDArray[np.bool_]:
    """Which numbers an ascending array has."""
    if not len(ordered):
        return np.zeros(len(numbers), np.bool_)
    place = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    found: npt.NDArray[np.bool_] = ordered[place] == numbers
    return found


def numbered(numbers: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """The distinct numbers, and the place of each number of a one-dimensional array among them."""
    found = distinct(numbers)
    return found, np.searchsorted(found, numbers)
