"""How many queues topics have, and which ones a put creates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark_dledger.rocketmq.broker.broker_metadata import TOPIC_NAME, BrokerMetadata
from pyspark_dledger.rocketmq.broker.config_files import MAX_QUEUES
from pyspark_dledger.rocketmq.message_arrays import QueueName
from pyspark_dledger.rocketmq.service.leader_tables import LeaderTables


def topics_to_create(
    metadata: BrokerMetadata, tables: LeaderTables, queues: Iterable[QueueName], queue_nums: int
) -> dict[str, int]:
    """The topics to create or to extend for a put, with their queue counts. Raises ValueError for a wrong queueId.

    A topic that is missing in this member's metadata may be in the log, or known to a client from an earlier leader.
    """
    wanted: dict[str, int] = {}
    for topic, queue_id in queues:
        known, in_log = metadata.queue_count(topic), tables.queue_count(topic)
        limit = MAX_QUEUES if known is None else max(known, in_log)
        if queue_id >= limit:
            raise ValueError(f"topic {topic}: expected a queueId below {limit}, found {queue_id}")
        count = max(_checked(queue_nums), in_log, queue_id + 1) if known is None else max(known, in_log)
        if known is None or count > known:
            wanted[topic] = max(wanted.get(topic, 0), count)
    return wanted


def topic_counts(
    metadata: BrokerMetadata, tables: LeaderTables, names: Sequence[str], queue_nums: int
) -> dict[str, int]:
    """The queue count of each topic, `queue_nums` for unknown ones. Raises ValueError for a wrong name or count."""
    counts = {}
    for name in names:
        if not TOPIC_NAME.fullmatch(name):
            raise ValueError(f"expected a topic of 1 to 255 characters of %|a-zA-Z0-9_-, found {name!r}")
        known = metadata.queue_count(name)
        counts[name] = max(_checked(queue_nums) if known is None else known, tables.queue_count(name))
    return counts


def _checked(queue_nums: int) -> int:
    if not 1 <= queue_nums <= MAX_QUEUES:
        raise ValueError(f"expected 1 to {MAX_QUEUES} queues for a new topic, found {queue_nums}")
    return queue_nums
