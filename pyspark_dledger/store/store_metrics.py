"""What a store measures for operators."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.histogram import Histogram


class ScrubProgress(NamedTuple):
    """Bytes that the scrubber has read since the start and in this pass, and those that a pass reads.

    ``last_pass`` is when the last whole pass ended, in seconds since 1970; 0 for none. ``rebuilt_units`` counts index
    units since the start.
    """

    checked_bytes: int = 0
    pass_bytes: int = 0
    log_bytes: int = 0
    last_pass: float = 0.0
    rebuilt_units: int = 0


class StoreMetrics(NamedTuple):
    """A store in memory has no flushes and no folders."""

    is_disk_full: bool = False
    folders: tuple[Path, ...] = ()
    flushes: Histogram | None = None
    scrub: ScrubProgress = ScrubProgress()
