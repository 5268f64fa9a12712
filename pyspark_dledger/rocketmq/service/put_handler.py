"""Puts at a leader: messages are checked, deduplicated, numbered by queue and stamped, then located in the log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.admission import Admitted, DiskNeededError, Rejected
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies
from pyspark_dledger.format.encode.identities import split_ids
from pyspark_dledger.format.encode.puts import ID_SIZE, Puts
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.rocketmq.broker.broker_metadata import TOPIC_NAME, BrokerMetadata
from pyspark_dledger.rocketmq.broker.config_files import MAX_QUEUES
from pyspark_dledger.rocketmq.broker.put_statistics import PutStatistics
from pyspark_dledger.rocketmq.dedup.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.dedup.log_entries import AppendedEntries, MessageLocation, RunningStore, first_copies
from pyspark_dledger.rocketmq.message_arrays import Longs, QueueName
from pyspark_dledger.rocketmq.service.leader_tables import DispatchedTables, LeaderTables
from pyspark_dledger.rocketmq.service.producer_states import check_claims
from pyspark_dledger.rocketmq.service.topic_limits import LimitError, TopicLimits

_LENGTH = np.dtype(">u4")
_LOCATION = np.dtype(">i8")
_ID = np.dtype(f"V{ID_SIZE}")
_WORD = np.dtype("<u8")


class _AdmittedPut(NamedTuple):
    """A put between `PutHandler.admit` and `PutHandler.appended`.

    ``kept`` are the ordinals of messages that are new; ``bodies`` those messages, None without any. ``first_copies``
    locates messages that are in the log already. ``repeats`` maps a message that the put has twice to its first copy.
    """

    puts: Puts
    kept: Longs
    queue_offsets: Longs
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
    ) -> Admitted | Rejected:
        """Check a put, number and stamp its new messages. Changes nothing yet. Raises DiskNeededError."""
        try:
            return self._admitted(tables, store, bodies, queue_nums, may_wait)
        except ValueError as error:
            self.statistics.add_rejected(error.limit if isinstance(error, LimitError) else "invalid")
            return Rejected(ResponseCode.UNEXPECTED_ARGUMENT, str(error))

    def _admitted(
        self, tables: LeaderTables, store: RunningStore, bodies: Bodies, queue_nums: int, may_wait: bool
    ) -> Admitted:
        began = time.perf_counter()
        puts = self.engine.read_puts(bodies)
        limit = self.max_message_size
        if limit < MAX_BODY_SIZE and (largest := int(_sizes(bodies).max())) > limit:
            raise ValueError(f"expected messages of at most {limit} bytes, found one of {largest}")
        new_topics = topics_to_create(self.metadata, tables, puts.queues, queue_nums)
        # The log may have topics that are missing in this member's metadata.
        created = {name: count for name, count in new_topics.items() if not tables.queue_count(name)}
        self.limits.check(self.metadata, created)
        copies, repeats = self._duplicates(tables, store, bodies, puts, may_wait)
        # Raw entries may be messages with queueOffsets of their own, which are known once they are dispatched.
        tables.queues.raise_to(self.dispatched.ends(puts.queues))
        is_new = np.ones(bodies.count, np.bool_)
        is_new[[*copies, *repeats]] = False
        kept = np.flatnonzero(is_new)
        check_claims(tables, puts.ids, kept[puts.has_id[kept]])
        queue_offsets = np.zeros(bodies.count, np.int64)
        queue_offsets[kept] = tables.queues.number(puts.queues, puts.queue[kept], puts.sys_flag[kept])
        stamped = None
        if len(kept):
            stamped = self.engine.stamp_puts(bodies, is_new, queue_offsets, now_ms(), self.store_host)
        min_commit_index = max((location.index for location in copies.values()), default=-1)
        details = _AdmittedPut(puts, kept, queue_offsets, copies, repeats, new_topics, stamped, began)
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
        return copies, _repeats(puts.ids, which, copies)

    def appended(self, tables: LeaderTables, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        """Index, pos and queueOffset of each message, after the new ones (None without any) were appended."""
        put = admitted.details
        assert isinstance(put, _AdmittedPut)
        locations = np.empty((len(put.queue_offsets), 3), _LOCATION)
        if appended is not None:
            self._add_appended(tables, put, appended, locations)
        if put.first_copies:
            locations[list(put.first_copies)] = np.array(list(put.first_copies.values()), _LOCATION)
        for ordinal, first in put.repeats.items():
            locations[ordinal] = locations[first]
        if put.new_topics:
            self.metadata.add_topics(put.new_topics)
        self._count(put)
        return locations.tobytes()

    @staticmethod
    def _add_appended(
        tables: LeaderTables, put: _AdmittedPut, appended: AppendedEntries, locations: npt.NDArray[np.int64]
    ) -> None:
        """Add the appended messages to the tables, and set their locations."""
        puts = put.puts
        is_whole = len(put.kept) == len(puts.queue)
        # A slice copies nothing.
        kept = slice(None) if is_whole else put.kept
        assert put.bodies is not None
        index = np.arange(appended.first_index, appended.last_index + 1)
        locations[kept, 0] = index
        locations[kept, 1] = _positions(put.bodies, appended)
        locations[kept, 2] = put.queue_offsets[kept]
        tables.queues.take(puts.queues, puts.queue[kept], puts.sys_flag[kept])
        tables.add_queues(puts.queues)
        ids = puts.ids
        has_id = puts.has_id[kept]
        if not (is_whole and has_id.all()):
            ids = np.frombuffer(ids, _ID)[put.kept[has_id]].tobytes()
            index = index[has_id]
        tables.recent.add(ids, index)

    def _count(self, put: _AdmittedPut) -> None:
        size = len(put.bodies.block) if put.bodies is not None else 0
        duplicates = len(put.queue_offsets) - len(put.kept)
        milliseconds = 1000 * (time.perf_counter() - put.began)
        self.statistics.add(len(put.kept), size, duplicates, put.puts.queues[0][0], milliseconds)


def _repeats(ids: bytes, which: Longs | None, copies: Mapping[int, MessageLocation]) -> dict[int, int]:
    """The ordinals of messages that an earlier message of the same put equals, with that one's ordinal."""
    hashes = np.sort(np.frombuffer(ids, _WORD)[1 :: ID_SIZE // _WORD.itemsize])
    if which is None and not (hashes[1:] == hashes[:-1]).any():
        return {}
    keys = split_ids(ids)
    first: dict[bytes, int] = {}
    repeats = {}
    for n in range(len(keys)) if which is None else which.tolist():
        if n not in copies and (other := first.setdefault(keys[n], n)) != n:
            repeats[n] = other
    return repeats


def _positions(bodies: Bodies, appended: AppendedEntries) -> Longs:
    """The position of each entry: consecutive within each file."""
    sizes = _sizes(bodies) + ENTRY_HEADER_SIZE
    ends = np.cumsum(sizes)
    positions = ends - sizes
    for index, pos in appended.runs:
        at = index - appended.first_index
        positions[at:] += pos - positions[at]
    return positions


def _sizes(bodies: Bodies) -> Longs:
    return np.frombuffer(bodies.block, _LENGTH, bodies.count).astype(np.int64)


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
