"""Pushes Spark's filters down into the scan. Needs PySpark 4.1 or later.

A filter is pushed only if the scan evaluates it exactly as Spark would. Spark evaluates all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format.spec import KINDS, Filters, IntFilter
from pyspark_dledger.log.lookups import Lookup
from pyspark_dledger.log.options import microseconds
from pyspark_dledger.spark.read.batch_reader import LogReader

_INTEGERS = {"index": "index", "term": "term", "pos": "pos", "queueId": "queue_id", "storeTimestamp": "store_timestamp"}
# Columns of the scan that are compared in the same way.
_COMPARED_AS = {"queueOffset": "pos", "keys": "topic", "uniqKey": "tags"}
_STRINGS = {"topic": "topic", "tags": "tags", "kind": "kind"}
_NEVER_NULL = frozenset({"pos", "kind"})
_NO_VALUE = IntFilter(values=())
_NO_ROW = Filters(pos=_NO_VALUE)


class FilterPushdown:
    """Part of a reader for a planner that pushes filters. Other planners reject a reader that has ``pushFilters``."""

    schema: pa.Schema
    columns: tuple[str, ...]
    filters: Filters

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:  # noqa: N802 - Spark's name
        """Push what the scan can evaluate, and return the other filters."""
        names = dict(zip(self.schema.names, self.columns, strict=True))
        self.lookup = lookup_of(filters, names)
        self.filters, remaining = push(filters, names, self.filters)
        return remaining


class PushdownReader(FilterPushdown, LogReader):
    """Reads the ``log`` table of a store."""


def push(
    filters: Iterable[datasource.Filter], names: Mapping[str, str], given: Filters
) -> tuple[Filters, list[datasource.Filter]]:
    """Narrow `given` by Spark's `filters`; return the result and the remaining filters.

    `names` maps the user's spelling of each column to the table's.
    """
    remaining: list[datasource.Filter] = []
    for item in filters:
        condition = _condition(item, names)
        if condition is None:
            remaining.append(item)
        else:
            given = intersect(given, condition)
    return given, [item for item in remaining if not _implied(item, names, given)]


def lookup_of(filters: Iterable[datasource.Filter], names: Mapping[str, str]) -> Lookup | None:
    """What Spark's `filters` on queueOffset, keys and uniqKey let a plan look up; None without one."""
    offsets: IntFilter | None = None
    keys: tuple[str, ...] | None = None
    compared = {name: _COMPARED_AS.get(column, "size") for name, column in names.items()}
    for item in filters:
        condition = _condition(item, compared)
        if condition is not None and condition.pos is not None:
            offsets = _intersect_integers(offsets, condition.pos)
        if condition is not None and condition.topic is not None:
            keys = _first_words(condition.topic) or keys
        if condition is not None and condition.tags is not None:
            keys = condition.tags
    return None if offsets is None and not keys else Lookup(offsets, keys or None)


def _first_words(texts: Iterable[str]) -> tuple[str, ...] | None:
    """The first key in each of some values of the column keys; None if one has none."""
    words = [[word for word in text.split(" ") if word] for text in texts]
    return tuple(each[0] for each in words) if all(words) else None


def intersect(first: Filters, second: Filters) -> Filters:
    """Return filters that pass the rows that both pass."""
    if first.committed is not None and second.committed is not None and first.committed != second.committed:
        return _NO_ROW
    both: dict[str, Any] = {"committed": second.committed if first.committed is None else first.committed}
    for field in _INTEGERS.values():
        both[field] = _intersect_integers(getattr(first, field), getattr(second, field))
    for field in _STRINGS.values():
        both[field] = _intersect_strings(getattr(first, field), getattr(second, field))
    return Filters(**both)


def _intersect_integers(first: IntFilter | None, second: IntFilter | None) -> IntFilter | None:
    if first is None or second is None:
        return second if first is None else first
    low, high = max(first.low, second.low), min(first.high, second.high)
    if first.values is None and second.values is None:
        return _range(low, high)
    values = set(second.values or ()) if first.values is None else set(first.values)
    if second.values is not None:
        values &= set(second.values)
    return _one_of(value for value in values if low <= value <= high)


