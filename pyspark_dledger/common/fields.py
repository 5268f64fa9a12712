"""Dataclasses as rows, with names as columns, options and JSON spell them, and their copies with other values."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar


def column(doc: str) -> Any:
    """A field of a dataclass whose values are rows of a table, with the column's meaning."""
    return dataclasses.field(metadata={"doc": doc})


def camel_case(field: str) -> str:
    """``max_batch_rows`` as ``maxBatchRows``."""
    return re.sub("_(.)", lambda match: match[1].upper(), field)


def fields_row(item: Any) -> dict[str, Any]:
    """The fields of a dataclass by the names of columns; what is in them stays as it is, but dataclasses are dicts."""
    return {camel_case(name): value for name, value in dataclasses.asdict(item).items()}


def json_of(item: Any) -> Any:
    """A dataclass and its contents, by the names of columns."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {camel_case(each.name): json_of(getattr(item, each.name)) for each in dataclasses.fields(item)}
    if isinstance(item, (list, tuple)):
        return [json_of(each) for each in item]
    return {key: json_of(value) for key, value in item.items()} if isinstance(item, dict) else item


_Item = TypeVar("_Item")


def changed(item: _Item, **values: Any) -> _Item:
    """As ``dataclasses.replace``, ten times as fast. Field names are not checked; no ``__post_init__``, no slots."""
    made = object.__new__(type(item))
    object.__setattr__(made, "__dict__", item.__dict__ | values)
    return made


def changes(item: _Item, model: _Item) -> dict[str, Any]:
    """The values with which `changed` makes `item` from `model`."""
    before = model.__dict__
    return {name: value for name, value in item.__dict__.items() if value is not before[name]}
