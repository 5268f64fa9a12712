"""Messages of queues, pulled from brokers: many requests at once, as offsets in a queue have no gaps.

A broker returns at most 32 messages or 256 KiB for one request, fewer from disk. So requests for the next offsets are
sent before the responses of earlier ones are there, over a few connections. What a response lacks is requested again.
Messages are returned in the order of the queue, each once, or there is an error.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.cluster import MAX_WAIT, Cluster, Waiting
from pyspark_dledger.cluster.codes import REJECTIONS, BrokerCode
from pyspark_dledger.cluster.connection import Connection, LostError, Response, check_success
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.format.layout import FLAG_INNER_BATCH, MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import MESSAGE_MAGICS
from pyspark_dledger.log.gaps import OF_STREAMS, report_loss
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire.wire_errors import WireError

DEFAULT_GROUP = "TOOLS_CONSUMER"
"""A consumer group that every broker has."""

# The default of maxTransferCountOnMessageInMemory: a broker returns no more.
_MAX_MESSAGES = 32
_MAX_IN_FLIGHT = 64
_FIRST_IN_FLIGHT = 4
_CONNECTIONS = 3
# The default of maxTransferBytesOnMessageInMemory, for the memory of responses that are not there yet.
_USUAL_SIZE = 256 * 1024
# So many responses with all that was requested: try more messages at once.
_MAX_FULL = 64
# Responses in a row that say that a message is not there, while its queue has later ones.
_MAX_MISSES = 8
# The broker compiles the subscription of the request: the consumer group needs no members.
_WITH_SUBSCRIPTION = 4
# totalSize, magic, queueId, queueOffset and sysFlag of a message.
_MESSAGE = struct.Struct(">ii4xi4xq8xi")


@dataclass(frozen=True)
class QueueRange:
    """Messages of a queue with offsets ``[start, end)``."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Pulled(NamedTuple):
    """Consecutive messages of a queue as its broker stores them; `count` of them are in `data`."""

    queue: Queue
    start: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    data: memoryview


@dataclass
class _Pull:
    """A request for messages ``[start, end)`` of a queue."""

    queue: Queue
    start: int
    end: int
    connection: Connection | None = None
    opaque: int = 0
    problem: str = ""


@dataclass(frozen=True)
class PullSettings:
    """How messages are pulled: `max_bytes` limits the memory of responses that wait for earlier ones."""

    group: str = DEFAULT_GROUP
    max_bytes: int = 32 * 1024 * 1024
    fails_on_loss: bool = True
    remedy: str = OF_STREAMS


