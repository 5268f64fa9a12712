"""What an index proves about the end of a log."""

from __future__ import annotations

from typing import NamedTuple


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

    def end_before(self, index: int, term: int, pos: int) -> int | None:
        """Where the log ends if the entry with this index and term, which ends at `pos`, is stale; else None."""
        if self.log_end is not None:
            return self.log_end if self.log_end < pos else None
        # Truncated entries and those that overwrote them never have the same term.
        is_other = term < self.last_term or (term > self.last_term and self.ends_in_gap)
        is_stale = self.last_end < pos and (index <= self.last_index or is_other)
        return self.last_end if is_stale and self.last_end >= 0 else None


NO_EVIDENCE = Evidence(-1, -1, -1, -1, None, False)
