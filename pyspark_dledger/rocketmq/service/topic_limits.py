"""How many topics and queues clients may create."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_dledger.rocketmq.broker.broker_metadata import BrokerMetadata


class LimitError(ValueError):
    """A limit was reached; ``limit`` is "topics" or "queues"."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class TopicLimits(NamedTuple):
    """The maximum of topics, and of the queues of all topics; None is no limit."""

    topics: int | None = None
    queues: int | None = None

    def check(self, metadata: BrokerMetadata, wanted: Mapping[str, int]) -> None:
        """Raises LimitError if topics with these queue counts would be too many."""
        if not wanted:
            return
        known = {name: metadata.queue_count(name) for name in wanted}
        topics = metadata.topic_count + sum(count is None for count in known.values())
        if self.topics is not None and None in known.values() and topics > self.topics:
            text = f"expected at most {self.topics} topics (maxTopics), found {topics} with {_first(known)}"
            raise LimitError("topics", text)
        more = sum(count - (known[name] or 0) for name, count in wanted.items())
        if self.queues is not None and more > 0 and metadata.all_queues + more > self.queues:
            raise LimitError(
                "queues",
                f"expected at most {self.queues} queues (maxQueues), found {metadata.all_queues + more} with "
                f"{next(iter(wanted))}",
            )


def _first(known: Mapping[str, int | None]) -> str:
    return next(name for name, count in known.items() if count is None)