def _intersect_strings(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    return tuple(value for value in first if value in second)


def _one_of(values: Iterable[int]) -> IntFilter:
    """Return the filter for `values`. Its bounds let a plan skip segments."""
    ordered = tuple(sorted(values))
    return IntFilter(ordered[0], ordered[-1], ordered) if ordered else _NO_VALUE


def _range(low: int, high: int) -> IntFilter:
    low, high = max(low, INT64_MIN), min(high, INT64_MAX)
    return IntFilter(low, high) if low <= high else _NO_VALUE


def _filters(field: str, condition: IntFilter | tuple[str, ...]) -> Filters:
    values: dict[str, Any] = {field: condition}
    return replace(Filters(), **values)


def _condition(item: datasource.Filter, names: Mapping[str, str]) -> Filters | None:
    """Return filters that pass exactly the rows for which `item` is true, or None."""
    match item:
        case datasource.EqualTo((name,), value):
            return _membership(names[name], [value])
        case datasource.EqualNullSafe((name,), value) if value is not None:
            return _membership(names[name], [value])
        case datasource.In((name,), values):
            return _membership(names[name], values)
        case datasource.Not(datasource.EqualTo((name,), value)):
            return _exclusion(names[name], [value])
        case datasource.Not(datasource.In((name,), values)):
            return _exclusion(names[name], values)
        case datasource.IsNotNull((name,)):
            return _presence(names[name])
        case datasource.GreaterThan((name,), value):
            return _comparison(names[name], value, lambda number: _range(number + 1, INT64_MAX))
        case datasource.GreaterThanOrEqual((name,), value):
            return _comparison(names[name], value, lambda number: _range(number, INT64_MAX))
        case datasource.LessThan((name,), value):
            return _comparison(names[name], value, lambda number: _range(INT64_MIN, number - 1))
        case datasource.LessThanOrEqual((name,), value):
            return _comparison(names[name], value, lambda number: _range(INT64_MIN, number))
    return None


def _membership(column: str, given: Sequence[object]) -> Filters | None:
    """``column IN (given)``. A null in it never makes it true."""
    values = [value for value in given if value is not None]
    if column == "committed":
        return _committed(values)
    if column in _STRINGS:
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) < len(values):
            return None
        known = [value for value in strings if column != "kind" or value in KINDS]
        return _filters(_STRINGS[column], tuple(dict.fromkeys(known)))
    if column in _INTEGERS:
        numbers = [_number(column, value) for value in values]
        known_numbers = {number for number in numbers if number is not None}
        return None if None in numbers else _filters(_INTEGERS[column], _one_of(known_numbers))
    return None


def _exclusion(column: str, given: Sequence[object]) -> Filters | None:
    """``column NOT IN (given)``, for columns with few values. With a null in it it is never true."""
    if column not in ("kind", "committed"):
        return None
    if None in given:
        return _NO_ROW
    if column == "kind":
        return Filters(kind=tuple(kind for kind in KINDS if kind not in given))
    return _committed([value for value in (True, False) if value not in given])


def _committed(values: Sequence[object]) -> Filters | None:
    if not values:
        return _NO_ROW
    return Filters(committed=values[0] is True) if len(set(values)) == 1 else None


def _presence(column: str) -> Filters | None:
    if column in _NEVER_NULL:
        return Filters()
    return _filters(_INTEGERS[column], IntFilter()) if column in _INTEGERS else None


def _comparison(column: str, value: object, bounds: Callable[[int], IntFilter]) -> Filters | None:
    number = _number(column, value) if column in _INTEGERS else None
    return None if number is None else _filters(_INTEGERS[column], bounds(number))


def _number(column: str, value: object) -> int | None:
    """Return `value` as the scan compares it, a timestamp in microseconds; None for another type."""
    if column == "storeTimestamp":
        # Without a zone it would be in the session's zone, which is unknown here. Spark's literals have one.
        return microseconds(value) if isinstance(value, datetime) and value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _implied(item: datasource.Filter, names: Mapping[str, str], filters: Filters) -> bool:
    """Return whether `item` requires not null, and `filters` already require a value."""
    match item:
        case datasource.IsNotNull((name,)):
            column = names[name]
            field = "committed" if column == "committed" else _STRINGS.get(column)
            return field is not None and getattr(filters, field) is not None
    return False
