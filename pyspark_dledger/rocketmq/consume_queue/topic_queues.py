"""The next queueOffset of each queue, from which a leader numbers new messages (``topicQueueTable``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.layout import FLAG_TRANSACTION_MASK, TRANSACTIONS_OUTSIDE_QUEUES
from pyspark_dledger.rocketmq.message_arrays import Longs, QueueName

_PREPARED, _ROLLBACK = TRANSACTIONS_OUTSIDE_QUEUES


class TopicQueues:
    """The next queueOffset of each queue; 0 for an unknown one."""

    def __init__(self, ends: Mapping[QueueName, int] | None = None) -> None:
        self._ends: dict[QueueName, int] = dict(ends or {})

    def end(self, queue: QueueName) -> int:
        return self._ends.get(queue, 0)

    def ends(self) -> dict[QueueName, int]:
        """A copy of all of them."""
        return dict(self._ends)

    def raise_to(self, ends: Mapping[QueueName, int]) -> None:
        """Raise each queue to the given end, if that is higher."""
        for queue, end in ends.items():
            if end > self._ends.get(queue, 0):
                self._ends[queue] = end

    def number(
        self, queues: Sequence[QueueName], queue: npt.NDArray[np.int32], sys_flag: npt.NDArray[np.int32]
    ) -> Longs:
        """A queueOffset for each message, in order; ``queue`` indexes `queues`. Changes nothing.

        Prepared and rolled back messages are in no queue: they get 0 and use no queueOffset (RocketMQ's
        ``CommitLog.assignQueueOffset`` and ``doAppend``).
        """
        offsets = np.zeros(len(queue), np.int64)
        counted = np.flatnonzero(in_queue(sys_flag))
        mine = queue[counted]
        bases = np.array([self.end(name) for name in queues], np.int64)
        counts = np.bincount(mine, minlength=len(queues))
        before = np.empty(len(mine), np.int64)
        # How many messages of the same queue precede each one.
        before[np.argsort(mine, kind="stable")] = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets[counted] = bases[mine] + before
        return offsets

    def take(self, queues: Sequence[QueueName], queue: npt.NDArray[np.int32], sys_flag: npt.NDArray[np.int32]) -> None:
        """Advance the queues: the messages that `number` numbered were appended."""
        counts = np.bincount(queue[in_queue(sys_flag)], minlength=len(queues)).tolist()
        for name, count in zip(queues, counts, strict=True):
            if count:
                self._ends[name] = self.end(name) + count


def in_queue(sys_flag: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which messages are in a queue: all but prepared and rolled back ones."""
    kind = sys_flag & FLAG_TRANSACTION_MASK
    found: npt.NDArray[np.bool_] = (kind != _PREPARED) & (kind != _ROLLBACK)
    return found
