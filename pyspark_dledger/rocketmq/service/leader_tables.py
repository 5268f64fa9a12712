"""What a leader knows of its whole log: next queueOffsets, identities, and how many queues each topic has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.rocketmq.consume_queue.topic_queues import TopicQueues
from pyspark_dledger.rocketmq.dedup.identity_arrays import IdentityArrays, identity_arrays
from pyspark_dledger.rocketmq.dedup.recent_identities import RecentIdentities
from pyspark_dledger.rocketmq.dispatch.dispatcher import Dispatcher
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS, LogPart, read_part
from pyspark_dledger.rocketmq.log_files import LogFiles
from pyspark_dledger.rocketmq.message_arrays import QueueName
from pyspark_dledger.rocketmq.service.dispatched_tables import DispatchedTables

_POLL_SECONDS = 0.005
_CHUNK_BYTES = 16 * 1024 * 1024


class LeaderTables:
    """Next queueOffsets and recent identities, of entries committed or not; each put updates them."""

    def __init__(self, queues: TopicQueues, recent: RecentIdentities) -> None:
        self.queues = queues
        self.recent = recent
        self._queue_counts: dict[str, int] = {}
        self.add_queues(queues.ends())

    def add_queues(self, queues: Iterable[QueueName]) -> None:
        for topic, queue_id in queues:
            self._queue_counts[topic] = max(self._queue_counts.get(topic, 0), queue_id + 1)

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has in the log."""
        return self._queue_counts.get(topic, 0)


def rebuild_leader_tables(
    dispatched: DispatchedTables,
    dispatcher: Dispatcher,
    engine: Engine,
    files: Callable[[], LogFiles],
    *,
    committed: int,
    min_pos: int,
    end: int,
    is_wanted: Callable[[], bool],
) -> LeaderTables | None:
    """The tables of a log that ends at `end`; None once they are not `is_wanted`, or if dispatch fails.

    Waits until `committed` (an index) and `min_pos` are dispatched. It does not wait for entries that are not
    committed: these may need the very put that would wait (RocketMQ's ``DLedgerRoleChangeHandler`` waits for them).
    """
    while dispatcher.dispatched_index < committed or dispatcher.dispatched_offset < min_pos:
        if not is_wanted() or dispatcher.failure is not None:
            return None
        time.sleep(_POLL_SECONDS)
    queues, pos, identities = dispatched.snapshot()
    tail = read_tail(engine, files(), pos, end, is_wanted)
    if tail is None:
        return None
    queues.raise_to(tail.ends)
    return LeaderTables(queues, RecentIdentities(identities + tail.identities))


@dataclass
class LogTail:
    """Next queueOffsets and identities of the part of the log that is not dispatched, committed or not."""

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
