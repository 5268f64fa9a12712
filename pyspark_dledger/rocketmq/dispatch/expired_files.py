"""Deletes expired files of a broker: an old CommitLog, then ConsumeQueues and IndexFiles of deleted messages.

The store deletes DLedger's own files, once an old CommitLog has no more. Source: RocketMQ 5.3.3
``DLedgerCommitLog.deleteExpiredFile``, ``DefaultMessageStore.CleanCommitLogService``, ``CleanConsumeQueueService``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.retention import Retention, used_ratio
from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.rocketmq.log_files import LogFiles
from pyspark_dledger.rocketmq.unit_files.index_writer import IndexWriter
from pyspark_dledger.rocketmq.unit_files.queue_writer import QueueWriter

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
