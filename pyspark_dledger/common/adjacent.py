"""Merges adjacent items of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def merge_adjacent(items: Iterable[_Item], join: Callable[[_Item, _Item], _Item | None]) -> Iterator[_Item]:
    """The items in order. ``join(last, item)`` makes one of two adjacent items, or None if both stay."""
    last: _Item | None = None
    for item in items:
        joined = join(last, item) if last is not None else None
        if joined is None and last is not None:
            yield last
        last = item if joined is None else joined
    if last is not None:
        yield last