@dataclass
class Puller:
    """Pulls ranges of queues. For one thread."""

    cluster: Cluster
    settings: PullSettings
    # Connections of this puller to each server, in turn.
    _connections: dict[Address, list[Connection]] = field(default_factory=dict)
    _sent: int = 0
    # How many requests may be without a response at first: the size of responses is not known yet.
    _allowed: int = _FIRST_IN_FLIGHT
    # Queues with messages that say other offsets, which a warning has named.
    _shifted: set[Queue] = field(default_factory=set)
    # Where queues begin of which messages were lost.
    _begins: dict[Queue, int] = field(default_factory=dict)
    _step: int = _MAX_MESSAGES
    _full: int = 0
    _size: int = _USUAL_SIZE

    def close(self) -> None:
        for connections in self._connections.values():
            for connection in connections:
                connection.close()

    def pull(self, ranges: Sequence[QueueRange]) -> Iterator[Pulled]:
        """All messages of the ranges, in their order.

        Raises ClusterError if no replica of a broker has responded for a minute, DataLossError for messages that
        expired or were lost, unless that is allowed.
        """
        waiting = deque(ranges)
        in_flight: deque[_Pull] = deque()
        while True:
            # While a broker is not reached, only the first pull waits for it.
            while waiting and len(in_flight) < self._window and (not in_flight or in_flight[-1].connection):
                first = waiting.popleft()
                start = max(first.start, self._begins.get(first.queue, 0))
                end = min(start + self._step, first.end)
                if end < first.end:
                    waiting.appendleft(QueueRange(first.queue, end, first.end))
                if start < end:
                    in_flight.append(self._send(_Pull(first.queue, start, end)))
            if not in_flight:
                return
            pull = in_flight.popleft()
            begin = self._begins.get(pull.queue, 0)
            if pull.start < begin:
                self._received(pull)
                if begin < pull.end:
                    in_flight.appendleft(self._send(_Pull(pull.queue, begin, pull.end)))
                continue
            found = self._response(pull)
            end = found.start + found.count
            if end < pull.end:
                in_flight.appendleft(self._send(_Pull(pull.queue, end, pull.end)))
            self._learn(found, pull)
            if found.count:
                yield found

    @property
    def _window(self) -> int:
        """How many requests may be without a response."""
        return max(min(self._allowed, self.settings.max_bytes // self._size), 1)

    def _learn(self, found: Pulled, pull: _Pull) -> None:
        """Guess from a response how many messages the next one can have, and how large it is."""
        size = len(found.data)
        self._allowed = min(2 * self._allowed, _MAX_IN_FLIGHT)
        self._size = max(size, (7 * self._size + size) // 8, 1)
        is_full = found.start + found.count >= pull.end
        self._full = self._full + 1 if is_full else 0
        if not is_full and found.count:
            self._step = found.count
        elif self._full > _MAX_FULL:
            self._step, self._full = min(2 * self._step, _MAX_MESSAGES), 0

    def _send(self, pull: _Pull, is_new: bool = False) -> _Pull:
        """Send a request to the first replica that is reached; if none is, the problem is in the pull."""
        problems = []
        pull.connection = None
        fields = {
            "consumerGroup": self.settings.group,
            "topic": pull.queue.topic,
            "queueId": str(pull.queue.id),
            "queueOffset": str(pull.start),
            "maxMsgNums": str(pull.end - pull.start),
            "sysFlag": str(_WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        for _, server in self.cluster.replicas(pull.queue, is_new):
            try:
                connection = self._connection(server)
                pull.opaque = connection.send(codes.PULL_MESSAGE, fields)
            except LostError as error:
                problems.append(str(error))
            else:
                pull.connection = connection
                return pull
        pull.problem = "; ".join(problems) or f"{self.cluster.name} has no route to it"
        return pull

    def _connection(self, server: Address) -> Connection:
        """The next connection to a server. Raises LostError."""
        connections = self._connections.setdefault(server, [])
        self._sent += 1
        at = self._sent % _CONNECTIONS
        if at >= len(connections):
            connections.append(self._new_connection(server))
        elif connections[at].is_lost:
            connections[at] = self._new_connection(server)
        return connections[at % len(connections)]

    def _new_connection(self, server: Address) -> Connection:
        found = self.cluster.connect(server)
        found.max_kept = self.settings.max_bytes
        return found

    def _response(self, pull: _Pull) -> Pulled:
        """The messages of a pull, at least one unless all of them are lost. Asks again until a broker has them."""
        waiting = Waiting(MAX_WAIT)
        misses = 0
        while True:
            response = self._received(pull)
            if response is not None:
                if response.code == BrokerCode.SUCCESS:
                    return self._messages(pull, response)
                if response.code in REJECTIONS:
                    check_success(response, f"{pull.queue}: messages from offset {pull.start} on")
                pull.problem = response.problem
                misses += 1
                begin = self._begin_after_loss(pull, response, misses)
                if begin is not None:
                    self._begins[pull.queue] = begin
                    return Pulled(pull.queue, begin, 0, memoryview(b""))
            if waiting.is_over:
                raise self._not_found(pull, waiting.seconds)
            waiting.pause()
            self._send(pull, is_new=True)

    def _received(self, pull: _Pull) -> Response | None:
        """The response to a pull; None if its connection was lost."""
        if pull.connection is None:
            return None
        try:
            response = pull.connection.wait(pull.opaque)
        except LostError as error:
            pull.problem = str(error)
            return None
        if response.code != BrokerCode.SUCCESS:
            self.cluster.ask_last(pull.connection.server)
        return response

    def _messages(self, pull: _Pull, response: Response) -> Pulled:
        """The messages of a response, which must be those from the pull's start on. Raises ClusterError."""
        try:
            count, size, first = count_messages(response.body, pull.queue.id, pull.start, pull.end - pull.start)
            if first is not None and _next_offset(response) != pull.start + count:
                raise WireError(f"expected offset {first.expected}, found offset {first.found}")
        except WireError as error:
            raise ClusterError(
                f"{pull.queue}: its broker sent other messages than those from offset {pull.start} on: {error}"
            ) from None
        if first is not None and pull.queue not in self._shifted:
            self._shifted.add(pull.queue)
            report_loss(
                f"{pull.queue}: expected the message of offset {first.expected}, found that of offset {first.found}: "
                "its broker lost its count, and its replicas can have other messages in the queue",
                "the queue is read as consumers read it",
                self.settings.fails_on_loss,
                self.settings.remedy,
            )
        return Pulled(pull.queue, pull.start, count, response.body[:size])

    def _begin_after_loss(self, pull: _Pull, response: Response, misses: int) -> int | None:
        """The offset where reading continues if messages of the pull are lost; None if they may still come."""
        queue = pull.queue
        # Slaves can begin later: only the master tells what is lost.
        begin = self.cluster.begin_at_master(queue)
        if begin is None:
            return None
        found = f"found that the first one is {begin}"
        if begin <= pull.start:
            if misses < _MAX_MISSES:
                return None
            begin = _next_offset(response)
            if not pull.start < begin < self.cluster.max_offsets([queue])[queue]:
                return None
            found = f"found that its broker skips to offset {begin} ({response.problem})"
        report_loss(
            f"{queue}: expected messages from offset {pull.start} on, {found}",
            f"reading continues with offset {begin}; messages before it are skipped",
            self.settings.fails_on_loss,
            self.settings.remedy,
        )
        return begin

    def _not_found(self, pull: _Pull, seconds: float) -> ClusterError:
        if pull.connection is None:
            return self.cluster.unreachable(pull.queue, [pull.problem], seconds)
        return ClusterError(
            f"{pull.queue}: expected messages from offset {pull.start} on, found none within {seconds:g} s "
            f"({pull.problem}): check its broker; after a failover a slave can lack the last messages"
        )


def _next_offset(response: Response) -> int:
    try:
        return response.number("nextBeginOffset")
    except WireError:
        return -1


class OtherOffset(NamedTuple):
    """A message that says another offset than that at which its queue has it."""

    expected: int
    found: int


def count_messages(data: memoryview, queue_id: int, offset: int, most: int) -> tuple[int, int, OtherOffset | None]:
    """How many messages `data` has, at most `most`, their size in bytes, and the first with another offset.

    A queue of a broker in DLedger mode can have such messages after its leader changed. Raises WireError unless there
    is a message, and all are complete and of that queue.
    """
    size = len(data)
    at = count = 0
    other = None
    unpack = _MESSAGE.unpack_from
    while count < most and size - at >= MIN_MESSAGE_SIZE:
        length, magic, queue, number, flags = unpack(data, at)
        if not MIN_MESSAGE_SIZE <= length <= size - at or magic not in MESSAGE_MAGICS:
            raise WireError(f"expected a message at byte {at} of {size}, found size {length} and magic {magic}")
        if queue != queue_id or flags & FLAG_INNER_BATCH:
            is_batch = ", an inner batch, which is not supported" if flags & FLAG_INNER_BATCH else ""
            raise WireError(f"expected offset {offset + count}, found offset {number} of queue {queue}{is_batch}")
        if number != offset + count and other is None:
            other = OtherOffset(offset + count, number)
        at += length
        count += 1
    if not count or (count < most and at != size):
        raise WireError(f"expected whole messages, found {count} in {size} bytes, of which they are {at}")
    return count, at, other
