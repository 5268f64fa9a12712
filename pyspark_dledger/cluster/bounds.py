"""Which queues a read has, and where it begins and ends in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.offsets import ClusterOffsets
from pyspark_dledger.cluster.options import COMMITTED, EARLIEST, LATEST, Bound, ClusterOptions
from pyspark_dledger.cluster.pulls import Puller, PullSettings, QueueRange
from pyspark_dledger.cluster.routes import Queue, TopicRoute
from pyspark_dledger.errors import ClusterError, OptionError
from pyspark_dledger.format.message import store_timestamp
from pyspark_dledger.rocketmq.jobs.store_files import SYSTEM_TOPICS

# Tasks of a read, unless minPartitions asks for more: each costs connections.
_MAX_PARTITIONS = 64
# Each takes memory of the driver.
_MAX_QUEUES = 100_000
# Messages that are pulled at once to find one by its time.
_SEARCHED = 32


def find_queues(cluster: Cluster, options: ClusterOptions, needs_all: bool = True) -> list[Queue]:
    """The readable queues of the topics. Raises ClusterError; with `needs_all` also for a topic without a route."""
    pattern, queue_ids = options.topic_pattern, options.read.queue_id
    found: list[Queue] = []
    for topic in options.read.topic or cluster.topics():
        if pattern is not None and (not pattern.fullmatch(topic) or SYSTEM_TOPICS.fullmatch(topic)):
            continue
        route = cluster.route(topic)
        if route is None and pattern is None and needs_all:
            raise ClusterError(
                f"{cluster.name}: expected topic {topic}, found no route to it: create the topic, or check its name "
                "and that its brokers run"
            )
        if route is not None and (pattern is None or not _is_of_brokers(route)):
            found += (queue for queue in route.queues if queue_ids is None or queue.id in queue_ids)
        if len(found) > _MAX_QUEUES:
            raise ClusterError(
                f"{cluster.name}: expected at most {_MAX_QUEUES} queues to read, found {len(found)} up to topic "
                f"{topic}: name fewer topics"
            )
    return found


def _is_of_brokers(route: TopicRoute) -> bool:
    """Whether it is a topic that brokers make for themselves, with their name or their cluster's."""
    names = {broker.name for broker in route.brokers.values()} | {broker.cluster for broker in route.brokers.values()}
    return route.topic.removesuffix("_REPLY_TOPIC") in names


def start_offsets(cluster: Cluster, options: ClusterOptions, queues: Sequence[Queue]) -> ClusterOffsets:
    """Where a read begins in each queue."""
    if options.read.starting_timestamp is not None:
        return offsets_at(cluster, queues, options.read.starting_timestamp)
    assert options.starting_offsets is not None
    return _offsets(cluster, options, queues, options.starting_offsets, EARLIEST, "startingOffsets")


def end_offsets(cluster: Cluster, options: ClusterOptions, queues: Sequence[Queue]) -> ClusterOffsets:
    """Where a batch read ends in each queue. Raises OptionError for an end that is not there yet."""
    latest = ClusterOffsets(cluster.max_offsets(queues))
    if options.read.ending_timestamp is not None:
        return offsets_at(cluster, queues, options.read.ending_timestamp)
    if options.ending_offsets is None:
        return latest
    found = _offsets(cluster, options, queues, options.ending_offsets, LATEST, "endingOffsets")
    for queue, offset in found.items():
        if offset > latest[queue]:
            raise OptionError(
                f"option endingOffsets: expected an offset up to {latest[queue]} of {queue}, found {offset}: the queue "
                "ends there, give an offset in it"
            )
    return found


def _offsets(
    cluster: Cluster, options: ClusterOptions, queues: Sequence[Queue], bound: Bound, other: str, name: str
) -> ClusterOffsets:
    """The offsets of a bound; a queue for which it has none gets the `other` kind."""
    kinds = dict.fromkeys(queues, bound.kind if bound.kind in (EARLIEST, LATEST) else other)
    found = ClusterOffsets()
    if bound.kind == COMMITTED:
        assert options.consumer_group is not None
        found.update(cluster.committed_offsets(queues, options.consumer_group))
    elif unknown := next(iter(bound.offsets.keys() - kinds.keys()), None):
        raise OptionError(f"option {name}: expected queues of the topics that are read, found {unknown}")
    for queue, offset in bound.offsets.items():
        if offset >= 0:
            found[queue] = offset
        else:
            kinds[queue] = LATEST if offset == -1 else EARLIEST
    left = [queue for queue in queues if queue not in found]
    found.update(cluster.min_offsets([queue for queue in left if kinds[queue] == EARLIEST]))
    found.update(cluster.max_offsets([queue for queue in left if kinds[queue] == LATEST]))
    return found


def offsets_at(cluster: Cluster, queues: Sequence[Queue], time: int) -> ClusterOffsets:
    """The first message of each queue stored at or after `time` (microseconds since 1970), else the queue's end."""
    milliseconds = -(-time // 1000)
    first, last = cluster.min_offsets(queues), cluster.max_offsets(queues)
    near = cluster.offsets_near(queues, milliseconds)
    puller = Puller(cluster, PullSettings(fails_on_loss=False))
    try:
        return ClusterOffsets({
            queue: _first_at(puller, queue, min(max(near[queue], first[queue]), last[queue]), last[queue], milliseconds)
            for queue in queues
        })  # fmt: skip
    finally:
        puller.close()


def _first_at(puller: Puller, queue: Queue, begin: int, end: int, milliseconds: int) -> int:
    for start in range(begin, end, _SEARCHED):
        for found in puller.pull([QueueRange(queue, start, min(start + _SEARCHED, end))]):
            offset, at = found.start, 0
            data = bytes(found.data)
            while at < len(data):
                if store_timestamp(data, at) >= milliseconds:
                    return offset
                offset += 1
                at += int.from_bytes(data[at : at + 4], "big")
    return end


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[QueueRange]:
    """The unread messages of each queue that both have, in the order of the queues."""
    return [
        QueueRange(queue, start[queue], offset)
        for queue, offset in sorted(end.items())
        if queue in start and start[queue] < offset
    ]


def partitioned(ranges: Sequence[QueueRange], min_partitions: int | None) -> list[tuple[QueueRange, ...]]:
    """The ranges in parts for tasks, of about the same number of messages and of one broker each.

    A queue is split only for `min_partitions`; else small queues share a part.
    """
    total = sum(part.size for part in ranges)
    wanted = min(max(min_partitions or min(len(ranges), _MAX_PARTITIONS), 1), max(total, 1))
    target = -(-total // wanted)
    pieces = ranges if min_partitions is None else [piece for part in ranges for piece in _split(part, target)]
    found: list[list[QueueRange]] = []
    size = 0
    for piece in sorted(pieces, key=lambda each: (each.queue.broker, each.queue, each.start)):
        is_other = not found or found[-1][-1].queue.broker != piece.queue.broker
        if is_other or size + piece.size > target:
            found.append([])
            size = 0
        found[-1].append(piece)
        size += piece.size
    return [tuple(part) for part in found]


def _split(part: QueueRange, target: int) -> Iterator[QueueRange]:
    count = -(-part.size // target)
    cuts = [part.start + part.size * number // count for number in range(count + 1)]
    for start, end in pairwise(cuts):
        yield QueueRange(part.queue, start, end)
