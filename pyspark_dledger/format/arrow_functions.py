"""`compute`: ``pyarrow.compute``, which is loaded when it is needed.

Loading it takes longer than reading a small store, because it builds a wrapper for each function of Arrow. Functions
that need no options are called without it.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    def match_substring(values: pa.Array, pattern: str) -> pa.Array:
        core = _core()
        return core.call_function("match_substring", [values], core.MatchSubstringOptions(pattern))

    @staticmethod
    def match_substring_regex(values: pa.Array, pattern: str) -> pa.Array:
        core = _core()
        return core.call_function("match_substring_regex", [values], core.MatchSubstringOptions(pattern))

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
