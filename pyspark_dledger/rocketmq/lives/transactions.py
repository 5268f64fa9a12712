"""Transactions: half messages joined with what ended them.

A half message waits in a topic of the broker. A commit writes the message to its own topic; commit and rollback write
an op message with the queue offsets of half messages that ended. A check writes the half message again.

Where a RocksDB has the transactions (``transWriteOriginTransHalfEnable=false``), the topics are others, an op message
has the commitLogOffset of its half message, and only the RocksDB knows of checks.

Sources: RocketMQ 5.3.3 ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``,
``EndTransactionProcessor``; 5.5.0 ``TransMessageRocksDBStore``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from pyspark_dledger.format.layout import (
    HALF_TOPIC,
    OP_TOPIC,
    PROPERTY_HALF_OFFSET,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    ROCKS_HALF_TOPIC,
    ROCKS_OP_TOPIC,
)
from pyspark_dledger.format.message import Message, transaction
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lives.topics import (
    CHECKED_TOO_OFTEN_TOPIC,
    PROPERTY_CHECK_TIMES,
    PROPERTY_PRODUCER_GROUP,
    integer,
    scanned_messages,
    stored_times,
)

PREPARED, COMMITTED, ROLLED_BACK, CHECKED_TOO_OFTEN = "prepared", "committed", "rolledBack", "checkedTooOften"
STATES = {
    PREPARED: "no end is known: the broker asks the producer",
    COMMITTED: "the message is in its topic",
    ROLLED_BACK: "ended without a message in its topic",
    CHECKED_TOO_OFTEN: "given up by the broker, in TRANS_CHECK_MAX_TIME_TOPIC",
}
HALF_TOPICS = HALF_TOPIC, ROCKS_HALF_TOPIC
OP_TOPICS = OP_TOPIC, ROCKS_OP_TOPIC
OP_TAG = "d"
# An op message has at most 4 KiB of offsets.
_MAX_OFFSETS = 100_000


Place = tuple[str, int, int]


@dataclass
class Transaction:
    """A transaction by its first half message in the log; times in milliseconds since 1970.

    ``places`` are the topics, queue ids and queue offsets of the half message and its copies, or the commitLogOffset if
    a RocksDB has the transaction; ``end_offset`` is the
    commitLogOffset of the committed message, or of the one that was given up. ``age_ms`` is from the half message to
    the end, or to the log's last message. ``checks`` is None where only a RocksDB knows them.
    """

    uniq_key: str | None
    producer_group: str | None
    topic: str | None
    queue_id: int | None
    offset: int
    prepared: int
    queue_offset: int
    places: list[Place]
    state: str = PREPARED
    checks: int | None = 0
    last_check: int | None = None
    ended: int | None = None
    end_offset: int | None = None
    age_ms: int | None = None


@dataclass
class TransactionJoin:
    """Joins messages in the order of the log. ``first`` is the time of the log's first message (ms since 1970)."""

    first: int
    _open: dict[str, Transaction] = field(default_factory=dict)
    _places: dict[Place, str] = field(default_factory=dict)

    def add(self, offset: int, message: Message) -> Iterator[Transaction]:
        """The transactions that a message at a commitLogOffset ended."""
        if message.topic in HALF_TOPICS:
            self._prepare(offset, message)
        elif message.topic in OP_TOPICS:
            yield from self._end(message)
        else:
            self._see(offset, message)

    def _see(self, offset: int, message: Message) -> None:
        """A committed message, or one that was given up."""
        is_commit = transaction(message.sys_flag) == "commit"
        found = self._open.get(message.properties.get(PROPERTY_UNIQ_KEY, ""))
        found = found or self._open.get(f"@{message.prepared_transaction_offset}")
        is_end = is_commit or message.topic == CHECKED_TOO_OFTEN_TOPIC
        if found is not None and is_end and (is_commit or found.state != COMMITTED):
            found.state = COMMITTED if is_commit else CHECKED_TOO_OFTEN
            found.ended, found.end_offset = message.store_timestamp, offset

    def remaining(self) -> Iterator[Transaction]:
        """Those without an op message, at the end of the log."""
        yield from self._open.values()

    def _prepare(self, offset: int, half: Message) -> None:
        properties = half.properties
        is_in_rocks = half.topic == ROCKS_HALF_TOPIC
        place = (half.topic, 0, offset) if is_in_rocks else (half.topic, half.queue_id, half.queue_offset)
        key = properties.get(PROPERTY_UNIQ_KEY) or f"@{offset}"
        checks = integer(properties.get(PROPERTY_CHECK_TIMES)) or 0
        found = self._open.get(key)
        if found is not None:
            found.places.append(place)
            found.checks, found.last_check, found.queue_offset = checks, half.store_timestamp, half.queue_offset
        elif checks and half.born_timestamp >= self.first:
            return  # the broker checked once more after the end
        else:
            self._open[key] = Transaction(
                properties.get(PROPERTY_UNIQ_KEY),
                properties.get(PROPERTY_PRODUCER_GROUP),
                properties.get(PROPERTY_REAL_TOPIC),
                integer(properties.get(PROPERTY_REAL_QUEUE_ID)),
                offset,
                half.store_timestamp,
                half.queue_offset,
                [place],
                checks=None if is_in_rocks else checks,
            )
        self._places[place] = key

    def _end(self, op: Message) -> Iterator[Transaction]:
        for each in ended_places(op):
            key = self._places.get(each)
            found = self._open.pop(key) if key is not None else None
            if found is None:
                continue
            for place in found.places:
                self._places.pop(place, None)
            if found.state == PREPARED:
                found.state, found.ended = ROLLED_BACK, op.store_timestamp
            yield found


def ended_places(op: Message) -> list[Place]:
    """The places of half messages that an op message ends; in a RocksDB they have commitLogOffsets."""
    if op.topic == ROCKS_OP_TOPIC:
        offset = integer(op.properties.get(PROPERTY_HALF_OFFSET))
        return [] if offset is None else [(ROCKS_HALF_TOPIC, 0, offset)]
    return [(HALF_TOPIC, op.queue_id, each) for each in ended_offsets(op.properties.get(PROPERTY_TAGS), op.body)]


def ended_offsets(tags: str | None, body: bytes) -> list[int]:
    """The queue offsets of half messages in an op message; before 5.0 it has one."""
    parts = body.split(b",", _MAX_OFFSETS) if tags == OP_TAG else []
    numbers = (integer(part.decode("ascii", "replace")) for part in parts)
    return [number for number in numbers if number is not None]


def transactions(log: StoreView) -> Iterator[Transaction]:
    """Every transaction of a log, in the order of their ends, then those without an op message. Raises StoreError."""
    first, last = stored_times(log)
    join = TransactionJoin(first or 0)
    topics = *HALF_TOPICS, *OP_TOPICS, CHECKED_TOO_OFTEN_TOPIC
    ended = (each for found in scanned_messages(log, topics, commits=True) for each in join.add(*found))
    for each in chain(ended, join.remaining()):
        end = each.ended if each.ended is not None else last
        each.age_ms = end - each.prepared if end is not None else None
        yield each
