"""Conditions on columns as filters of a scan. A filter passes exactly the rows for which its condition is true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format.spec import KINDS, Filters, IntFilter
from pyspark_dledger.log.options import microseconds

ALL_ROWS = Filters()

STRINGS = {"topic": "topic", "tags": "tags", "kind": "kind"}
"""The columns of text that a scan filters, and their fields of `Filters`."""

_INTEGERS = {"index": "index", "term": "term", "pos": "pos", "queueId": "queue_id", "storeTimestamp": "store_timestamp"}
_NEVER_NULL = frozenset({"pos", "kind"})
_NO_VALUE = IntFilter(values=())
_NO_ROW = Filters(pos=_NO_VALUE)

# Columns of the scan that are compared in the same way.
_COMPARED_AS = {"queueOffset": "pos", "keys": "topic", "uniqKey": "tags"}


@dataclass(frozen=True)
class Lookup:
    """Rows with other ``queue_offsets``, or with none of these ``keys`` as a key or uniqKey, need not be read.

    Both have an effect only with topics of the filters, queue offsets also with queues, and keys with trustKeyIndex.
    """

    queue_offsets: IntFilter | None = None
    keys: tuple[str, ...] | None = None


def compared_column(column: str) -> str:
    """The column as which a condition of a column is written, for `lookup_of_conditions`; others have no condition."""
    return _COMPARED_AS.get(column, "size")


def lookup_of_conditions(conditions: Iterable[Filters]) -> Lookup | None:
    """What conditions of queueOffset, keys and uniqKey, see `compared_column`, let a plan look up; None without one."""
    offsets: IntFilter | None = None
    keys: tuple[str, ...] | None = None
    for condition in conditions:
        if condition.pos is not None:
            offsets = _intersect_integers(offsets, condition.pos)
        if condition.topic is not None:
            keys = _first_words(condition.topic) or keys
        if condition.tags is not None:
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
    for field in STRINGS.values():
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


def membership(column: str, given: Sequence[object]) -> Filters | None:
    """``column IN (given)``. A null in it never makes it true."""
    values = [value for value in given if value is not None]
    if column == "committed":
        return _committed(values)
    if column in STRINGS:
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) < len(values):
            return None
        known = [value for value in strings if column != "kind" or value in KINDS]
        return _filters(STRINGS[column], tuple(dict.fromkeys(known)))
    if column in _INTEGERS:
        numbers = [_number(column, value) for value in values]
        known_numbers = {number for number in numbers if number is not None}
        return None if None in numbers else _filters(_INTEGERS[column], _one_of(known_numbers))
    return None


def exclusion(column: str, given: Sequence[object]) -> Filters | None:
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


def presence(column: str) -> Filters | None:
    if column in _NEVER_NULL:
        return Filters()
    return _filters(_INTEGERS[column], IntFilter()) if column in _INTEGERS else None


def comparison(column: str, sign: str, value: object) -> Filters | None:
    """``column sign value``, where the sign is ``<``, ``<=``, ``>`` or ``>=``."""
    number = _number(column, value) if column in _INTEGERS else None
    if number is None:
        return None
    bounds = {
        "<": (INT64_MIN, number - 1),
        "<=": (INT64_MIN, number),
        ">": (number + 1, INT64_MAX),
        ">=": (number, INT64_MAX),
    }
    return _filters(_INTEGERS[column], _range(*bounds[sign]))


def _number(column: str, value: object) -> int | None:
    """Return `value` as the scan compares it, a timestamp in microseconds; None for another type."""
    if column == "storeTimestamp":
        # Without a zone it would be in the session's zone, which is unknown here. Spark's literals have one.
        return microseconds(value) if isinstance(value, datetime) and value.tzinfo is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
