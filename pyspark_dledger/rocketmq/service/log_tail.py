"""Reads the part of the log that is not dispatched yet, committed or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.rocketmq.dedup.identity_arrays import IdentityArrays, identity_arrays
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS, LogPart, read_part
from pyspark_dledger.rocketmq.log_files import LogFiles
from pyspark_dledger.rocketmq.message_arrays import QueueName

_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass
class LogTail:
    """The next queueOffset of each queue, and the identities, of a part of the log."""

    ends: dict[QueueName, int] = field(default_factory=dict)
    identities: list[IdentityArrays] = field(default_factory=list)

    def add(self, part: LogPart) -> None:
        queue, queue_offset, _ = part.units()
        ends = np.zeros(len(part.names.names), np.int64)
        np.maximum.at(ends, queue, queue_offset + 1)
        for name, end in zip(part.names.names, ends.tolist(), strict=True):
            if end > self.ends.get(name, 0):
                self.ends[name] = end


def read_tail(
    engine: Engine, files: LogFiles, start: int, end: int, is_wanted: Callable[[], bool] = lambda: True
) -> LogTail | None:
    """Read ``[start, end)`` of the log, both positions of entries; None as soon as it is not `is_wanted`.

    Raises StoreError if the log's files cannot be read.
    """
    tail, pos = LogTail(), start
    while pos < end:
        if not is_wanted():
            return None
        segment = files.at(pos)
        if segment is None:
            raise StoreError(f"expected a file of the log at {pos}, found none: check its data folders")
        begin = max(pos, segment.base)
        stop = min(segment.end, end, begin + _CHUNK_BYTES)
        if stop <= begin:
            break
        part = read_part(engine, segment, begin, stop, DELAYS_MS)
        tail.add(part)
        found = engine.put_ids(segment, begin, min(part.end, end))
        if len(found.index):
            tail.identities.append(identity_arrays(found.ids, found.index))
        pos = part.end
    return tail
