"""Checks raw entries at a leader: those that are messages become units and folders, as those of puts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.layout import TRANSACTION_FLAGS
from pyspark_dledger.format.message import Message, message_in
from pyspark_dledger.rocketmq.broker.config_files import MAX_QUEUES
from pyspark_dledger.rocketmq.service.leader_tables import DispatchedTables, LeaderTables
from pyspark_dledger.rocketmq.service.topic_limits import LimitError, TopicLimits

# Source: RocketMQ 5.3.3 TopicValidator.
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}|%(?:RETRY|DLQ)%[%|a-zA-Z0-9_-]{1,248}")
_NOT_IN_QUEUE = TRANSACTION_FLAGS["prepared"]


def messages_of(bodies: Iterable[bytes]) -> Iterator[tuple[str, Message]]:
    """The bodies that are messages, with their topics."""
    for body in bodies:
        message = message_in(body)
        if message is not None:
            yield message.topic, message


@dataclass(frozen=True)
class RawEntryCheck:
    """A raw message must not skip queueOffsets: consumers would find nothing there, and files would be filled."""

    tables: LeaderTables
    dispatched: DispatchedTables
    limits: TopicLimits

    def ends(self, messages: Iterable[tuple[str, Message]]) -> dict[QueueName, int]:
        """The next queueOffset of each queue after these messages. Raises ValueError for a wrong one."""
        ends: dict[QueueName, int] = {}
        for topic, message in messages:
            queue = (topic, message.queue_id)
            _check_name(queue)
            if message.sys_flag & _NOT_IN_QUEUE:
                continue
            end = ends[queue] if queue in ends else self._end(queue)
            if not 0 <= message.queue_offset <= end:
                raise ValueError(
                    f"topic {topic} queueId {message.queue_id}: expected a queueOffset of at most {end}, found "
                    f"{message.queue_offset}"
                )
            ends[queue] = max(end, message.queue_offset + 1)
            limit = self.limits.queues
            if not end and limit is not None and self.tables.queues.count + len(ends) > limit:
                raise LimitError("queues", f"expected at most {limit} queues (maxQueues), found more with {topic}")
        return ends

    def _end(self, queue: QueueName) -> int:
        return max(self.tables.queues.end(queue), self.dispatched.ends([queue])[queue])


def _check_name(queue: QueueName) -> None:
    topic, queue_id = queue
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"expected a topic of 1 to 127 characters of %|a-zA-Z0-9_-, found {topic!r}")
    if not 0 <= queue_id < MAX_QUEUES:
        raise ValueError(f"topic {topic}: expected a queueId below {MAX_QUEUES}, found {queue_id}")
