"""Sets the modification times of ConsumeQueue files, by which brokers before 5.1 search messages by time.

They search in the first file that was modified at that time or later. Source: RocketMQ 4.9.8
``ConsumeQueue.getOffsetInQueueByTime``, ``MappedFileQueue.getMappedFileByTime``.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark_dledger.format import layout
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.dispatch.log_part import stored_at

_NANOSECONDS = 1_000_000


class QueueTimes:
    """Gives files the times of their last messages, from the log or, for expired messages, from existing files.

    `keep_from` is the storePathRootDir of these files.
    """

    def __init__(self, log: StoreView, keep_from: Path | None) -> None:
        self._log, self._keep_from = log, keep_from

    def set(self, root: Path, file: Path, last_offset: int) -> None:
        """Set the time of a file below `root` to the storeTimestamp of the message at a position. Raises OSError.

        -1 stands for no message. Without a known time the file is unchanged.
        """
        stored = self._stored_at(last_offset)
        time = stored * _NANOSECONDS if stored > 0 else self._kept(file.relative_to(root))
        if time is not None:
            os.utime(file, ns=(time, time))

    def _stored_at(self, offset: int) -> int:
        segment = segment_at(self._log.segments, offset)
        if segment is None:
            return 0
        header = layout.ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0
        return stored_at(self._log.engine, segment, offset - header) or 0

    def _kept(self, file: Path) -> int | None:
        if self._keep_from is None:
            return None
        try:
            return (self._keep_from / str(file)).stat().st_mtime_ns
        except OSError:
            return None
