"""What a broker's leader does with puts: checked, told apart, numbered by queue, stamped; answered with their places.

`MessageService` is the ``Application`` of a node of ours, by its structure: the node calls it, from one thread, and it
never calls the node. What is committed is dispatched by a thread of its own (`dispatch`), which keeps the committed
topic-queue table and the identities (`identities`). A leader has, over that, what it holds beyond: rebuilt from every
entry, committed or not, when leadership begins, and kept with every put from then on. It does not wait for what it
holds to be committed, which may take the very put that would wait (RocketMQ's ``DLedgerRoleChangeHandler`` does).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.log_records import record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.retention import PRODUCER_ID_EXPIRY_MS
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.encode.admission import Admitted, Refused
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Bodies
from pyspark_dledger.format.encode.puts import ID_SIZE, PutIds, Puts
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, TRANSACTION_FLAGS
from pyspark_dledger.format.message import encode_host, encode_message
from pyspark_dledger.rocketmq.broker.metadata import MOST_QUEUES, TOPIC_NAME, BrokerMetadata
from pyspark_dledger.rocketmq.broker.presence import Presence
from pyspark_dledger.rocketmq.broker.put_statistics import PutFigures, PutStatistics
from pyspark_dledger.rocketmq.broker.upgrade import begin_over_old_log
from pyspark_dledger.rocketmq.consume_queue.topic_queues import TopicQueues
from pyspark_dledger.rocketmq.dedup.committed_identities import FOLDER, CommittedIdentities
from pyspark_dledger.rocketmq.dedup.first_copies import MessageLocation, first_copies
from pyspark_dledger.rocketmq.dedup.identity_arrays import split_ids
from pyspark_dledger.rocketmq.dedup.log_entries import first_stored_from, has_entry
from pyspark_dledger.rocketmq.dedup.recent_identities import RecentIdentities
from pyspark_dledger.rocketmq.dedup.sorted_run import EntryRange
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchedPart, Dispatcher, DispatchSettings
from pyspark_dledger.rocketmq.log_files import OLD_FOLDER, LogFiles
from pyspark_dledger.rocketmq.message_arrays import QueueName
from pyspark_dledger.rocketmq.service.log_tail import read_tail

# A message that no queue and no index has, and that RocketMQ knows as its own: nobody ever reads it.
_FILLER_TOPIC = b"SELF_TEST_TOPIC"
_LENGTH = np.dtype(">u4")
_PLACE = np.dtype(">i8")
_ID = np.dtype(f"V{ID_SIZE}")
_WORD = np.dtype("<u8")
_LOOK_SECONDS = 0.005
_STOP_SECONDS = 10.0


def host_bytes(host: str, port: int) -> bytes:
    """An address as messages carry it, the first one of a name. Raises OptionError for a name without one."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise OptionError(f"{host}: expected a host with an address, found {error}: say another in peers") from None
    return encode_host(str(address).partition("%")[0], port)


class RunningStore(Protocol):
    """What the service sees of its node's store (`store.base.DLedgerStore`), from the node's thread only."""

    append_hook: Callable[[bytearray, bytearray], None] | None

    @property
    def ledger_begin_index(self) -> int: ...

    @property
    def ledger_end_index(self) -> int: ...

    @property
    def committed_index(self) -> int: ...

    @property
    def end_pos(self) -> int: ...

    def term_at(self, index: int) -> int: ...

    def get(self, index: int) -> Any: ...

    def read(self, first_index: int, max_bytes: int) -> Any: ...


class AppendedEntries(Protocol):
    """What the service sees of an append (`store.base.Appended`)."""

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def runs(self) -> Sequence[tuple[int, int]]: ...


@dataclass(frozen=True)
class MessageSettings:
    """How messages are served.

    Identities are kept for ``producer_id_expiry_ms`` after their messages were stored. A message of more than
    ``max_message_size`` bytes, as it stands in the log, is refused (``maxMessageSize`` of a broker).
    """

    producer_id_expiry_ms: int = PRODUCER_ID_EXPIRY_MS
    max_message_size: int = MAX_BODY_SIZE
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    engine: str = "auto"

    def __post_init__(self) -> None:
        if self.producer_id_expiry_ms < 1:
            raise OptionError(f"producerIdExpiryMs: expected at least 1 ms, found {self.producer_id_expiry_ms}")


class _Details(NamedTuple):
    """What is known of a put between `MessageService.admit` and `MessageService.appended`."""

    puts: Puts
    kept: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    originals: dict[int, MessageLocation]
    twins: dict[int, int]
    new_topics: dict[str, int]
    bodies: Bodies | None
    began: float


