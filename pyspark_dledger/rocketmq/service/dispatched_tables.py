"""Next queueOffsets and identities of the dispatched part of the log."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.format.encode.puts import PutIds
from pyspark_dledger.rocketmq.consume_queue.topic_queues import TopicQueues
from pyspark_dledger.rocketmq.dedup.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.dedup.identity_arrays import IdentityArrays
from pyspark_dledger.rocketmq.dedup.sorted_run import EntryRange
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchedPart, Dispatcher
from pyspark_dledger.rocketmq.message_arrays import QueueName


class DispatchedSnapshot(NamedTuple):
    """The log before `pos`: next queueOffsets, and the identities that no sorted run has."""

    queues: TopicQueues
    pos: int
    identities: list[IdentityArrays]


class DispatchedTables:
    """Updated by the dispatcher's thread, read by others."""

    def __init__(self, identities: CommittedIdentities) -> None:
        self._identities = identities
        self._lock = threading.Lock()
        self._queues = TopicQueues()
        self._pos = 0

    def begin(self, dispatcher: Dispatcher) -> None:
        """Take the state of a dispatcher that has recovered and not started."""
        self._queues = TopicQueues(dispatcher.queue_ends)
        self._pos = dispatcher.dispatched_offset

    def add(self, part: DispatchedPart) -> None:
        """Add a part of the log; the dispatcher's listener."""
        with self._lock:
            self._queues.raise_to(part.ends)
            self._pos = part.end_pos
            if part.ids is not None and part.last_index >= 0:
                self._identities.add(covered_range(part, part.ids), part.ids.ids, part.ids.index)

    def ends(self, queues: Iterable[QueueName]) -> dict[QueueName, int]:
        """The next queueOffset of these queues."""
        return {queue: self._queues.end(queue) for queue in queues}

    def snapshot(self) -> DispatchedSnapshot:
        with self._lock:
            return DispatchedSnapshot(TopicQueues(self._queues.ends()), self._pos, self._identities.pending())


def covered_range(part: DispatchedPart, ids: PutIds) -> EntryRange:
    """The entries of a part, with the times of its identities, which may be older for raw entries."""
    now, stamps = now_ms(), ids.store_timestamps
    if len(stamps):
        first, last = int(stamps.min()), int(stamps.max())
    else:
        first, last = part.first_store_timestamp or now, part.last_store_timestamp or now
    return EntryRange(part.first_index, part.last_index, part.last_term, first, min(last, now))
