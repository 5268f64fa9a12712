"""Copies frozen dataclasses with other values, as plans do for each segment."""

from __future__ import annotations

from typing import Any, TypeVar

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