class _Leadership:
    """What a leader knows beyond what is dispatched."""

    def __init__(self, queues: TopicQueues, recent: RecentIdentities) -> None:
        self.queues = queues
        self.recent = recent
        self._seen: dict[str, int] = {}
        self.see(queues.ends())

    def see(self, queues: Iterable[QueueName]) -> None:
        for topic, queue_id in queues:
            self._seen[topic] = max(self._seen.get(topic, 0), queue_id + 1)

    def seen(self, topic: str) -> int:
        """How many queues a topic has by what stands in the log."""
        return self._seen.get(topic, 0)


class MessageService:
    """Serves messages for one node. Between `started` and `stopped` all calls come from the node's thread.

    Whatever cannot go on (a disk that fails for the queues, too) is raised by the next call, and ends the node.
    """

    def __init__(
        self,
        root: Path,
        self_id: str,
        store_host: bytes,
        data_dirs: Sequence[Path],
        read_only_dirs: Sequence[Path],
        settings: MessageSettings,
    ) -> None:
        self._root = root
        self._host = store_host
        self._engine = get_engine(settings.engine)
        # Those that are read only may be among the others, as in a broker.conf.
        self._data_dirs = tuple(dict.fromkeys((*data_dirs, *read_only_dirs)))
        self._read_only_dirs = tuple(read_only_dirs)
        self._settings = settings
        self._worker = ThreadPoolExecutor(1, "messages")
        self._metadata = BrokerMetadata(root, self._worker.submit)
        self._identities = CommittedIdentities(root / f"dledger-{self_id}" / FOLDER, settings.producer_id_expiry_ms)
        self._statistics = PutStatistics()
        self._presence = Presence(root)
        self._is_unclean = False
        self._is_open = False
        self._divided = -1
        self._store: RunningStore | None = None
        self._dispatcher: Dispatcher | None = None
        # Of the dispatcher's thread, and read by others under the lock: all but the end of a single queue.
        self._lock = threading.Lock()
        self._committed = TopicQueues()
        self._dispatched_pos = 0
        # Of the node's thread.
        self._leadership: _Leadership | None = None
        self._rebuilt: Future[_Leadership | None] | None = None
        self._round = 0
        self._ends: deque[tuple[int, int]] = deque()

    @classmethod
    def open(
        cls,
        root: Path,
        self_id: str,
        store_host: bytes | None = None,
        data_dirs: Sequence[Path] = (),
        settings: MessageSettings | None = None,
        read_only_dirs: Sequence[Path] = (),
    ) -> MessageService:
        """Take the broker's root, and close an old CommitLog in it. To be followed by a node's start, or by `close`.

        ``store_host`` is what messages say to be stored at (`encode_host`); ``data_dirs`` are the folders of the log's
        data files, by default that of the node; in ``read_only_dirs`` none is made. Raises StoreError where a broker or
        a node has the root.
        """
        folders = tuple(data_dirs) or (root / f"dledger-{self_id}" / "data",)
        host = store_host or encode_host("127.0.0.1", 0)
        service = cls(root, self_id, host, folders, read_only_dirs, settings or MessageSettings())
        try:
            service._open()
        except BaseException:
            service.close()
            raise
        return service

    def _open(self) -> None:
        self._is_unclean = self._presence.acquire()
        self._is_open = True
        self._divided = divided = begin_over_old_log(self._root, self._data_dirs, read_only=self._read_only_dirs)
        record(logging.INFO, "messages", root=self._root, unclean=self._is_unclean, dividedCommitlogOffset=divided)

    @property
    def store_options(self) -> dict[str, object]:
        """What the node's store has to be told (fields of ``StoreConfig``): not to clean before an old CommitLog is."""
        return {"old_log_dir": self._root / OLD_FOLDER}

    def close(self) -> None:
        """Let go of the root, also where no node was started. May be called twice."""
        self._worker.shutdown()
        if self._is_open:
            self._is_open = False
            self._presence.release(is_clean=not self._is_unclean and self._store is None)

    # The node's life

    def started(self, store: RunningStore) -> None:
        """The store is open: see `Application.started`."""
        self._store = store
        store.append_hook = self._engine.patch_physical_offsets
        oldest = now_ms() - self._settings.producer_id_expiry_ms
        # Clocks of leaders differ: what has nearly expired tells nothing about runs that are missing.
        nearly = oldest + self._settings.producer_id_expiry_ms // 100
        listen_from = self._identities.load(
            partial(has_entry, store), first_stored_from(store, oldest), first_stored_from(store, nearly)
        )
        dispatcher = Dispatcher(self._root, self._data_dirs, self._dispatched, self._settings.dispatch)
        dispatcher.recover(store.end_pos, self._is_unclean, listen_from)
        self._dispatcher = dispatcher
        self._committed = TopicQueues(dispatcher.queue_ends)
        self._dispatched_pos = dispatcher.dispatched_offset
        dispatcher.start()
        self.committed(store.committed_index)

    def stopped(self) -> None:
        """The store closes next: see `Application.stopped`."""
        self._forget_leadership()
        self._statistics.record()
        dispatcher, self._dispatcher = self._dispatcher, None
        is_clean = True
        if dispatcher is not None:
            is_clean = dispatcher.stop(_STOP_SECONDS) and self._flush_identities()
        self._worker.shutdown()
        self._store = None
        if self._is_open:
            self._is_open = False
            self._presence.release(is_clean)

    def _flush_identities(self) -> bool:
        try:
            self._identities.flush()
        except OSError as error:
            # They are in the log; the next start reads them from there.
            record(logging.WARNING, "identities not written", found=str(error))
        return True

    # Committed entries

    def committed(self, index: int) -> None:
        """See `Application.committed`. Raises StoreError where dispatch has ended by itself."""
        dispatcher, store = self._running()
        end_pos = None
        while self._ends and self._ends[0][0] <= index:
            last, pos = self._ends.popleft()
            end_pos = pos if last == index else None
        if index == store.ledger_end_index:
            end_pos = store.end_pos
        if index >= 0:
            dispatcher.committed(index, end_pos)

    def _running(self) -> tuple[Dispatcher, RunningStore]:
        assert self._dispatcher is not None
        assert self._store is not None
        if self._dispatcher.failure is not None:
            raise StoreError(
                f"{self._root}: expected queues to be built from the log, found {self._dispatcher.failure}: restart it"
            )
        return self._dispatcher, self._store

    def _dispatched(self, part: DispatchedPart) -> None:
        """Queues and index have a part of the log. From the dispatcher's thread."""
        with self._lock:
            self._committed.raise_to(part.ends)
            self._dispatched_pos = part.end_pos
            if part.ids is not None and part.last_index >= 0:
                self._identities.add(_covered(part, part.ids), part.ids.ids, part.ids.index)

    # Leadership

    def role_changed(self, is_leader: bool, term: int) -> None:
        """See `Application.role_changed`."""
        self._forget_leadership()
        if not is_leader:
            return
        dispatcher, store = self._running()
        this_round, committed, end = self._round, store.committed_index, store.end_pos
        record(logging.INFO, "rebuilding", term=term, dispatchedIndex=dispatcher.dispatched_index, endPos=end)
        self._rebuilt = self._worker.submit(
            self._rebuild, dispatcher, committed, end, lambda: self._round == this_round
        )

    def _forget_leadership(self) -> None:
        self._round += 1
        self._leadership = self._rebuilt = None
        self._ends.clear()

    def _rebuild(
        self, dispatcher: Dispatcher, committed: int, end: int, is_wanted: Callable[[], bool]
    ) -> _Leadership | None:
        """What is known when leadership begins, of a log that ends at `end`; None where it has ended meanwhile.

        What was committed by then, and an old CommitLog, is dispatched first, in its time. Nothing waits for what is
        not committed.
        """
        while dispatcher.dispatched_index < committed or dispatcher.dispatched_offset < min(self._divided, end):
            if not is_wanted() or dispatcher.failure is not None:
                return None
            time.sleep(_LOOK_SECONDS)
        with self._lock:
            queues, pos, recent = TopicQueues(self._committed.ends()), self._dispatched_pos, self._identities.pending()
        tail = read_tail(self._engine, LogFiles(self._root, self._data_dirs), pos, end, is_wanted)
        if tail is None:
            return None
        queues.raise_to(tail.ends)
        return _Leadership(queues, RecentIdentities(recent + tail.identities))

    def _leading(self) -> _Leadership | None:
        """What a leader knows; None until it is rebuilt."""
        if self._leadership is None and self._rebuilt is not None and self._rebuilt.done():
            self._leadership, self._rebuilt = self._rebuilt.result(), None
        return self._leadership

    @property
    def is_ready(self) -> bool:
        """Whether puts are taken: a leader has rebuilt its tables, and dispatched an old CommitLog."""
        return self._leading() is not None

    # Puts

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted | Refused:
        """See `Application.admit`."""
        began = time.perf_counter()
        self._running()
        leadership = self._leading()
        if leadership is None:
            return self._not_ready()
        try:
            puts = self._engine.read_puts(bodies)
            self._check_sizes(bodies)
            new_topics = self._new_topics(leadership, puts.queues, queue_nums)
            return self._admitted(leadership, bodies, puts, new_topics, began)
        except ValueError as error:
            self._statistics.refused()
            return Refused(ResponseCode.UNEXPECTED_ARGUMENT, str(error))

    def _check_sizes(self, bodies: Bodies) -> None:
        """Raises ValueError for a message that is too large for this broker."""
        most = self._settings.max_message_size
        if most < MAX_BODY_SIZE and (largest := int(_sizes(bodies).max())) > most:
            raise ValueError(f"expected messages of at most {most} bytes, found one of {largest}")

    def _not_ready(self) -> Refused:
        return Refused(ResponseCode.LEADER_NOT_READY, "the leader is still reading its log")

    def _new_topics(self, leadership: _Leadership, queues: Iterable[QueueName], queue_nums: int) -> dict[str, int]:
        """The topics to make for a put, with their queue counts. Raises ValueError for a queue that cannot be.

        A topic that this member does not know may stand in the log, or have been told to a client by the leader before.
        """
        wanted: dict[str, int] = {}
        for topic, queue_id in queues:
            known = self._metadata.queue_count(topic)
            seen = leadership.seen(topic)
            limit = MOST_QUEUES if known is None else max(known, seen)
            if queue_id >= limit:
                raise ValueError(f"topic {topic}: expected a queueId below {limit}, found {queue_id}")
            least = max(_checked_count(queue_nums), seen, queue_id + 1) if known is None else max(known, seen)
            if known is None or least > known:
                wanted[topic] = max(wanted.get(topic, 0), least)
        return wanted

    def _admitted(
        self, leadership: _Leadership, bodies: Bodies, puts: Puts, new_topics: dict[str, int], began: float
    ) -> Admitted:
        originals, twins = self._duplicates(leadership, puts)
        # Raw entries may be messages, too, with places that they brought: known once they are in their queues.
        leadership.queues.raise_to({queue: self._committed.end(queue) for queue in puts.queues})
        keep = np.ones(bodies.count, np.bool_)
        keep[[*originals, *twins]] = False
        kept = np.flatnonzero(keep)
        queue_offsets = np.zeros(bodies.count, np.int64)
        queue_offsets[kept] = leadership.queues.number(puts.queues, puts.queue[kept], puts.sys_flag[kept])
        stamped = None
        if len(kept):
            stamped = self._engine.stamp_puts(bodies, keep, queue_offsets, now_ms(), self._host)
        least_commit = max((place.index for place in originals.values()), default=-1)
        details = _Details(puts, kept, queue_offsets, originals, twins, new_topics, stamped, began)
        return Admitted(stamped, least_commit, details)

    def _duplicates(self, leadership: _Leadership, puts: Puts) -> tuple[dict[int, MessageLocation], dict[int, int]]:
        """The places of what is in the log already; and of what stands twice in this put, which it is the same as."""
        _, store = self._running()
        which = None if puts.has_id.all() else np.flatnonzero(puts.has_id)
        if which is not None and not len(which):
            return {}, {}
        leadership.recent.forget(self._identities.covered)
        found = {**self._identities.find(puts.ids, which), **leadership.recent.find(puts.ids, which)}
        keys = {n: puts.ids[n * ID_SIZE : (n + 1) * ID_SIZE] for n in found}
        originals = first_copies(store, {n: (index, keys[n]) for n, index in found.items()})
        return originals, _twins(puts.ids, which, originals)

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        """See `Application.appended`."""
        leadership, details = self._leadership, admitted.details
        assert leadership is not None
        assert isinstance(details, _Details)
        _, store = self._running()
        places = np.empty((len(details.queue_offsets), 3), _PLACE)
        if appended is not None:
            self._note(leadership, details, appended, places)
            self._ends.append((appended.last_index, store.end_pos))
        if details.originals:
            places[list(details.originals)] = np.array(list(details.originals.values()), _PLACE)
        for ordinal, first in details.twins.items():
            places[ordinal] = places[first]
        if details.new_topics:
            self._metadata.add_topics(details.new_topics)
        size = len(details.bodies.block) if details.bodies is not None else 0
        put = PutFigures(
            len(details.kept), size, len(details.queue_offsets) - len(details.kept), details.puts.queues[0][0]
        )
        self._statistics.put(put, 1000 * (time.perf_counter() - details.began))
        return places.tobytes()

    def _note(
        self, leadership: _Leadership, details: _Details, appended: AppendedEntries, places: npt.NDArray[np.int64]
    ) -> None:
        """Take note of what was appended, and write down where it stands."""
        puts, kept = details.puts, details.kept
        assert details.bodies is not None
        index = np.arange(appended.first_index, appended.last_index + 1)
        places[kept, 0] = index
        places[kept, 1] = _positions(details.bodies, appended)
        places[kept, 2] = details.queue_offsets[kept]
        leadership.queues.take(puts.queues, puts.queue[kept], puts.sys_flag[kept])
        leadership.see(puts.queues)
        ids = puts.ids
        is_told_apart = puts.has_id[kept]
        if len(kept) < len(puts.queue) or not is_told_apart.all():
            ids = np.frombuffer(ids, _ID)[kept[is_told_apart]].tobytes()
            index = index[is_told_apart]
        leadership.recent.add(ids, index)

    def filler(self) -> Bodies:
        """See `Application.filler`: a rolled back message, which is in no queue and in no index of RocketMQ either."""
        now = now_ms()
        message = encode_message(
            _FILLER_TOPIC,
            b"",
            0,
            sys_flag=TRANSACTION_FLAGS["rollback"],
            born_timestamp=now,
            born_host=self._host,
            store_timestamp=now,
            store_host=self._host,
        )
        return Bodies(1, len(message).to_bytes(4, "big") + message)

    # Metadata

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes] | Refused:
        """See `Application.topics`."""
        self._running()
        leadership = self._leading()
        if leadership is None:
            return self._not_ready()
        try:
            counts = self._topic_counts(leadership, names, queue_nums)
        except ValueError as error:
            return Refused(ResponseCode.UNEXPECTED_ARGUMENT, str(error))
        if fresh := {name: count for name, count in counts.items() if self._metadata.queue_count(name) != count}:
            self._metadata.add_topics(fresh)
        return counts, self._host

    def _topic_counts(self, leadership: _Leadership, names: Sequence[str], queue_nums: int) -> dict[str, int]:
        counts = {}
        for name in names:
            if not TOPIC_NAME.fullmatch(name):
                raise ValueError(f"expected a topic of 1 to 255 characters of %|a-zA-Z0-9_-, found {name!r}")
            known = self._metadata.queue_count(name)
            least = _checked_count(queue_nums) if known is None else known
            counts[name] = max(least, leadership.seen(name))
        return counts

    def config(self) -> Mapping[str, bytes]:
        """See `Application.config`."""
        return self._metadata.files()

    def copied(self, files: Mapping[str, bytes]) -> None:
        """The leader's metadata: put in the place of what this member has."""
        self._metadata.take_over(files)


