"""Sets of numbers as arrays, without ``numpy.unique`` and ``numpy.isin``, which load ``numpy.ma``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def distinct(numbers: Array) -> Array:
    """The distinct numbers in ascending order."""
    ordered = np.sort(numbers, axis=None)
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def are_in(numbers: Array, ordered: Array) -> npt.NDArray[np.bool_]:
    """Which numbers an ascending array has."""
    if not len(ordered):
        return np.zeros(len(numbers), np.bool_)
    place = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    found: npt.NDArray[np.bool_] = ordered[place] == numbers
    return found


def numbered(numbers: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """The distinct numbers, and the place of each number of a one-dimensional array among them."""
    found = distinct(numbers)
    return found, np.searchsorted(found, numbers)
