"""Pops: checkpoints of popped messages joined with their acknowledgements.

A checkpoint names the messages that a consumer group popped at once. It waits as a timer message, and comes to a revive
topic when they must be acknowledged; so do acknowledgements. The broker then delivers messages without one again.
Sources: RocketMQ 5.3.3 ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg``, ``PopReviveService``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_dledger.common.fastjson import number_in
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.format.layout import PROPERTY_REAL_TOPIC, PROPERTY_TAGS, TIMER_TOPIC
from pyspark_dledger.format.message import Message
from pyspark_dledger.log.io.broker_config import config_if_intact
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lives.topics import REVIVE_PREFIX, scanned_messages

IN_FLIGHT, ACKNOWLEDGED, DUE, REVIVED = "inFlight", "acknowledged", "due", "revived"
STATES = {
    IN_FLIGHT: "popped and invisible until visibleTimestamp",
    ACKNOWLEDGED: "consumed",
    DUE: "not acknowledged in time; the broker has not yet delivered it again",
    REVIVED: "not acknowledged in time and delivered again, in the group's retry topic",
}
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
_CHECKPOINT, _ACK, _BATCH_ACK = TAGS = "ck", "ack", "bAck"
# PopMessageProcessor pops at most 32; a checkpoint has as many bits.
_MAX_MESSAGES = 32
_MAX_BODY = 64 * 1024
# Acknowledgements come with their checkpoint, or a second later.
_LATE_MS = 60_000

_Key = tuple[str, str, int, int, int]


@dataclass
class Popped:
    """The messages of one checkpoint; times in milliseconds since 1970.

    ``offset`` is its commitLogOffset, ``queue_offsets`` those of the messages; ``acknowledged`` has the commitLogOffset
    of the acknowledgement of each.
    """

    topic: str
    group: str
    queue_id: int
    queue_offsets: tuple[int, ...]
    popped: int
    visible: int
    offset: int
    acknowledged: dict[int, int] = field(default_factory=dict)
    revive_place: tuple[str, int, int] | None = None

    def state_of(self, queue_offset: int, revived: Mapping[tuple[str, int], int]) -> str:
        """The state of one message; `revived` are the offsets up to which the broker handled each revive queue."""
        if queue_offset in self.acknowledged:
            return ACKNOWLEDGED
        if self.revive_place is None:
            return IN_FLIGHT
        topic, queue_id, offset = self.revive_place
        # Unlike other groups, this one keeps the last offset that was handled.
        return REVIVED if offset <= revived.get((topic, queue_id), -1) else DUE


@dataclass(frozen=True)
class Ack:
    """The acknowledgement of messages by their queue offsets."""

    key: _Key
    queue_offsets: tuple[int, ...]


def is_revive_message(message: Message) -> bool:
    """Whether a message is a checkpoint or an acknowledgement, waiting or not."""
    topic = message.topic
    if topic == TIMER_TOPIC:
        topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
    return topic.startswith(REVIVE_PREFIX)


def parse_revive(offset: int, message: Message) -> tuple[_Key, Popped] | Ack:
    """The checkpoint, with its key, or the acknowledgement in a message. Raises ValueError."""
    body, tags = bytes(message.body), message.properties.get(PROPERTY_TAGS)
    if len(body) > _MAX_BODY:
        raise ValueError(f"expected at most {_MAX_BODY} bytes, found {len(body)}")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"expected the JSON of a checkpoint or an acknowledgement, found {body[:40]!r}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected an object, found {type(fields).__name__}")
    start, popped = number_in(fields, "so"), number_in(fields, "pt")
    key = (_text(fields, "t"), _text(fields, "c"), number_in(fields, "q", INT32_MAX), start, popped)
    if tags == _ACK:
        return Ack(key, (number_in(fields, "ao"),))
    if tags == _BATCH_ACK:
        return Ack(key, _numbers(fields, "aol"))
    if tags != _CHECKPOINT:
        raise ValueError(f"expected tags {_CHECKPOINT}, {_ACK} or {_BATCH_ACK}, found {str(tags)[:40]}")
    differences = _numbers(fields, "d") if fields.get("d") else tuple(range(number_in(fields, "n", _MAX_MESSAGES)))
    queue_offsets = tuple(start + each for each in differences)
    visible = popped + number_in(fields, "it")
    found = Popped(key[0], key[1], key[2], queue_offsets, popped, visible, offset)
    for bit, queue_offset in enumerate(queue_offsets):
        if number_in(fields, "bm", INT32_MAX) >> bit & 1:
            found.acknowledged[queue_offset] = offset
    return key, found


def _numbers(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or len(values) > _MAX_MESSAGES:
        raise ValueError(f"expected at most {_MAX_MESSAGES} numbers as {name}, found {str(values)[:40]}")
    return tuple(number_in({name: value}, name) for value in values)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"expected a text as {name}, found {str(value)[:40]}")
    return value


class PopJoin:
    """Joins checkpoints and acknowledgements in the order of the log."""

    def __init__(self) -> None:
        self._open: dict[_Key, Popped] = {}
        self._ending: deque[tuple[int, _Key]] = deque()

    def add(self, offset: int, message: Message) -> Iterator[Popped]:
        """The checkpoints for which no more acknowledgements come. Raises ValueError for what is neither."""
        while self._ending and self._ending[0][0] < message.store_timestamp:
            found = self._open.pop(self._ending.popleft()[1], None)
            if found is not None:
                yield found
        parsed = parse_revive(offset, message)
        if isinstance(parsed, Ack):
            if parsed.key in self._open:
                of_checkpoint = self._open[parsed.key]
                for each in set(parsed.queue_offsets).intersection(of_checkpoint.queue_offsets):
                    of_checkpoint.acknowledged.setdefault(each, offset)
            return
        key, popped = parsed
        kept = self._open.setdefault(key, popped)
        if message.topic != TIMER_TOPIC:
            kept.revive_place = message.topic, message.queue_id, message.queue_offset
            self._ending.append((message.store_timestamp + _LATE_MS, key))

    def remaining(self) -> Iterator[Popped]:
        """The checkpoints that are left at the end of the log."""
        yield from self._open.values()


def pops(log: StoreView) -> Iterator[Popped | tuple[int, str]]:
    """Every checkpoint of a log; for a message that is none, its commitLogOffset and what is wrong. Raises StoreError.

    Checkpoints come in the order in which they ended, those in flight last.
    """
    join = PopJoin()
    for offset, message in scanned_messages(log, (REVIVE_PREFIX, TIMER_TOPIC)):
        if is_revive_message(message):
            try:
                yield from join.add(offset, message)
            except ValueError as error:
                yield offset, str(error)
    yield from join.remaining()


def revived_offsets(log: StoreView) -> dict[tuple[str, int], int]:
    """The offset up to which the broker handled each revive queue; empty without a readable config."""
    return {
        (topic, queue_id): offset
        for (topic, group), queues in config_if_intact(log.paths.root).offsets.items()
        if group == REVIVE_GROUP
        for queue_id, offset in queues.items()
    }
