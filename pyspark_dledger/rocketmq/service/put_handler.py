"""Puts at a leader: messages are checked, deduplicated, numbered by queue and stamped, then located in the log.

`PutStatistics` logs figures of each minute, and slow puts.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.log_records import record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.encode.encoded import (
    ID_SIZE,
    MAX_BODY_SIZE,
    Admitted,
    Bodies,
    DiskNeededError,
    NumberedPuts,
    Puts,
    RejectedError,
)
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import TRANSACTION_FLAGS
from pyspark_dledger.format.message import Message, message_in
from pyspark_dledger.log.io.broker_config import MAX_QUEUES
from pyspark_dledger.rocketmq.broker.config_files import TOPIC_NAME, BrokerMetadata, LimitError, TopicLimits
from pyspark_dledger.rocketmq.service.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.service.leader_tables import DispatchedTables, LeaderTables, check_claims
from pyspark_dledger.rocketmq.service.log_entries import AppendedEntries, MessageLocation, RunningStore, first_copies

# As RocketMQ: StoreStatsService's interval, its slots of PutMessageDistributeTime, and DLedgerCommitLog's warning.
_LOG_SECONDS = 60.0
_SLOTS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
_SLOW_MS = 500


class PutStatistics:
    """Counts puts, and logs the figures of each minute with puts. Not thread-safe.

    The time of a put is the time that blocks other puts, from check to write, like that of RocketMQ's lock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Since the start.
        self.all_messages = self.all_duplicates = 0
        # By the limit that was reached, topics or queues; "invalid" without one.
        self.all_rejected = {"invalid": 0, "queues": 0, "topics": 0}
        self._reset()

    def _reset(self) -> None:
        self._since = self._clock()
        self._puts = self._messages = self._size = self._duplicates = self._rejected = 0
        self._slowest = 0.0
        self._slots = [0] * (len(_SLOTS_MS) + 1)

    def add(self, messages: int, size: int, duplicates: int, topic: str, milliseconds: float) -> None:
        """Count an appended put of new messages, with their size in bytes, and of duplicates."""
        self._puts += 1
        self._messages += messages
        self._size += size
        self._duplicates += duplicates
        self.all_messages += messages
        self.all_duplicates += duplicates
        self._slowest = max(self._slowest, milliseconds)
        self._slots[bisect_left(_SLOTS_MS, milliseconds)] += 1
        if milliseconds > _SLOW_MS:
            figures = {"messages": messages, "bytes": size, "topic": topic}
            record(logging.WARNING, "slow put", milliseconds=round(milliseconds), **figures)
        self.log_if_due()

    def add_rejected(self, reason: str) -> None:
        self._rejected += 1
        self.all_rejected[reason] += 1

    def log_if_due(self) -> None:
        """Log the figures if a minute has passed."""
        if self._clock() - self._since >= _LOG_SECONDS:
            self.log()

    def log(self) -> None:
        """Log the figures since the last record, if there are any, and reset them."""
        if self._puts or self._rejected:
            seconds = max(self._clock() - self._since, 1e-9)
            record(
                logging.INFO,
                "puts",
                seconds=round(seconds, 1),
                puts=self._puts,
                messages=self._messages,
                messagesPerSecond=round(self._messages / seconds, 1),
                bytes=self._size,
                averageBytes=round(self._size / self._messages) if self._messages else None,
                duplicates=self._duplicates,
                refused=self._rejected,
                slowestMs=round(self._slowest, 1),
                times=self._times(),
            )
        self._reset()

    def _times(self) -> str:
        """The number of puts by duration: ``0-10ms:3 10-50ms:1``, without empty ranges."""
        lows = ("<=", *(f"{slot}-" for slot in _SLOTS_MS))
        highs = (*map(str, _SLOTS_MS), "")
        rows = zip(lows, highs, self._slots, strict=True)
        return " ".join(f"{low}{high}ms:{count}" for low, high, count in rows if count)


# Source: RocketMQ 5.3.3 TopicValidator.
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}|%(?:RETRY|DLQ)%[%|a-zA-Z0-9_-]{1,248}")
_NOT_IN_QUEUE = TRANSACTION_FLAGS["prepared"]