def _covered(part: DispatchedPart, ids: PutIds) -> EntryRange:
    """What a part of the log covers; its times are those of its identities, among which raw entries may be older."""
    now, stamps = now_ms(), ids.store_timestamps
    if len(stamps):
        first, last = int(stamps.min()), int(stamps.max())
    else:
        first, last = part.first_store_timestamp or now, part.last_store_timestamp or now
    return EntryRange(part.first_index, part.last_index, part.last_term, first, min(last, now))


def _checked_count(queue_nums: int) -> int:
    if not 1 <= queue_nums <= MOST_QUEUES:
        raise ValueError(f"expected 1 to {MOST_QUEUES} queues for a new topic, found {queue_nums}")
    return queue_nums


def _twins(ids: bytes, which: npt.NDArray[np.int64] | None, originals: Mapping[int, MessageLocation]) -> dict[int, int]:
    """The ordinals of messages that stand in a put for the second time, each with that of the first."""
    hashes = np.sort(np.frombuffer(ids, _WORD)[1 :: ID_SIZE // _WORD.itemsize])
    if which is None and not (hashes[1:] == hashes[:-1]).any():
        return {}
    keys = split_ids(ids)
    first: dict[bytes, int] = {}
    twins = {}
    for n in range(len(keys)) if which is None else which.tolist():
        if n not in originals and (other := first.setdefault(keys[n], n)) != n:
            twins[n] = other
    return twins


def _positions(bodies: Bodies, appended: AppendedEntries) -> npt.NDArray[np.int64]:
    """Where each entry stands: one behind the other, but for where a new file begins."""
    sizes = _sizes(bodies) + ENTRY_HEADER_SIZE
    ends = np.cumsum(sizes)
    positions = ends - sizes
    for index, pos in appended.runs:
        at = index - appended.first_index
        positions[at:] += pos - positions[at]
    return positions


def _sizes(bodies: Bodies) -> npt.NDArray[np.int64]:
    """Of each body, in bytes."""
    return np.frombuffer(bodies.block, _LENGTH, bodies.count).astype(np.int64)
