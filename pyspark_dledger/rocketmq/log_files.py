"""The files of a broker's log as they are now: those of an old CommitLog, then DLedger's, as one log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pyspark_dledger.common.integers import INT64_MIN
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.log.io.store_paths import list_segments

OLD_FOLDER = "commitlog"


class LogFiles:
    """Segments below ``root/commitlog`` and in `data_dirs`, listed anew by `refresh`."""

    def __init__(self, root: Path, data_dirs: Iterable[Path]) -> None:
        self.old_dir = root / OLD_FOLDER
        self.data_dirs = tuple(data_dirs)
        self.segments: list[Segment] = []
        self.divided = -1
        """Where DLedger's files begin; -1 without any."""
        self.refresh()

    def refresh(self) -> None:
        """List the files. Raises StoreError where two have one name."""
        ledger = list_segments([folder for folder in self.data_dirs if folder.is_dir()], DLEDGER, True)
        old = list_segments([self.old_dir] if self.old_dir.is_dir() else [], COMMITLOG, True)
        self.divided = ledger[0].base if ledger else -1
        if ledger:
            # What lies at or behind DLedger's first file is DLedger's, whatever the old folder holds there.
            first = ledger[0].base
            old = [replace(part, size=min(part.size, first - part.base)) for part in old if part.base < first]
        self.segments = old + ledger

    def at(self, pos: int) -> Segment | None:
        """The segment that holds a position; where that has expired, the next one. None where there is none yet."""
        for is_fresh in (False, True):
            if is_fresh:
                self.refresh()
            place = bisect_right(self.segments, pos, key=lambda segment: segment.base) - 1
            if place >= 0 and pos < self.segments[place].end:
                return self.segments[place]
        return self.segments[place + 1] if place + 1 < len(self.segments) else None

    def begin(self, engine: Engine) -> int:
        """Where the first entry or message stands, or would; 0 without files."""
        return self.first_in(engine, self.segments[0]) if self.segments else 0

    def first_in(self, engine: Engine, segment: Segment) -> int:
        """Where the first entry of a segment stands: behind its beginning in a log that a reset began anew."""
        if segment.source == COMMITLOG or entry_at(segment, segment.base) is not None:
            return segment.base
        pos = engine.seek(segment, segment.base, segment.end, INT64_MIN)
        return pos if pos < segment.end else segment.base

    def pos_of(self, offset: int) -> int:
        """The position of the entry whose body stands at `offset`."""
        return offset - ENTRY_HEADER_SIZE if 0 <= self.divided <= offset else offset
