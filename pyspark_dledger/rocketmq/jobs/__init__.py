"""Writes a folder in parts: plan, parts, read back, manifest; the same call continues it after a kill.

The parts are done in this process, or where the caller's function does them, such as in Spark tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

MapParts = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""Calls a picklable function with each picklable part; yields the results as they finish."""

Progress = Callable[[int, int], None]
"""Called with what is done, and with all there is to do, such as bytes of the log."""


def map_here(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
    """Do the work in this process, in the order of the parts."""
    return map(work, parts)
