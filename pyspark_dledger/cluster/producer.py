"""Sends messages to queues of a cluster, in batches, and says for each where it is.

A producer keeps the order of the messages of a queue: one batch of a queue is sent at a time, batches of other queues
meanwhile. A batch that may have failed is sent again, so brokers can have messages twice: nothing is sent less than
once. Consumers recognise such a message by its UNIQ_KEY.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.cluster import MAX_WAIT, Cluster, Waiting
from pyspark_dledger.cluster.codes import RETRIED, BrokerCode
from pyspark_dledger.cluster.connection import Connection, LostError, Response
from pyspark_dledger.cluster.routes import MASTER, Queue, TopicRoute
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import MAX_V1_TOPIC_SIZE
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire.wire_errors import EncodeError, WireError

PRODUCER_GROUP = "DLEDGER_PRODUCER"
NOT_FLUSHED = {
    each.name: each
    for each in (BrokerCode.FLUSH_DISK_TIMEOUT, BrokerCode.FLUSH_SLAVE_TIMEOUT, BrokerCode.SLAVE_NOT_AVAILABLE)
}
"""The broker has the messages, but less safely than its configuration demands."""

MAX_BATCH_MESSAGES = 900
"""The header of a response has the id of each message: `wire.framing` and `wire.json_values` limit headers."""

MAX_BATCH_BYTES = 512 * 1024
"""Larger ones take the broker more time: its garbage collector handles large arrays apart."""

# Of batches without a response. With more, a broker takes more processor time: its caches do not keep them.
_MAX_BYTES = 2 * 1024 * 1024
# Seconds for a response: longer than a broker waits for its disk and its slave.
_TIMEOUT = 15.0
# Seconds in which batches for a broker that failed go to others.
_AWAY_SECONDS = 10.0
_TEMPLATE_TOPIC = "TBW102"
_RETRY_PREFIX = "%RETRY%"
# Old brokers in DLedger mode take no batches, and reject them as illegal.
_NO_BATCHES = (BrokerCode.MESSAGE_ILLEGAL, BrokerCode.REQUEST_CODE_NOT_SUPPORTED)
_ID = "(?:[0-9A-F]{32}|[0-9A-F]{56})"
_IDS = re.compile(f"{_ID}(?:,{_ID})*")
# Of a message in a batch: its size, two fields that brokers ignore, its flag, and the size of its body.
_FRONT = struct.Struct(">iiiii")
_PROPERTIES_SIZE = struct.Struct(">h")
ENVELOPE = _FRONT.size + _PROPERTIES_SIZE.size
"""Bytes of a message in a batch without its body and properties."""


class BatchMessage(NamedTuple):
    """`properties` are names and values as in a CommitLog, in UTF-8, with UNIQ_KEY and the separator at the end.

    Delayed messages must be alone: brokers delay none that are in a batch. With a property TRAN_MSG of true, a message
    that is alone waits for the end of its transaction. `born_timestamp` is in milliseconds.
    """

    body: Buffer
    properties: bytes
    born_timestamp: int
    flag: int = 0
    sys_flag: int = 0
    is_alone: bool = False

    @property
    def size(self) -> int:
        return ENVELOPE + len(self.body) + len(self.properties)


@dataclass(frozen=True)
class Batch:
    """Messages of one queue with the same `born_timestamp` and `sys_flag`. Only its queue takes it if it is pinned.

    `data` has `count` messages, as ``MessageDecoder.encodeMessages`` writes them.
    """

    queue: Queue
    data: Buffer
    count: int
    born_timestamp: int
    sys_flag: int = 0
    is_alone: bool = False
    is_pinned: bool = False

    @classmethod
    def of(cls, queue: Queue, messages: Sequence[BatchMessage], is_pinned: bool = False) -> Batch:
        """A batch of messages; one that must be alone is the only one."""
        parts: list[Buffer] = []
        for message in messages:
            body, properties = message.body, message.properties
            parts += (_FRONT.pack(message.size, 0, 0, message.flag, len(body)), body)
            parts += (_PROPERTIES_SIZE.pack(len(properties)), properties)
        first = messages[0]
        shared = first.born_timestamp, first.sys_flag, first.is_alone
        return cls(queue, b"".join(parts), len(messages), *shared, is_pinned)

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def messages(self) -> Iterator[BatchMessage]:
        """The messages, one by one: slower than to send them together."""
        data, start = memoryview(self.data), 0
        for _ in range(self.count):
            size, _, _, flag, body_size = _FRONT.unpack_from(data, start)
            body = start + _FRONT.size
            properties = bytes(data[body + body_size + _PROPERTIES_SIZE.size : start + size])
            body_view = data[body : body + body_size]
            yield BatchMessage(body_view, properties, self.born_timestamp, flag, self.sys_flag, self.is_alone)
            start += size


@dataclass(frozen=True)
class Sent:
    """What became of a batch: `queue` has its first messages at `offsets`, with these ids (``offsetMsgId``).

    Without a `problem` those are all messages. `status` is SUCCESS or one of `NOT_FLUSHED`. With `may_repeat`, an
    attempt whose outcome is not known may have stored messages, too. With `is_rejected`, the broker does not take the
    message after the stored ones, whenever it is sent; later ones were not sent.
    """

    batch: Batch
    queue: Queue
    offsets: Sequence[int] = ()
    ids: Sequence[str] = ()
    status: BrokerCode = BrokerCode.SUCCESS
    problem: str = ""
    may_repeat: bool = False
    is_rejected: bool = False


@dataclass(frozen=True)
class SendSettings:
    """`accepted` statuses are no problem. A batch is sent again for so many `seconds`.

    With `new_queues`, brokers that allow it make a topic that is missing, with at most so many queues each.
    """

    accepted: frozenset[BrokerCode] = frozenset()
    seconds: float = MAX_WAIT
    new_queues: int | None = None
    max_bytes: int = _MAX_BYTES
    group: str = PRODUCER_GROUP


@dataclass
class _Attempt:
    """The last attempt to send a batch. It failed if there is no connection."""

    batch: Batch
    queue: Queue
    connection: Connection | None = None
    opaque: int = 0
    problem: str = ""
    may_repeat: bool = False
    is_possible: bool = True

    def result(self, problem: str = "", *, is_rejected: bool = False) -> Sent:
        is_rejected = is_rejected and not self.may_repeat
        return Sent(self.batch, self.queue, problem=problem, may_repeat=self.may_repeat, is_rejected=is_rejected)


@dataclass
class Producer:
    """For one thread. Close it; its cluster is the caller's."""

    cluster: Cluster
    settings: SendSettings = field(default_factory=SendSettings)
    _connections: dict[Address, Connection] = field(default_factory=dict)
    # By broker: until when others are preferred.
    _away_until: dict[str, float] = field(default_factory=dict)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """The queues of a topic that take messages, in order. Raises ClusterError if there are none."""
        route = self._route(topic, is_new=True)
        if route is None or not route.writable:
            found = "no route to it" if route is None else "that it takes no messages"
            raise ClusterError(
                f"{self.cluster.name}: expected topic {topic} to write to, found {found}: create the topic, or check "
                "its name, its permissions and that its brokers run"
            )
        return route.writable

    def send(self, batches: Iterable[Batch]) -> Iterator[Sent]:
        """Send batches. Yields for each what became of it, those of a queue in their order.

        The next batch is taken when memory allows. Raises ClusterError if no name server responds.
        """
        attempts: dict[Queue, _Attempt] = {}
        size = 0
        for batch in batches:
            while batch.queue in attempts or (attempts and size + batch.size > self.settings.max_bytes):
                attempt = attempts.pop(batch.queue if batch.queue in attempts else next(iter(attempts)))
                size -= attempt.batch.size
                yield self._finish(attempt)
            if batch.count > 1 and _is_alone(batch):
                yield self._one_by_one(_Attempt(batch, batch.queue))
            else:
                attempts[batch.queue] = self._start(_Attempt(batch, batch.queue))
                size += batch.size
        for attempt in attempts.values():
            yield self._finish(attempt)

    def _route(self, topic: str, is_new: bool) -> TopicRoute | None:
        route = self.cluster.route(topic, is_new)
        if route is None and self.settings.new_queues is not None:
            template = self.cluster.route(_TEMPLATE_TOPIC, is_new)
            if template is not None:
                found = [Queue(topic, each.broker, each.id) for each in template.writable]
                found = [queue for queue in found if queue.id < self.settings.new_queues]
                return TopicRoute(topic, (), tuple(found), template.brokers)
        return route

    def _finish(self, attempt: _Attempt) -> Sent:
        """Wait for the response, and send again until one decides."""
        waiting = Waiting(self.settings.seconds)
        found = self._result(attempt)
        if found is None and attempt.connection is not None and attempt.connection.is_lost:
            # A connection that was idle may have been closed by a broker that works.
            self._start(attempt)
            found = self._result(attempt)
        while True:
            if found is not None:
                return found
            self._away_until[attempt.queue.broker] = time.monotonic() + _AWAY_SECONDS
            if waiting.is_over:
                return attempt.result(
                    f"{attempt.queue}: expected an acknowledgement within {waiting.seconds:g} s, found none "
                    f"({attempt.problem}): check its broker, then send again"
                )
            waiting.pause()
            self._start(attempt, is_new=True)
            found = self._result(attempt)

    def _result(self, attempt: _Attempt) -> Sent | None:
        """What the response says; None if the batch has to be sent again."""
        if attempt.connection is None:
            if attempt.is_possible:
                return None
            return attempt.result(f"{attempt.queue}: {attempt.problem}", is_rejected=attempt.batch.count == 1)
        try:
            response = attempt.connection.wait(attempt.opaque)
        except LostError as error:
            attempt.problem, attempt.may_repeat = str(error), True
            return None
        if response.code == BrokerCode.SUCCESS or response.code in NOT_FLUSHED.values():
            return self._stored(attempt, response)
        if response.code in _NO_BATCHES and not _is_alone(attempt.batch):
            return self._one_by_one(attempt)
        attempt.problem = response.problem
        attempt.may_repeat |= response.code == BrokerCode.SYSTEM_ERROR
        if response.code in RETRIED:
            return None
        problem = f"{attempt.queue}: expected success, found {response.problem}"
        return attempt.result(problem, is_rejected=response.code == BrokerCode.MESSAGE_ILLEGAL)

    def _stored(self, attempt: _Attempt, response: Response) -> Sent:
        """Where the messages are. Those of a malformed response are somewhere."""
        count, joined = attempt.batch.count, response.fields.get("msgId", "")
        ids = joined.split(",")
        status = BrokerCode(response.code)
        try:
            first = response.number("queueOffset")
            if not 0 <= first <= INT64_MAX - count or len(ids) != count or not _IDS.fullmatch(joined):
                raise WireError(f"expected an offset and the ids of {count} messages, found {first} and {len(ids)} ids")
        except WireError as error:
            attempt.may_repeat = True
            return attempt.result(f"{attempt.queue}: its broker sent a malformed response: {error}")
        problem = ""
        if status != BrokerCode.SUCCESS and status not in self.settings.accepted:
            problem = f"{attempt.queue}: expected success, found {response.problem}: the broker has the messages"
        return replace(attempt.result(problem), offsets=range(first, first + count), ids=ids, status=status)

    def _one_by_one(self, attempt: _Attempt) -> Sent:
        """Send each message alone: the broker takes no batches, or not one of them."""
        total = attempt.result()
        for message in attempt.batch.messages:
            batch = Batch.of(attempt.queue, [message._replace(is_alone=True)], is_pinned=True)
            sent = self._finish(self._start(_Attempt(batch, batch.queue)))
            total = replace(
                total,
                offsets=[*total.offsets, *sent.offsets],
                ids=[*total.ids, *sent.ids],
                status=max(total.status, sent.status),
                problem=sent.problem,
                may_repeat=total.may_repeat or sent.may_repeat,
                is_rejected=sent.is_rejected,
            )
            if sent.problem:
                break
        return total

    def _start(self, attempt: _Attempt, is_new: bool = False) -> _Attempt:
        """Send a batch to the master of its queue's broker, or to another broker. The attempt has the problem."""
        attempt.connection = None
        route = self._route(attempt.batch.queue.topic, is_new)
        attempt.queue = self._queue(attempt.batch, route)
        broker = route.brokers.get(attempt.queue.broker) if route is not None else None
        master = broker.addresses.get(MASTER) if broker is not None else None
        if master is None:
            attempt.problem = f"{self.cluster.name} has no master of broker {attempt.queue.broker}"
            return attempt
        try:
            connection = self._connection(master)
            attempt.opaque = connection.send(*self._encoded(attempt.batch, attempt.queue))
            attempt.connection = connection
        except LostError as error:
            attempt.problem = str(error)
        except (EncodeError, UnicodeDecodeError) as error:
            attempt.problem, attempt.is_possible = str(error), False
        return attempt

    def _queue(self, batch: Batch, route: TopicRoute | None) -> Queue:
        """The queue of a batch; while its broker is away, that of another one unless it is pinned."""
        now = time.monotonic()
        if batch.is_pinned or route is None or self._away_until.get(batch.queue.broker, now) <= now:
            return batch.queue

        def rank(queue: Queue) -> tuple[float, bool, bool]:
            away_until = max(self._away_until.get(queue.broker, now), now)
            return away_until, queue.broker != batch.queue.broker, queue.id != batch.queue.id

        return min(route.writable, key=rank, default=batch.queue)

    def _connection(self, server: Address) -> Connection:
        found = self._connections.get(server)
        if found is None or found.is_lost:
            found = self._connections[server] = self.cluster.connect(server, _TIMEOUT)
        return found

    def _encoded(self, batch: Batch, queue: Queue) -> tuple[int, dict[str, str], Buffer]:
        """The code of a request, its fields (``SendMessageRequestHeaderV2``) and its body."""
        alone = next(batch.messages) if _is_alone(batch) else None
        new_queues = self.settings.new_queues
        fields = {
            "a": self.settings.group,
            "b": queue.topic,
            # The topic whose settings a missing one gets: a broker does not make it without.
            "c": queue.topic if new_queues is None else _TEMPLATE_TOPIC,
            "d": str(new_queues or 0),
            "e": str(queue.id),
            "f": str(batch.sys_flag),
            "g": str(batch.born_timestamp),
            "h": str(alone.flag if alone else 0),
            "i": alone.properties.decode() if alone else "",
            "j": "0",
            "k": "false",
            "m": "false" if alone else "true",
        }
        return (codes.SEND_MESSAGE, fields, alone.body) if alone else (codes.SEND_BATCH, fields, batch.data)


def batches_of(messages: Iterable[tuple[Queue, bool, BatchMessage]], max_bytes: int) -> Iterator[Batch]:
    """Messages, each with its queue and whether it is pinned to it, in batches of at most that size or one message."""
    found: dict[tuple[Queue, bool, int, int], list[BatchMessage]] = {}
    sizes: dict[tuple[Queue, bool, int, int], int] = {}
    for queue, is_pinned, message in messages:
        key = queue, is_pinned, message.born_timestamp, message.sys_flag
        size, batch = message.size, found.get(key)
        if batch is not None:
            total = sizes[key] + size
            is_full = len(batch) == MAX_BATCH_MESSAGES or total > max_bytes or message.is_alone or batch[0].is_alone
            if not is_full:
                batch.append(message)
                sizes[key] = total
                continue
            yield Batch.of(queue, batch, is_pinned)
        found[key], sizes[key] = [message], size
    for (queue, is_pinned, *_), batch in found.items():
        yield Batch.of(queue, batch, is_pinned)


def _is_alone(batch: Batch) -> bool:
    topic = batch.queue.topic
    return batch.is_alone or len(topic) > MAX_V1_TOPIC_SIZE or topic.startswith(_RETRY_PREFIX)
