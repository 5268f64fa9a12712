"""Parameters and examples that the suite takes a part of: `make breadth` takes all, `make test-fast` the fewest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

BREADTH = bool(os.environ.get("DLEDGER_BREADTH"))
# `make interop` compares with Java for so long.
SECONDS = float(os.environ.get("DLEDGER_INTEROP") or 0)
SEED = int(os.environ.get("DLEDGER_INTEROP_SEED") or 1)
BUDGET = int(os.environ.get("DLEDGER_TEST_BUDGET", "1"))
takes_long = pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS starts brokers")

T = TypeVar("T")


def mostly_slow(values: Iterable[object], fast: int, suite: int | None = None) -> list[object]:
    """The values of a parameter: slow after the first `fast`; after the first `suite` only `make breadth` has them."""
    marks = ((), pytest.mark.slow)
    chosen = list(values) if BREADTH else list(values)[:suite]
    return [pytest.param(value, marks=marks[number >= fast]) for number, value in enumerate(chosen)]


def some(values: Iterable[T], count: int) -> list[T]:
    """At most `count` values of a parameter, spread evenly; `make breadth` takes all."""
    found: Sequence[T] = list(values)
    if BREADTH or len(found) <= count:
        return list(found)
    return [found[number * len(found) // count] for number in range(count)]


def first(values: Sequence[T], count: int) -> Sequence[T]:
    """The first `count` values of a parameter, such as versions; `make breadth` and `make interop` take all."""
    return values if BREADTH or SECONDS else values[:count]


def examples(count: int) -> int:
    """Examples of a property test; `make properties` draws more."""
    return count * BUDGET
