"""Parameters with many values, of which `make test-fast` takes a few."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def mostly_slow(values: Iterable[object], fast: int) -> list[object]:
    """The values of a parameter: all but the first `fast` are marked slow."""
    marks = ((), pytest.mark.slow)
    return [pytest.param(value, marks=marks[number >= fast]) for number, value in enumerate(values)]
