"""What a leader knows of its whole log: next queueOffsets, identities, and how many queues each topic has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.encode.encoded import CONTENT_SIZE, MAX_STATE_IDS, ProducerState
from pyspark_dledger.format.encode.identities import CLAIM, IdentityTable, runs_of
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.rocketmq.broker.root_files import LogSegments
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchedPart, Dispatcher
from pyspark_dledger.rocketmq.dispatch.log_part import LogPart, UnitRules, read_part
from pyspark_dledger.rocketmq.service.committed_identities import CommittedIdentities
from pyspark_dledger.rocketmq.service.sorted_run import (
    WORD,
    CoveredRange,
    IdentityArrays,
    concatenated,
    identity_arrays,
)

_POLL_SECONDS = 0.005
_CHUNK_BYTES = 16 * 1024 * 1024


class EntryId(NamedTuple):
    """Index and term of an entry; both -1 for none. The term may be unknown, -1."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int


NO_ENTRY = EntryId(-1, -1)


class TopicQueues(dict[QueueName, int]):
    """The next queueOffset of each queue; 0 for an unknown one."""

    def __missing__(self, _queue: QueueName) -> int:
        return 0

    def raise_to(self, ends: Mapping[QueueName, int]) -> None:
        """Raise each queue to the given end, if that is higher."""
        for queue, end in ends.items():
            if end > self[queue]:
                self[queue] = end


class DispatchedTables:
    """Updated by the dispatcher's thread, read by others."""

    def __init__(self, identities: CommittedIdentities) -> None:
        self._identities = identities
        self._lock = threading.Lock()
        self._queues = TopicQueues()
        self._pos = 0
        self._dispatched = self._complete = NO_ENTRY
        self._log_begin: Callable[[], int] = lambda: -1

    def begin(self, dispatcher: Dispatcher, log_begin: Callable[[], int]) -> None:
        """Take the state of a dispatcher that has recovered and not started; `log_begin` is the log's first index."""
        self._queues = TopicQueues(dispatcher.queue_ends)
        self._pos = dispatcher.dispatched_offset
        self._log_begin = log_begin
        self._dispatched = EntryId(dispatcher.dispatched_index, -1)

    def add(self, part: DispatchedPart) -> None:
        """Add a part of the log; the dispatcher's listener."""
        with self._lock:
            self._queues.raise_to(part.ends)
            self._pos = part.end_pos
            if part.last_index >= 0:
                self._identities.add(covered_range(part), part.ids.ids, part.ids.index)
                self._dispatched = EntryId(part.last_index, part.last_term)
                self._advance()

    def _advance(self) -> None:
        """The tables have all entries up to the last dispatched one, if no entry is missing before the log."""
        if self._log_begin() <= self._complete.index + 1:
            self._complete = max(self._complete, self._dispatched)

    def merge(self, last: EntryId, ends: Mapping[QueueName, int]) -> None:
        """Add the state of all entries up to `last`."""
        with self._lock:
            self._queues.raise_to(ends)
            self._complete = max(self._complete, last)
            self._advance()

    @property
    def queue_count(self) -> int:
        """The number of queues that have had messages."""
        return len(self._queues)

    @property
    def complete_index(self) -> int:
        """The tables have all entries up to this index, also those that have expired."""
        return self._complete.index

    def complete_state(self) -> tuple[EntryId, dict[QueueName, int]]:
        """The last entry up to which the tables are complete, and the next queueOffsets, which may be of later ones."""
        with self._lock:
            return self._complete, dict(self._queues)

    def ends(self, queues: Iterable[QueueName]) -> dict[QueueName, int]:
        """The next queueOffset of these queues."""
        return {queue: self._queues[queue] for queue in queues}

    def snapshot(self) -> tuple[TopicQueues, int, list[IdentityArrays]]:
        """Next queueOffsets at a position of the log, that position, and the identities that no sorted run has."""
        with self._lock:
            return TopicQueues(self._queues), self._pos, self._identities.pending()


def covered_range(part: DispatchedPart) -> CoveredRange:
    """The entries of a part, with the times of its identities, which may be older for raw entries."""
    now, stamps = now_ms(), part.ids.store_timestamps
    if len(stamps):
        first, last = int(stamps.min()), int(stamps.max())
    else:
        first, last = part.first_store_timestamp or now, part.last_store_timestamp or now
    return CoveredRange(part.first_index, part.last_index, part.last_term, first, min(last, now))


