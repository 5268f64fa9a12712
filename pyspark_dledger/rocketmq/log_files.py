"""The current files of a broker's log: an old CommitLog, then DLedger's, as one log."""

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
    """Segments below ``root/commitlog`` and in `data_dirs`; `refresh` lists them again."""

    def __init__(self, root: Path, data_dirs: Iterable[Path]) -> None:
        self.old_dir = root / OLD_FOLDER
        self.data_dirs = tuple(data_dirs)
        self.segments: list[Segment] = []
        self.divided = -1
        """Where DLedger's files begin; -1 without any."""
        self.refresh()

    def refresh(self) -> None:
        """List the files. Raises StoreError if two have the same name."""
        ledger = list_segments([folder for folder in self.data_dirs if folder.is_dir()], DLEDGER, True)
        old = list_segments([self.old_dir] if self.old_dir.is_dir() else [], COMMITLOG, True)
        self.divided = ledger[0].base if ledger else -1
        if ledger:
            # From DLedger's first file on, files of the old folder do not count.
            first = ledger[0].base
            old = [replace(part, size=min(part.size, first - part.base)) for part in old if part.base < first]
        self.segments = old + ledger

    def at(self, pos: int) -> Segment | None:
        """The segment with a position, or the next one if it has expired. None if it does not exist yet."""
        for is_fresh in (False, True):
            if is_fresh:
                self.refresh()
            number = bisect_right(self.segments, pos, key=lambda segment: segment.base) - 1
            if number >= 0 and pos < self.segments[number].end:
                return self.segments[number]
        return self.segments[number + 1] if number + 1 < len(self.segments) else None

    def begin(self, engine: Engine) -> int:
        """The position of the first entry or message, or where it will be; 0 without files."""
        return self.first_in(engine, self.segments[0]) if self.segments else 0

    def first_in(self, engine: Engine, segment: Segment) -> int:
        """The position of a segment's first entry: after its beginning if the log was reset."""
        if segment.source == COMMITLOG or entry_at(segment, segment.base) is not None:
            return segment.base
        pos = engine.seek(segment, segment.base, segment.end, INT64_MIN)
        return pos if pos < segment.end else segment.base

    def pos_of(self, offset: int) -> int:
        """The position of the entry whose body is at `offset`; in an old CommitLog the offset itself."""
        return offset - ENTRY_HEADER_SIZE if 0 <= self.divided <= offset else offset
