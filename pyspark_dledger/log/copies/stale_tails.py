"""Finds entries after the log's end that a leader had truncated, where no index unit shows it any more.

Java overwrites truncated entries from the first one on, so a hole is between the log's end and those that remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.io.state_files import read_current_term
from pyspark_dledger.log.store_view import StoreView


class OwnEnd(NamedTuple):
    """The last index of a source's own log, and the end index in its checkpoint; -1 where unknown."""

    last_index: int
    checkpoint_end: int

    def is_at(self, index: int) -> bool:
        """Whether the log ends with this entry; its checkpoint can be some seconds older."""
        return self.last_index == index >= self.checkpoint_end


class Bounds(NamedTuple):
    """The highest committed index of all sources (-1: none known), and their highest current term."""

    committed: int
    max_term: int | None


def own_end(store: StoreView) -> OwnEnd:
    """The ends of a store's log, as it and its checkpoint say."""
    end = store.checkpoint.end_index if store.checkpoint is not None else None
    return OwnEnd(store.end.last_index, -1 if end is None else end)


def highest_term(stores: Iterable[StoreView]) -> int | None:
    """The highest current term of the nodes; None if none is known."""
    folders = (store.paths.node_dir for store in stores if store.paths.node_dir is not None)
    found = (term for term, file in map(read_current_term, folders) if file == "currterm")
    return max((term.curr_term for term in found if term is not None and term.curr_term is not None), default=None)


def is_stale(first_index: int, term: int, reached: int, ends: Sequence[OwnEnd], bounds: Bounds) -> bool:
    """Whether entries that one source alone has, from `first_index` on, are not of the log that reaches `reached`.

    They are after a hole, where another source's log ends; their last `term` is over; nothing proves them committed.
    """
    is_after_hole = first_index > reached + 1 > 0 and first_index > bounds.committed
    is_over = bounds.max_term is not None and term < bounds.max_term
    return is_after_hole and is_over and any(end.is_at(reached) for end in ends)


def stale_runs(runs: Sequence[Run], ends: Sequence[OwnEnd], bounds: Bounds) -> list[Run]:
    """The runs that are after a hole which no source fills, and not of the log (`is_stale`)."""
    found: list[Run] = []
    reached = -1
    for run in sorted(runs, key=lambda run: run.first_index):
        if len(run.sources) == 1 and is_stale(run.first_index, run.term, reached, ends, bounds):
            found.append(run)
        else:
            reached = max(reached, run.last_index)
    return found
