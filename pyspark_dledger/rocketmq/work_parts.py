"""How work that falls into parts is run: here, one part after the other, or wherever the caller has it done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""Does some work, a picklable callable, for each of some picklable parts; gives the results as they are done."""


def run_here(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
    """Do the work in this process, in the order of the parts."""
    return map(work, parts)
