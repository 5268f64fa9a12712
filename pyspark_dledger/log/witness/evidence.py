"""What an index proves about the end of a log."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.spec import LogEnd


class Evidence(NamedTuple):
    """What the index proves about the end of the log in a segment.

    ``last_index``, ``last_term`` and ``last_end`` are of the last entry that it knows, ``committed_end`` is the end of
    the last one that the checkpoint proves committed; -1 without one. Both can be lost. ``log_end`` is set if the log
    ends in the segment and units of truncated entries follow. ``ends_in_gap`` says that nothing which is there
    continues the last entry.
    """

    last_index: int
    last_term: int
    last_end: int
    committed_end: int
    log_end: int | None
    ends_in_gap: bool

    def is_contradicted_by(self, end: LogEnd) -> bool:
        """Whether the last entry that a search found is stale: the one that the index knows is of a later log."""
        is_other = end.last_index <= self.last_index or end.last_term < self.last_term
        return 0 <= self.last_end < end.pos and is_other


NO_EVIDENCE = Evidence(-1, -1, -1, -1, None, False)
