"""What an index proves about the end of a log."""

from __future__ import annotations

from typing import NamedTuple


class Evidence(NamedTuple):
    """What the index proves about the end of the log in a segment.

    ``last_index``, ``last_term`` and ``last_end`` are of the last entry that it knows, ``committed_end`` is the end of
    the last one that the checkpoint proves committed; -1 without one. Both can be lost. ``log_end`` is set if the log
    ends in the segment and units of truncated entries follow.
    """

    last_index: int
    last_term: int
    last_end: int
    committed_end: int
    log_end: int | None

    def end_before(self, index: int, term: int, pos: int) -> int | None:
        """Where the log ends if the entry with this index and term, which ends at `pos`, is stale; else None."""
        if self.log_end is not None:
            return self.log_end if self.log_end < pos else None
        is_stale = self.last_end < pos and (index <= self.last_index or term < self.last_term)
        return self.last_end if is_stale and self.last_end >= 0 else None


NO_EVIDENCE = Evidence(-1, -1, -1, -1, None)
