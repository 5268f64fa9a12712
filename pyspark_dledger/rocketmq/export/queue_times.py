"""When the files of ConsumeQueues were written last, as a broker before 5.1 takes it from their modification times.

It looks for a time in the first file of a queue that was modified at that time or later. Source: RocketMQ 4.9.8
``ConsumeQueue.getOffsetInQueueByTime``, ``MappedFileQueue.getMappedFileByTime``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyspark_dledger.format.layout import MESSAGE_HEADER_SIZE
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.consume_queue import UNITS_AT_ONCE, QueueFile, queues, read_units, written_units
from pyspark_dledger.log.entries import read_at, segment_at
from pyspark_dledger.rocketmq.consume_queue import is_filler
from pyspark_dledger.rocketmq.export.message_block import MessageBlock

_NANOSECONDS = 1_000_000


def date_queue_files(root: Path, segments: Sequence[Segment], kept_from: Path | None) -> None:
    """Let each file below ``root/consumequeue`` be modified when its last message was stored, of a plain CommitLog.

    A file whose messages have all expired has its time from the one that it was kept from, below another
    storePathRootDir. Raises OSError.
    """
    log = list(segments)
    for queue in queues(root):
        for file in queue.files:
            stored = _last_stored(file, log) * _NANOSECONDS
            time = stored if stored > 0 else _modified(Path(file.path).relative_to(root), kept_from)
            if time is not None:
                os.utime(file.path, ns=(time, time))


def _modified(file: Path, root: Path | None) -> int | None:
    """When a file was modified, in nanoseconds since 1970; None where it is not there."""
    try:
        return (root / file).stat().st_mtime_ns if root is not None else None
    except OSError:
        return None


def _last_stored(file: QueueFile, log: list[Segment]) -> int:
    """The storeTimestamp of the last message that a file has a unit of, in milliseconds; 0 without one in the log."""
    written = written_units(file)
    for stop in range(written, 0, -UNITS_AT_ONCE):
        for units in read_units(file, max(stop - UNITS_AT_ONCE, 0), stop):
            offsets = units["commitLogOffset"][(units["size"] > 0) & ~is_filler(units)]
            if len(offsets):
                return _stored_at(int(offsets[-1]), log)
    return 0


def _stored_at(offset: int, log: list[Segment]) -> int:
    segment = segment_at(log, offset)
    if segment is None:
        return 0
    data = np.frombuffer(read_at(segment.path, offset - segment.base, 2 * MESSAGE_HEADER_SIZE), np.uint8)
    zero = np.zeros(1, np.int64)
    return int(MessageBlock(data, zero, zero, zero).store_timestamps()[0]) if len(data) else 0
