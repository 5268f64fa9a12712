"""Pushes a pyarrow expression down into a scan, as far as the scan evaluates it exactly as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.arrow.expression import Call, Field, Literal, Node, columns_of, tree_of
from pyspark_dledger.log.conditions import (
    ALL_ROWS,
    compared_column,
    comparison,
    exclusion,
    intersect,
    lookup_of_conditions,
    membership,
    presence,
)
from pyspark_dledger.log.lookups import Lookup

_SIGNS = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Pushed(NamedTuple):
    """What a scan does of an expression: it passes all rows that meet it, with ``is_exact`` no others.

    ``columns`` are those of the expression. A plan can use the ``lookup``.
    """

    columns: tuple[str, ...]
    filters: Filters
    lookup: Lookup | None
    is_exact: bool


def pushed_of(expression: pc.Expression) -> Pushed | None:
    """What a scan can do of `expression`; None if its columns cannot be told."""
    try:
        tree = tree_of(expression)
    except (ValueError, NotImplementedError):  # ArrowInvalid is a ValueError
        return None
    filters, is_exact = ALL_ROWS, True
    looked_up: list[Filters] = []
    for node in _conjuncts(tree):
        found, other = _condition(node, str), _condition(node, compared_column)
        is_exact = is_exact and found is not None
        filters = filters if found is None else intersect(filters, found)
        looked_up += [] if other is None else [other]
    columns = tuple(dict.fromkeys(columns_of(tree)))
    return Pushed(columns, filters, lookup_of_conditions(looked_up), is_exact)


def _conjuncts(node: Node) -> Iterator[Node]:
    """Conditions that together are `node`, where a row passes only if it is true."""
    match node:
        case Call("and" | "and_kleene", (first, second)):
            yield from _conjuncts(first)
            yield from _conjuncts(second)
        case Call(
            "if_else", (Call("is_valid", (Field(name),)), Call("is_in", (Field(other),)) as among, Literal(value))
        ) if name == other and not value.as_py() and _value_set(among) is not None:
            yield among  # DuckDB's form; no null is among values without null
        case _:
            yield node


def _condition(node: Node, named: Callable[[str], str]) -> Filters | None:
    """Filters that pass exactly the rows for which `node` is true, or None."""
    match node:
        case Field(name):
            return _committed(named(name), True)
        case Call("invert", (Field(name),)):
            return _committed(named(name), False)
        case Call("is_valid", (Field(name),)):
            return presence(named(name))
        case Call("equal", (Field(name), Literal(value)) | (Literal(value), Field(name))):
            return membership(named(name), [_value(value)])
        case Call("not_equal", (Field(name), Literal(value)) | (Literal(value), Field(name))):
            return exclusion(named(name), [_value(value)])
        case Call("is_in", (Field(name),)):
            values = _value_set(node)
            return None if values is None else membership(named(name), list(map(_value, values)))
        case Call(function, (Field(name), Literal(value))) if function in _SIGNS:
            return comparison(named(name), _SIGNS[function], _value(value))
        case Call(function, (Literal(value), Field(name))) if function in _SIGNS:
            return comparison(named(name), _TURNED[_SIGNS[function]], _value(value))
    return None


def _committed(column: str, value: bool) -> Filters | None:
    return membership(column, [value]) if column == "committed" else None


def _value_set(node: Call) -> pa.Array | None:
    """The values of an ``is_in``; None with null among them, which is equal to null."""
    values = None if node.options is None else node.options["value_set"].values
    return None if values is None or values.null_count else values


def _value(scalar: pa.Scalar) -> object:
    """A constant as conditions take it; for a time that microseconds do not give, one that none takes."""
    if pa.types.is_timestamp(scalar.type) and scalar.type.tz is not None:
        try:
            return scalar.cast(TIMESTAMP).as_py()
        except (ValueError, OverflowError):
            return scalar
    return scalar.as_py()
