"""Offsets of a cluster: for each queue, the offset of the next message to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.errors import OptionError

FORM = '{"TOPIC": {"BROKER": {"QUEUE": n}}}'


class ClusterOffsets(dict[Queue, int]):
    """The next offset of each queue. As JSON it is a topic's brokers with the offsets of their queues."""

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        found: dict[str, dict[str, dict[str, int]]] = {}
        for queue, offset in sorted(self.items()):
            found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.id)] = offset
        return found

    @classmethod
    def from_json(cls, value: Any) -> ClusterOffsets:
        """The offsets in such a JSON object. Raises ValueError for anything else."""
        found = list(_offsets(value))
        if len(dict(found)) < len(found):
            raise ValueError
        return cls(found)

    def furthest(self, other: ClusterOffsets) -> ClusterOffsets:
        """The higher offset of each queue."""
        return ClusterOffsets({queue: max(self.get(queue, 0), other.get(queue, 0)) for queue in {*self, *other}})


def from_checkpoint(value: Mapping[str, Any] | None) -> ClusterOffsets:
    """The offsets in a checkpoint; None is that nothing was read. Raises OptionError for anything else."""
    try:
        return ClusterOffsets.from_json(value or {})
    except ValueError:
        raise OptionError(
            f"expected offsets {FORM} in the checkpoint, found {str(value)[:200]}: give the query a checkpointLocation "
            "of its own"
        ) from None


def limited(start: ClusterOffsets, end: ClusterOffsets, limit: int) -> ClusterOffsets:
    """The end of a trigger that reads at most `limit` messages, of each queue in proportion to its unread ones."""
    unread = {queue: offset - start[queue] for queue, offset in end.items() if start.get(queue, offset) < offset}
    total = sum(unread.values())
    if total <= limit:
        return end
    found = ClusterOffsets(end)
    left = limit
    for queue, count in unread.items():
        part = limit * count // total
        found[queue] = start[queue] + part
        left -= part
    # What rounding left goes to the queues that it took most from.
    for queue in sorted(unread, key=lambda each: limit * unread[each] % total, reverse=True)[:left]:
        found[queue] += 1
    return found


def _offsets(value: Any) -> Iterator[tuple[Queue, int]]:
    for topic, brokers in _items(value):
        for broker, queues in _items(brokers):
            for queue, offset in _items(queues):
                if not queue.isdecimal() or type(offset) is not int:
                    raise ValueError
                yield Queue(topic, broker, int(queue)), offset


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError
    yield from value.items()
