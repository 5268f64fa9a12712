"""The files of a broker's log, an old CommitLog and then DLedger's, as one log; and what deletes expired files.

An old CommitLog's files expire, and ConsumeQueues and IndexFiles of deleted messages. The store deletes DLedger's own
files, once an old CommitLog has no more. Source: RocketMQ 5.3.3 ``DLedgerCommitLog.deleteExpiredFile``,
``DefaultMessageStore.CleanCommitLogService``, ``CleanConsumeQueueService``.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MIN
from pyspark_dledger.common.retention import Retention, used_ratio
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.log.io.store_paths import list_segments
from pyspark_dledger.rocketmq.unit_files.index_writer import IndexWriter
from pyspark_dledger.rocketmq.unit_files.queue_writer import QueueWriter

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


_LOG = logging.getLogger(__name__)
_MAX_DELETED = 10


class DeletedCounts(NamedTuple):
    """How many files were deleted."""

    old_files: int
    queue_files: int
    index_files: int


@dataclass
class FileCleaner:
    """`run_once` deletes. `now` returns seconds since 1970, `used` the used part of a folder's disk (0 to 1).

    ``before_old_expiry`` is called before files of an old CommitLog are deleted.
    """

    root: Path
    files: LogFiles
    settings: Retention
    queues: QueueWriter
    index: IndexWriter
    now: Callable[[], float] = time.time
    used: Callable[[Path], float] = used_ratio
    before_old_expiry: Callable[[], object] = lambda: None
    _begin: int = field(default=-1, init=False)

    def run_once(self) -> DeletedCounts:
        """Delete expired files. From the thread that writes queues and index. Raises OSError."""
        self.files.refresh()
        old = self._delete_old()
        if old:
            self.files.refresh()
        begin = self.files.segments[0].base if self.files.segments else 0
        if begin == self._begin:
            return DeletedCounts(old, 0, 0)
        cleaned = DeletedCounts(old, self.queues.delete_before(begin), self.index.delete_before(begin))
        self._begin = begin
        if any(cleaned):
            _LOG.info("the log begins at %d: deleted %d files of queues and %d of the index", begin, *cleaned[1:])
        return cleaned

    def _delete_old(self) -> int:
        """Delete the first files of an old CommitLog that have expired, at most ten, the last one among them."""
        files = [segment for segment in self.files.segments if segment.source == COMMITLOG]
        if not files:
            return 0
        settings = self.settings
        fullest = self.used(self.root)
        force = fullest > settings.disk_space_ratio_to_force_clean and settings.enable_disk_force_clean
        now = self.now()
        if not settings.is_due(now, fullest):
            return 0
        changed_before = settings.expires_before(now)
        count = 0
        for segment in files[:_MAX_DELETED]:
            path = Path(segment.path)
            if not force and path.stat().st_mtime > changed_before:
                break
            if not count:
                self.before_old_expiry()
            path.unlink()
            count += 1
        if count:
            _LOG.info("deleted %d files of the old CommitLog, up to %d", count, files[count - 1].end)
        return count
