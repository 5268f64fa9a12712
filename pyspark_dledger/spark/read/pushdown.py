"""Pushes filters down into a scan that the extension plans. Needs PySpark 4.1 or later.

A filter is pushed only if the scan evaluates it exactly as Spark would. Spark evaluates all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import datasource

from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.conditions import (
    STRINGS,
    Lookup,
    compared_column,
    comparison,
    exclusion,
    intersect,
    lookup_of_conditions,
    membership,
    presence,
)
from pyspark_dledger.spark.read.batch_reader import LogReader


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
    compared = {name: compared_column(column) for name, column in names.items()}
    found: list[Filters] = []
    for item in filters:
        condition = _condition(item, compared)
        if condition is not None:
            found.append(condition)
    return lookup_of_conditions(found)


def _condition(item: datasource.Filter, names: Mapping[str, str]) -> Filters | None:
    """Return filters that pass exactly the rows for which `item` is true, or None."""
    match item:
        case datasource.EqualTo((name,), value):
            return membership(names[name], [value])
        case datasource.EqualNullSafe((name,), value) if value is not None:
            return membership(names[name], [value])
        case datasource.In((name,), values):
            return membership(names[name], values)
        case datasource.Not(datasource.EqualTo((name,), value)):
            return exclusion(names[name], [value])
        case datasource.Not(datasource.In((name,), values)):
            return exclusion(names[name], values)
        case datasource.IsNotNull((name,)):
            return presence(names[name])
        case datasource.GreaterThan((name,), value):
            return comparison(names[name], ">", value)
        case datasource.GreaterThanOrEqual((name,), value):
            return comparison(names[name], ">=", value)
        case datasource.LessThan((name,), value):
            return comparison(names[name], "<", value)
        case datasource.LessThanOrEqual((name,), value):
            return comparison(names[name], "<=", value)
    return None


def _implied(item: datasource.Filter, names: Mapping[str, str], filters: Filters) -> bool:
    """Return whether `item` requires not null, and `filters` already require a value."""
    match item:
        case datasource.IsNotNull((name,)):
            column = names[name]
            field = "committed" if column == "committed" else STRINGS.get(column)
            return field is not None and getattr(filters, field) is not None
    return False
