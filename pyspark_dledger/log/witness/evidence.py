"""What an index proves about the end of a log."""

from __future__ import annotations

from typing import NamedTuple


class Evidence(NamedTuple):
    """What the index proves about the end of the log in a segment.

    ``committed_end`` is the end of the last entry that index and checkpoint prove committed, even if it is lost; -1
    without one. ``log_end`` is set if the log ends in the segment and units of truncated entries follow.
    """

    committed_end: int
    log_end: int | None
