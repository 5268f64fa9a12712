"""Finds entries after the log's end that a leader had truncated, where no index unit shows it any more.

Java overwrites truncated entries from the first one on, so a hole is between the log's end and those that remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark_dledger.log.copies.runs import Run


class OwnEnd(NamedTuple):
    """The last index of a source's own log, and the end index in its checkpoint; -1 where unknown."""

    last_index: int
    checkpoint_end: int

    def is_at(self, index: int) -> bool:
        """Whether the log ends with this entry; its checkpoint can be some seconds older."""
        return self.last_index == index >= self.checkpoint_end


def stale_runs(runs: Sequence[Run], ends: Sequence[OwnEnd], committed: int, max_term: int | None) -> list[Run]:
    """The runs that are after a hole which no source fills, and not of the log.

    Only one source has such a run; another one's log ends where the hole begins; the run's term is over; and nothing
    proves it committed. `committed` is the highest committed index of all sources, `max_term` the highest current term.
    """
    found: list[Run] = []
    reached = -1
    for run in sorted(runs, key=lambda run: run.first_index):
        is_after_hole = run.first_index > reached + 1 > 0
        is_uncommitted = len(run.sources) == 1 and run.first_index > committed
        is_over = max_term is not None and run.term < max_term
        if is_after_hole and is_uncommitted and is_over and any(end.is_at(reached) for end in ends):
            found.append(run)
        else:
            reached = max(reached, run.last_index)
    return found