class LeaderTables:
    """Next queueOffsets and recent identities, of entries committed or not; each put updates them."""

    def __init__(self, queues: TopicQueues, recent: IdentityTable) -> None:
        self.queues = queues
        self.recent = recent
        """Identities above the sorted runs."""
        self.only_runs: dict[int, int] = {}
        """The only run of a producer, for producers whose messages were counted."""
        self.claims: dict[int, list[int]] = {}
        """The runs that claimed a producer, in the order of their first claim."""
        self._queue_counts: dict[str, int] = {}
        self.add_queues(queues)

    def add_queues(self, queues: Iterable[QueueName]) -> None:
        for topic, queue_id in queues:
            self._queue_counts[topic] = max(self._queue_counts.get(topic, 0), queue_id + 1)

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has in the log."""
        return self._queue_counts.get(topic, 0)


def rebuild_leader_tables(
    dispatched: DispatchedTables,
    dispatcher: Dispatcher,
    engine: Engine,
    files: Callable[[], LogSegments],
    *,
    committed: int,
    min_pos: int,
    end: int,
    is_wanted: Callable[[], bool],
) -> LeaderTables | None:
    """The tables of a log that ends at `end`; None once they are not `is_wanted`, or if dispatch fails.

    Waits until `committed` (an index) and `min_pos` are dispatched. It does not wait for entries that are not
    committed: these may need the very put that would wait (RocketMQ's ``DLedgerRoleChangeHandler`` waits for them).
    """
    while dispatcher.dispatched_index < committed or dispatcher.dispatched_offset < min_pos:
        if not is_wanted() or dispatcher.failure is not None:
            return None
        time.sleep(_POLL_SECONDS)
    queues, pos, identities = dispatched.snapshot()
    tail = read_tail(engine, files(), pos, end, is_wanted)
    if tail is None:
        return None
    # Queue offsets may be wrong: a known queue gets at most as many messages as the tail has room for.
    room = (end - pos) // MIN_MESSAGE_SIZE
    queues.raise_to({name: min(last, queues.get(name, last) + room) for name, last in tail.ends.items()})
    recent = engine.new_identity_table()
    for part in identities + tail.identities:
        recent.add(part.ids(), part.index)
    return LeaderTables(queues, recent)


@dataclass
class LogTail:
    """Next queueOffsets and identities of the part of the log that is not dispatched, committed or not."""

    ends: TopicQueues = field(default_factory=TopicQueues)
    identities: list[IdentityArrays] = field(default_factory=list)

    def add(self, part: LogPart) -> None:
        rows = part.rows
        firsts = np.cumsum([0, *rows.counts[:-1]])
        last = np.maximum.reduceat(rows.queue_offset, firsts) if rows.counts else rows.queue_offset
        self.ends.raise_to({name: offset + 1 for name, offset in zip(rows.queues, last.tolist(), strict=True)})
        self.identities.append(identity_arrays(rows.ids.ids, rows.ids.index))


def read_tail(
    engine: Engine, files: LogSegments, start: int, end: int, is_wanted: Callable[[], bool] = lambda: True
) -> LogTail | None:
    """Read ``[start, end)`` of the log, both positions of entries; None as soon as it is not `is_wanted`.

    Raises StoreError if the log's files cannot be read.
    """
    tail, pos = LogTail(), start
    while pos < end:
        if not is_wanted():
            return None
        segment = files.at(pos)
        if segment is None:
            raise StoreError(f"expected a file of the log at {pos}, found none: check its data folders")
        begin = max(pos, segment.base)
        stop = min(segment.end, end, begin + _CHUNK_BYTES)
        if stop <= begin:
            break
        part = read_part(engine, segment, begin, stop, UnitRules())
        tail.add(part)
        pos = part.end
    return tail


_MAX_IDS = MAX_STATE_IDS // CONTENT_SIZE
# Each task of a micro-batch asks about its job: more than so many jobs at once are counted again.
_MAX_KNOWN = 1024
# The leader forgets the claims of earlier jobs.
_MAX_CLAIMED = 1 << 16


def producer_state(
    tables: LeaderTables, identities: CommittedIdentities, producer: bytes, run: int, from_index: int
) -> ProducerState:
    """The state of a producer, committed or not. It may read the disk, if an earlier run's messages are asked for."""
    number = int.from_bytes(producer, "little")
    if from_index == CLAIM:
        _claim(tables, number, run)
    tables.recent.forget(identities.covered)
    old, covered = identities.of_producer(number)
    ids, index = tables.recent.of_producer(number, covered)
    found = concatenated([old, identity_arrays(bytes(ids), np.frombuffer(index, np.int64))])
    if from_index < 0 and tables.only_runs.get(number) == run:
        return ProducerState(len(found))
    others = np.count_nonzero(runs_of(found.first, found.second) != run)
    if not others:
        _remember(tables, number, run)
        if from_index < 0:
            return ProducerState(len(found))
    last_number = min(int(found.first.max()), INT64_MAX) if len(found) else -1
    state = ProducerState(len(found), int(others), last_number, last_index=int(found.index.max()) if len(found) else -1)
    return state if from_index < 0 else _with_ids(state, found, from_index)


def _claim(tables: LeaderTables, producer: int, run: int) -> None:
    """Make a run the last one of its job, unless another one has claimed the job since this one did."""
    runs = tables.claims.setdefault(producer, [])
    if run not in runs:
        runs.append(run)
        # Until now only the last run wrote.
        tables.only_runs.pop(producer, None)
    if len(tables.claims) > _MAX_CLAIMED:
        del tables.claims[next(iter(tables.claims))]


def check_claims(tables: LeaderTables, ids: bytes, new: npt.NDArray[np.bool_]) -> None:
    """Raise ValueError if one of these `new` messages is of another run of its job than the last that claimed it."""
    if not tables.claims or not new.any():
        return
    words = np.frombuffer(ids, WORD).reshape(-1, 3)[new]
    is_one = (words[:, 0] == words[0, 0]).all()
    for producer in np.unique(words[: 1 if is_one else None, 0]).tolist():
        runs = tables.claims.get(producer)
        if runs is None:
            continue
        mine = words[words[:, 0] == producer]
        if (runs_of(mine[:, 1], mine[:, 2]) != runs[-1]).any():
            raise ValueError("expected messages of the job's last run, found new ones of another run: end that one")


def _remember(tables: LeaderTables, producer: int, run: int) -> None:
    known = tables.only_runs
    known[producer] = run
    if len(known) > _MAX_KNOWN:
        del known[next(iter(known))]


def _with_ids(state: ProducerState, found: IdentityArrays, from_index: int) -> ProducerState:
    order = np.argsort(found.index, kind="stable")
    order = order[np.searchsorted(found.index[order], from_index) :]
    page = found.take(order[:_MAX_IDS])
    ids = np.stack((page.first, page.second), axis=1).astype(WORD).tobytes()
    next_index = int(found.index[order[_MAX_IDS]]) if len(order) > _MAX_IDS else -1
    return state._replace(ids=ids, next_index=next_index)
