"""Offsets of consumer groups after the end of their queue: new messages get queue offsets that they have passed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.broker_config import DELAYS, FOLDER, SCHEDULE_GROUP, BrokerConfig, read_config
from pyspark_dledger.log.units.stored import StoredQueues


class PassedEnd(NamedTuple):
    """The offset of a consumer group in a queue that ends before it; ``path`` is where the offset is stored."""

    group: str
    topic: str
    queue_id: int
    offset: int
    end: int
    path: Path


def passed_ends(root: Path, stored: StoredQueues, undispatched: int = 0) -> Iterator[PassedEnd]:
    """The offsets in the configuration of a broker that are after the ends of its queues.

    A broker that starts gives units to at most `undispatched` messages more. A queue without files ends at 0 if its
    topic is known. Nothing is known without queues, or if a file cannot be read.
    """
    config = BrokerConfig()
    with suppress(StoreError):
        config = read_config(root)
    for (group, topic), offsets in sorted(config.group_offsets.items()) if stored.queues else ():
        path = root / FOLDER / DELAYS if group == SCHEDULE_GROUP else config.offsets_path
        for queue_id, offset in sorted(offsets.items()):
            queue = stored.get((topic, queue_id))
            is_known = queue is not None or (topic in config.topic_queues and topic not in stored.batch_topics)
            end = queue.end if queue is not None else 0
            if is_known and offset > end + undispatched and not stored.is_unread((topic, queue_id)):
                yield PassedEnd(group, topic, queue_id, offset, end, path)