def messages_of(bodies: Iterable[bytes]) -> Iterator[tuple[str, Message]]:
    """The bodies that are messages, with their topics."""
    for body in bodies:
        message = message_in(body)
        if message is not None:
            yield message.topic, message


def ends_after(
    messages: Iterable[tuple[str, Message]], tables: LeaderTables, dispatched: DispatchedTables, limit: int | None
) -> dict[QueueName, int]:
    """The next queueOffset of each queue after these raw messages. Raises ValueError for a wrong one.

    A raw message must not skip queueOffsets: consumers would find nothing there, and files would be filled. `limit` is
    that of all queues.
    """
    ends: dict[QueueName, int] = {}
    for topic, message in messages:
        queue = (topic, message.queue_id)
        _check_name(queue)
        if message.sys_flag & _NOT_IN_QUEUE:
            continue
        end = ends[queue] if queue in ends else max(tables.queues[queue], dispatched.ends([queue])[queue])
        if not 0 <= message.queue_offset <= end:
            raise ValueError(
                f"topic {topic} queueId {message.queue_id}: expected a queueOffset of at most {end}, found "
                f"{message.queue_offset}"
            )
        ends[queue] = max(end, message.queue_offset + 1)
        if not end and limit is not None and len(tables.queues) + len(ends) > limit:
            raise LimitError("queues", f"expected at most {limit} queues (maxQueues), found more with {topic}")
    return ends


def _check_name(queue: QueueName) -> None:
    topic, queue_id = queue
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"expected a topic of 1 to 127 characters of %|a-zA-Z0-9_-, found {topic!r}")
    if not 0 <= queue_id < MAX_QUEUES:
        raise ValueError(f"topic {topic}: expected a queueId below {MAX_QUEUES}, found {queue_id}")


_LENGTH = np.dtype(">u4")
_LOCATION = np.dtype(">i8")
_ID = np.dtype(f"V{ID_SIZE}")


class _AdmittedPut(NamedTuple):
    """A put between `PutHandler.admit` and `PutHandler.appended`.

    ``is_new`` says which messages are new; ``bodies`` are those messages, None without any. ``first_copies`` locates
    messages that are in the log already. ``repeats`` maps a message that the put has twice to its first copy.
    """

    puts: Puts
    is_new: npt.NDArray[np.bool_]
    numbered: NumberedPuts
    first_copies: dict[int, MessageLocation]
    repeats: dict[int, int]
    new_topics: dict[str, int]
    bodies: Bodies | None
    began: float


