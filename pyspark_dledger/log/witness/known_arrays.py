"""Selects and merges known entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.spec import KnownEntries


def chosen(known: KnownEntries, which: npt.NDArray[Any]) -> KnownEntries:
    """The entries that a mask or an array of numbers selects."""
    return KnownEntries(known.pos[which], known.end[which], known.is_whole[which])


def without_overlaps(known: KnownEntries) -> KnownEntries:
    """The sorted entries without those that begin before the end of an earlier one."""
    reach = np.maximum.accumulate(np.concatenate([[-1], known.end]))[:-1]
    return chosen(known, known.pos >= reach)


def merged(first: KnownEntries, more: KnownEntries) -> KnownEntries:
    """All of `first`, and those of `more` that overlap none of it. Both are sorted and disjoint."""
    before = np.searchsorted(first.pos, more.end) - 1
    ends = np.concatenate([first.end, [-1]])
    more = chosen(more, ends[before] <= more.pos)
    both = KnownEntries(
        np.concatenate([first.pos, more.pos]),
        np.concatenate([first.end, more.end]),
        np.concatenate([first.is_whole, more.is_whole]),
    )
    return chosen(both, np.argsort(both.pos, kind="stable"))
