"""The trace of messages: what the log, the queues and the consumer offsets know of each, in order of time.

A broker writes a message again for each step of its life: prepared, delayed, delivered, retried. All copies have its
uniqKey. Op messages, checkpoints and acknowledgements name it by its place in a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.format.layout import (
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
    ROCKS_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from pyspark_dledger.format.message import Message, transaction
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.io.broker_config import config_if_intact
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.files import is_remote_path
from pyspark_dledger.log.io.key_files import key_files
from pyspark_dledger.log.io.queue_files import Queue, queues
from pyspark_dledger.log.io.queue_units import QueueUnits, is_possible
from pyspark_dledger.log.lookups import linked_units
from pyspark_dledger.log.plan import plan_between, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lives.message_names import offset_of_id, place_name
from pyspark_dledger.rocketmq.lives.pops import TAGS, Ack, is_revive_message, parse_revive
from pyspark_dledger.rocketmq.lives.topics import (
    CHECKED_TOO_OFTEN_TOPIC,
    DEAD_PREFIX,
    PROPERTY_CHECK_TIMES,
    PROPERTY_TIMER_OUT,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SYSTEM_GROUP_PREFIX,
    integer,
    queue_messages,
)
from pyspark_dledger.rocketmq.lives.transactions import HALF_TOPICS, OP_TAG, OP_TOPICS, Place, ended_places
from pyspark_dledger.rocketmq.lost.known_units import topics_of

STORED, DELIVERED, COMMITTED, ENDED = "stored", "delivered", "committed", "ended"
PREPARED, CHECKED, CHECKED_TOO_OFTEN = "prepared", "checked", "checkedTooOften"
DELAYED, TIMED, RETRIED, DEAD = "delayed", "timed", "retried", "dead"
POPPED, ACKNOWLEDGED, PASSED = "popped", "acknowledged", "passed"
EVENTS = {
    STORED: "in its topic, as it was sent",
    PREPARED: "half message of a transaction",
    CHECKED: "the broker asked for the end of its transaction, `attempt` times",
    COMMITTED: "in its topic, because its transaction was committed",
    ENDED: "the op message: without `committed` it was rolled back",
    CHECKED_TOO_OFTEN: "its transaction was given up",
    DELAYED: "waits for its delay level",
    TIMED: "waits in the timer wheel",
    DELIVERED: "in its topic after it waited",
    RETRIED: "in the retry topic of a group, which rejected it or did not acknowledge it, `attempt` times",
    DEAD: "in the dead letter topic of a group",
    POPPED: "invisible for others of the group",
    ACKNOWLEDGED: "of a pop",
    PASSED: "the group's offset is after it; not in the log, so without time",
}


@dataclass(frozen=True)
class TraceEvent:
    """One step of a message's life; times in milliseconds since 1970.

    ``topic``, ``queue_id`` and ``queue_offset`` are the message's place, ``offset`` is the commitLogOffset of what says
    so. ``passed_by`` are the groups whose offsets are after the place.
    """

    uniq_key: str | None
    time: int | None
    event: str
    topic: str
    queue_id: int
    queue_offset: int
    offset: int | None
    keys: str | None = None
    until: int | None = None
    attempt: int | None = None
    consumer_group: str | None = None
    is_in_queue: bool | None = None
    passed_by: tuple[str, ...] = ()


class Tracer:
    """Tells the events of the messages of one store."""

    def __init__(self, log: StoreView) -> None:
        self._log = log
        self._units: dict[tuple[str, int], QueueUnits] = {}

    def message_of(self, topic: str, queue_id: int, queue_offset: int) -> tuple[int, Message] | None:
        """The message of a place, with its commitLogOffset, by the place's unit; None without one."""
        unit = self._unit(topic, queue_id, queue_offset)
        offset = int(unit["commitLogOffset"]) if unit is not None else -1
        message = message_at(self._log.segments, offset, self._log.segment_end)
        return (offset, message) if message is not None else None

    def events(self, offset: int, message: Message) -> Iterator[TraceEvent]:
        """What a message of the log says: of itself, or of the messages that it names."""
        if message.topic in OP_TOPICS:
            yield from self._ended(offset, message)
        elif is_revive_message(message):
            yield from self._popped(offset, message)
        else:
            yield self._own(offset, message)

    def _own(self, offset: int, message: Message) -> TraceEvent:
        properties, topic = message.properties, message.topic
        place = topic, message.queue_id, message.queue_offset
        unit = self._unit(*place)
        found = TraceEvent(
            properties.get(PROPERTY_UNIQ_KEY),
            message.store_timestamp,
            STORED,
            *place,
            offset,
            properties.get(PROPERTY_KEYS),
            is_in_queue=unit is not None and int(unit["commitLogOffset"]) == offset,
        )
        if topic in HALF_TOPICS:
            checks = integer(properties.get(PROPERTY_CHECK_TIMES))
            return replace(found, event=CHECKED if checks else PREPARED, attempt=checks)
        if topic == CHECKED_TOO_OFTEN_TOPIC:
            return replace(found, event=CHECKED_TOO_OFTEN)
        if topic == SCHEDULE_TOPIC:
            until = int(unit["tagsCode"]) if unit is not None and found.is_in_queue else None
            return replace(found, event=DELAYED, until=until, attempt=message.reconsume_times or None)
        if topic == TIMER_TOPIC:
            return replace(found, event=TIMED, until=integer(properties.get(PROPERTY_TIMER_OUT)))
        found = replace(found, passed_by=self._passed_by(*place))
        for prefix, event in ((RETRY_PREFIX, RETRIED), (DEAD_PREFIX, DEAD)):
            if topic.startswith(prefix):
                group = topic.removeprefix(prefix)
                return replace(found, event=event, attempt=message.reconsume_times, consumer_group=group)
        if transaction(message.sys_flag) == "commit":
            return replace(found, event=COMMITTED)
        return replace(found, event=DELIVERED if properties.get(PROPERTY_REAL_TOPIC) == topic else STORED)

    def _ended(self, offset: int, op: Message) -> Iterator[TraceEvent]:
        for place in self._ended_places(op):
            yield self._named(place, TraceEvent(None, op.store_timestamp, ENDED, *place, offset))

    def _ended_places(self, op: Message) -> Iterator[Place]:
        """The places of the half messages that an op message ends, in their queues."""
        for place in ended_places(op):
            if place[0] != ROCKS_HALF_TOPIC:
                yield place
                continue
            half = message_at(self._log.segments, place[2], self._log.segment_end)
            if half is not None and half.topic == ROCKS_HALF_TOPIC:
                yield half.topic, half.queue_id, half.queue_offset

    def _popped(self, offset: int, message: Message) -> Iterator[TraceEvent]:
        if message.topic != TIMER_TOPIC and PROPERTY_TIMER_OUT in message.properties:
            return  # a copy of one that waited
        try:
            parsed = parse_revive(offset, message)
        except ValueError:
            return
        key, popped = (parsed.key, None) if isinstance(parsed, Ack) else parsed
        topic, group, queue_id, *_ = key
        queue_offsets = parsed.queue_offsets if isinstance(parsed, Ack) else popped.queue_offsets if popped else ()
        for queue_offset in queue_offsets:
            place = topic, queue_id, queue_offset
            event = TraceEvent(None, message.store_timestamp, ACKNOWLEDGED, *place, offset, consumer_group=group)
            if popped is not None:
                event = replace(event, event=POPPED, time=popped.popped, until=popped.visible)
            yield self._named(place, event)

    def _named(self, place: tuple[str, int, int], event: TraceEvent) -> TraceEvent:
        found = self.message_of(*place)
        properties = found[1].properties if found is not None else {}
        return replace(event, uniq_key=properties.get(PROPERTY_UNIQ_KEY), keys=properties.get(PROPERTY_KEYS))

    def _unit(self, topic: str, queue_id: int, queue_offset: int) -> Any:
        """The unit of a place; None without a possible one."""
        name = topic, queue_id
        if name not in self._units and name in self._queues:
            self._units[name] = QueueUnits(self._queues[name])
        if name not in self._units or not 0 <= queue_offset < self._units[name].end:
            return None
        found = self._units[name].at(queue_offset, 1)
        return found[0] if is_possible(found)[0] else None

    def _passed_by(self, topic: str, queue_id: int, queue_offset: int) -> tuple[str, ...]:
        of_queue = self._offsets.get((topic, queue_id), ())
        return tuple(group for group, offset in of_queue if offset > queue_offset)

    @cached_property
    def _queues(self) -> dict[tuple[str, int], Queue]:
        root = self._log.paths.root
        return {queue.name: queue for queue in queues(root)} if root is not None else {}

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics that have queues."""
        return frozenset(topics_of(self._log))

    @cached_property
    def _offsets(self) -> dict[tuple[str, int], list[tuple[str, int]]]:
        """The groups of applications with their offsets, by queue; empty without a readable config."""
        found: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for (topic, group), of_queues in sorted(config_if_intact(self._log.paths.root).offsets.items()):
            for queue_id, offset in of_queues.items() if not group.startswith(SYSTEM_GROUP_PREFIX) else ():
                found.setdefault((topic, queue_id), []).append((group, offset))
        return found


class Traced(NamedTuple):
    """The lives of messages, each in order of time, and the names for which there is none."""

    events: list[TraceEvent]
    missing: list[str]


def trace(log: StoreView, names: Iterable[str], *, scan: bool = False) -> Traced:
    """The lives of messages by key, uniqKey, offsetMsgId or TOPIC/QUEUE/OFFSET.

    Messages are looked up in IndexFiles and queues; the log is read where it has no IndexFile, and with `scan` all of
    it. An index of keys can lack messages (RocketMQ issue 7477). Raises OptionError without a name, StoreError.
    """
    wanted = list(dict.fromkeys(names))
    if not wanted or "" in wanted:
        raise OptionError("expected keys, ids or TOPIC/QUEUE/OFFSET, found none")
    search = _Search(log, scan)
    return Traced(search.events(set(wanted)), [name for name in wanted if name not in search.found])


class _Search:
    """Collects messages by their names; ``found`` are the names of which there is one."""

    def __init__(self, log: StoreView, scan: bool) -> None:
        self._log, self._scan = log, scan
        self._tracer = Tracer(log)
        self._messages: dict[int, Message] = {}
        self.found: set[str] = set()

    def events(self, names: set[str]) -> list[TraceEvent]:
        self._add_places(names)
        gaps = self._add_indexed(names | self._ids)
        wanted = names | self._ids
        for start, end in gaps:
            self._add_scanned(wanted, start, end)
        self._add_indexed(self._ids)
        own = [event for item in self._messages.items() for event in self._tracer.events(*item)]
        passed = (each for event in own for each in _passed(event))
        return sorted((*own, *self._ended(own), *self._popped(own), *passed), key=_order)

    def _add_places(self, names: set[str]) -> None:
        """The messages that are named by their place or position."""
        for name in names:
            place, offset = place_name(name), offset_of_id(name)
            if place is not None:
                found = self._tracer.message_of(*place)
            else:
                message = message_at(self._log.segments, offset, self._log.segment_end) if offset is not None else None
                found = (offset, message) if message is not None and offset is not None else None
            if found is not None:
                self._messages[found[0]] = found[1]
                self.found.add(name)

    @property
    def _ids(self) -> set[str]:
        """The uniqKeys of the messages."""
        return {each.properties.get(PROPERTY_UNIQ_KEY, "") for each in self._messages.values()} - {""}

    def _add_indexed(self, wanted: set[str]) -> list[tuple[int, int]]:
        """Add the messages that IndexFiles have for these keys or uniqKeys.

        Returns between which commitLogOffsets of messages the log has no IndexFile.
        """
        root = self._log.paths.root
        files = key_files(root) if root is not None and not is_remote_path(root) and not self._scan else ()
        hashes = {key_hash(topic, key) for topic in self._tracer.topics for key in wanted}
        gaps, at = [], self._log.min_offset
        for file in files:
            linked = linked_units(file, hashes)
            if linked is None:
                continue  # it is damaged: the log is read there
            for unit in linked.values():
                if unit.key_hash in hashes:
                    self._add(unit.offset, wanted)
            gaps.append((at, file.header.begin_phy_offset))
            at = max(at, file.header.end_phy_offset)
        return [*gaps, (at, self._log.max_offset)]

    def _add(self, offset: int, wanted: set[str]) -> None:
        message = message_at(self._log.segments, offset, self._log.segment_end)
        found = _names_of(message) & wanted if message is not None else set()
        if message is not None and found:
            self._messages[offset] = message
            self.found |= found

    def _add_scanned(self, wanted: set[str], start: int, end: int) -> None:
        """Add the messages between two commitLogOffsets of messages that have one of these keys or uniqKeys."""
        if start >= end:
            return
        log, columns = self._log, ("uniqKey", "keys", "commitLogOffset")
        first, last = log.row_of_message(start), log.row_of_message(end)
        begin = first.start if first is not None else log.min_offset
        stop = last.start if last is not None else log.max_offset
        for partition in plan_between(log, columns, log.options, Filters(), None, begin, stop):
            for batch in read_partition(partition):
                ids, keys, offsets = (batch.column(name).to_pylist() for name in columns)
                for uniq_key, text, offset in zip(ids, keys, offsets, strict=True):
                    if uniq_key in wanted or (text is not None and not wanted.isdisjoint(text.split(" "))):
                        self._add(offset, wanted)

    def _ended(self, own: list[TraceEvent]) -> Iterator[TraceEvent]:
        """What op messages say of half messages; only one of a half message and its copies has an op message."""
        halves = [event for event in own if event.topic in HALF_TOPICS]
        places, waiting = set(map(_place, halves)), {event.uniq_key for event in halves}
        if not waiting:
            return
        for offset, op in queue_messages(self._log, OP_TOPICS, min(self._messages), [OP_TAG]):
            found = [event for event in self._tracer.events(offset, op) if _place(event) in places]
            yield from found
            waiting -= {event.uniq_key for event in found}
            if not waiting:
                return

    def _popped(self, own: list[TraceEvent]) -> Iterator[TraceEvent]:
        """What checkpoints and acknowledgements say."""
        places, prefixes = set(map(_place, own)), (REVIVE_PREFIX, TIMER_TOPIC)
        if places and any(topic.startswith(REVIVE_PREFIX) for topic in self._tracer.topics):
            for offset, message in queue_messages(self._log, prefixes, min(self._messages), TAGS):
                for event in self._tracer.events(offset, message) if is_revive_message(message) else ():
                    if _place(event) in places:
                        yield event


def _place(event: TraceEvent) -> tuple[str, int, int]:
    return event.topic, event.queue_id, event.queue_offset


def _order(event: TraceEvent) -> tuple[Any, ...]:
    """By message, then by time, those without one last."""
    is_late = event.time is None
    return event.uniq_key or "", is_late, event.time or 0, event.offset or 0, *_place(event), event.consumer_group or ""


def _names_of(message: Message) -> set[str]:
    properties = message.properties
    return {properties.get(PROPERTY_UNIQ_KEY, ""), *properties.get(PROPERTY_KEYS, "").split(" ")} - {""}


def _passed(event: TraceEvent) -> Iterator[TraceEvent]:
    for group in event.passed_by:
        yield replace(event, time=None, event=PASSED, offset=None, consumer_group=group, is_in_queue=None, passed_by=())