@dataclass(frozen=True)
class PutHandler:
    """Handles puts, from the node's thread."""

    engine: Engine
    store_host: bytes
    max_message_size: int
    metadata: BrokerMetadata
    identities: CommittedIdentities
    dispatched: DispatchedTables
    limits: TopicLimits
    statistics: PutStatistics = field(default_factory=PutStatistics)

    def admit(
        self, tables: LeaderTables, store: RunningStore, bodies: Bodies, queue_nums: int, *, may_wait: bool
    ) -> Admitted:
        """Check a put, number and stamp its new messages. Changes nothing yet. Raises DiskNeededError."""
        try:
            return self._admitted(tables, store, bodies, queue_nums, may_wait)
        except ValueError as error:
            self.statistics.add_rejected(error.limit if isinstance(error, LimitError) else "invalid")
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, str(error)) from None

    def _admitted(
        self, tables: LeaderTables, store: RunningStore, bodies: Bodies, queue_nums: int, may_wait: bool
    ) -> Admitted:
        began = time.perf_counter()
        puts = self.engine.read_puts(bodies)
        limit = self.max_message_size
        if limit < MAX_BODY_SIZE and (largest := int(np.frombuffer(bodies.block, _LENGTH, bodies.count).max())) > limit:
            raise ValueError(f"expected messages of at most {limit} bytes, found one of {largest}")
        new_topics = topics_to_create(self.metadata, tables, puts.queues, queue_nums)
        # The log may have topics that are missing in this member's metadata.
        created = {name: count for name, count in new_topics.items() if not tables.queue_count(name)}
        self.limits.check(self.metadata, created)
        copies, repeats = self._duplicates(tables, store, bodies, puts, may_wait)
        # Raw entries may be messages with queueOffsets of their own, which are known once they are dispatched.
        tables.queues.raise_to(self.dispatched.ends(puts.queues))
        is_new = np.ones(bodies.count, np.bool_)
        if copies or repeats:
            is_new[[*copies, *repeats]] = False
        check_claims(tables, puts.ids, is_new & puts.has_id)
        numbered = self.engine.number_puts(puts, is_new, [tables.queues[queue] for queue in puts.queues])
        stamped = None
        if len(copies) + len(repeats) < bodies.count:
            stamped = self.engine.stamp_puts(bodies, is_new, numbered.queue_offsets, now_ms(), self.store_host)
        min_commit_index = max((location.index for location in copies.values()), default=-1)
        details = _AdmittedPut(puts, is_new, numbered, copies, repeats, new_topics, stamped, began)
        return Admitted(stamped, min_commit_index, details)

    def _duplicates(
        self, tables: LeaderTables, store: RunningStore, bodies: Bodies, puts: Puts, may_wait: bool
    ) -> tuple[dict[int, MessageLocation], dict[int, int]]:
        """Where messages are that the log has already; and the messages that the put repeats."""
        which = None if puts.has_id.all() else np.flatnonzero(puts.has_id)
        if which is not None and not len(which):
            return {}, {}
        tables.recent.forget(self.identities.covered)
        old = self.identities.find(puts.ids, which, may_wait=may_wait)
        recent = tables.recent.find(puts.ids)
        # Messages without an identity have zeros, which another one may have as its identity.
        found = {**old, **{n: index for n, index in recent.items() if puts.has_id[n]}}
        if not may_wait and not all(map(store.is_recent, found.values())):
            raise DiskNeededError
        known = {n: (index, puts.ids[n * ID_SIZE : (n + 1) * ID_SIZE]) for n, index in found.items()}
        copies = first_copies(store, known, self.engine.unpack_bodies(bodies)) if known else {}
        repeats = tables.recent.repeats(puts.ids, puts.has_id)
        return copies, {n: first for n, first in repeats.items() if n not in copies}

    def appended(self, tables: LeaderTables, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        """Index, pos and queueOffset of each message, after the new ones (None without any) were appended."""
        put = admitted.details
        assert isinstance(put, _AdmittedPut)
        located = b"" if appended is None else self._add_appended(tables, put, appended)
        if put.new_topics:
            self.metadata.add_topics(put.new_topics)
        self._count(put)
        return located if not (put.first_copies or put.repeats) else _with_duplicates(put, located)

    def _add_appended(self, tables: LeaderTables, put: _AdmittedPut, appended: AppendedEntries) -> bytes:
        """Add the appended messages to the tables. Returns their locations."""
        puts, is_new = put.puts, put.is_new
        assert put.bodies is not None
        is_whole = put.bodies.count == len(is_new)
        offsets, ids = put.numbered.queue_offsets, puts.ids
        tables.queues.raise_to(dict(zip(puts.queues, put.numbered.ends, strict=True)))
        tables.add_queues(puts.queues)
        index = np.arange(appended.first_index, appended.last_index + 1)
        if not (is_whole and puts.has_id.all()):
            ids = np.frombuffer(ids, _ID)[is_new & puts.has_id].tobytes()
            index = index[puts.has_id[is_new]]
        tables.recent.add(ids, index)
        return self.engine.locate_puts(
            put.bodies, appended.first_index, appended.runs, offsets if is_whole else offsets[is_new]
        )

    def _count(self, put: _AdmittedPut) -> None:
        new, size = (put.bodies.count, len(put.bodies.block)) if put.bodies is not None else (0, 0)
        milliseconds = 1000 * (time.perf_counter() - put.began)
        self.statistics.add(new, size, len(put.is_new) - new, put.puts.queues[0][0], milliseconds)


def _with_duplicates(put: _AdmittedPut, located: bytes) -> bytes:
    """The locations of all messages of a put; `located` has those of its new ones."""
    locations = np.empty((len(put.is_new), 3), _LOCATION)
    locations[put.is_new] = np.frombuffer(located, _LOCATION).reshape(-1, 3)
    if put.first_copies:
        locations[list(put.first_copies)] = np.array(list(put.first_copies.values()), _LOCATION)
    for ordinal, first in put.repeats.items():
        locations[ordinal] = locations[first]
    return locations.tobytes()


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
