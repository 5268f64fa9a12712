"""The message service of a broker's leader: puts get queueOffsets and store timestamps, duplicates are skipped.

`MessageService` is the ``Application`` of a node: the node calls it from one thread, and it never calls the node. A
thread of its own dispatches committed entries (`dispatch`). When leadership begins, the tables of the whole log are
rebuilt (`leader_tables`), and each put updates them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.log_records import record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.retention import PRODUCER_ID_EXPIRY_MS
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.encode.encoded import MAX_BODY_SIZE, Admitted, Bodies, ProducerState, RejectedError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import TRANSACTION_FLAGS
from pyspark_dledger.format.message import encode_host, encode_message
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata, LimitError, TopicLimits
from pyspark_dledger.rocketmq.broker.root_files import OLD_FOLDER, LogSegments, RootLock, begin_over_old_log
from pyspark_dledger.rocketmq.dispatch.dispatcher import Dispatcher, DispatchSettings
from pyspark_dledger.rocketmq.service.committed_identities import FOLDER, CommittedIdentities
from pyspark_dledger.rocketmq.service.leader_tables import (
    DispatchedTables,
    LeaderTables,
    producer_state,
    rebuild_leader_tables,
)
from pyspark_dledger.rocketmq.service.log_entries import AppendedEntries, RunningStore, first_stored_from, has_entry
from pyspark_dledger.rocketmq.service.put_handler import PutHandler, ends_after, messages_of, topic_counts
from pyspark_dledger.rocketmq.service.summary_keeper import SummaryKeeper

# RocketMQ's own topic for messages that nobody reads.
_FILLER_TOPIC = b"SELF_TEST_TOPIC"
_CONTROL_TOPIC = b"RMQ_SYS_DLEDGER_CONTROL"
_STOP_SECONDS = 10.0


def host_bytes(host: str, port: int) -> bytes:
    """An address as messages carry it, the first one of a host name. Raises OptionError if it has none."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise OptionError(f"{host}: expected a host with an address, found {error}: correct it in peers") from None
    return encode_host(str(address).partition("%")[0], port)


@dataclass(frozen=True)
class MessageSettings:
    """Settings of the message service.

    Identities are kept for ``producer_id_expiry_ms`` after their messages were stored. A message of more than
    ``max_message_size`` bytes in the log is rejected (``maxMessageSize`` of a broker). No topic is
    created above ``max_topics``, no queue above ``max_queues`` of all topics. ``accept_lost_state``: lead
    although queue offsets and identities of expired messages are lost.
    """

    producer_id_expiry_ms: int = PRODUCER_ID_EXPIRY_MS
    max_message_size: int = MAX_BODY_SIZE
    max_topics: int | None = 100_000
    max_queues: int | None = 1_000_000
    accept_lost_state: bool = False
    dispatch: DispatchSettings = field(default_factory=DispatchSettings)
    engine: str = "auto"

    def __post_init__(self) -> None:
        if self.producer_id_expiry_ms < 1:
            raise OptionError(f"producerIdExpiryMs: expected at least 1 ms, found {self.producer_id_expiry_ms}")


class MessageService:
    """An `Application` of one node. Between `started` and `stopped` all calls come from the node's thread.

    If dispatch fails (as with a broken disk), the next call raises StoreError, which ends the node.
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
        self.may_wait = True
        self._root = root
        self._host = store_host
        self._engine = get_engine(settings.engine)
        # In a broker.conf, read-only folders may be among the others.
        self._data_dirs = tuple(dict.fromkeys((*data_dirs, *read_only_dirs)))
        self._read_only_dirs = tuple(read_only_dirs)
        self._settings = settings
        self._worker = ThreadPoolExecutor(1, "messages")
        self._metadata = BrokerMetadata(root, self._worker.submit)
        self._identities = CommittedIdentities(
            root / f"dledger-{self_id}" / FOLDER, settings.producer_id_expiry_ms, engine=self._engine
        )
        self._dispatched = DispatchedTables(self._identities)
        self._puts = PutHandler(
            self._engine,
            store_host,
            settings.max_message_size,
            self._metadata,
            self._identities,
            self._dispatched,
            TopicLimits(self._settings.max_topics, self._settings.max_queues),
        )
        self._summary = SummaryKeeper(root, self._dispatched, self._identities, self._metadata, self._worker)
        self._lock = RootLock(root)
        self._is_unclean = False
        self._is_open = False
        self._divided = -1
        self._store: RunningStore | None = None
        self._dispatcher: Dispatcher | None = None
        self._tables: LeaderTables | None = None
        self._rebuilding: Future[LeaderTables | None] | None = None
        self._leadership = 0

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
        """Lock the broker's root, and close an old CommitLog in it. Then start a node, or call `close`.

        ``store_host`` is the storeHost of messages (`encode_host`). ``data_dirs`` are the folders of the log's data
        files, by default that of the node; none is created in ``read_only_dirs``. Raises StoreError if a broker or a
        node uses the root, and if its queues are those of another node.
        """
        folders = tuple(data_dirs) or (root / f"dledger-{self_id}" / "data",)
        host = store_host or encode_host("127.0.0.1", 0)
        service = cls(root, self_id, host, folders, read_only_dirs, settings or MessageSettings())
        try:
            service._is_unclean = service._lock.acquire()
            service._is_open = True
            service._check_owner(self_id)
            service._divided = begin_over_old_log(root, service._data_dirs, read_only=service._read_only_dirs)
        except BaseException:
            service.close()
            raise
        fields = {"unclean": service._is_unclean, "dividedCommitlogOffset": service._divided}
        record(logging.INFO, "messages", root=root, **fields)
        return service

    def _check_owner(self, self_id: str) -> None:
        """Raises StoreError if the root has the queues of another node, which this one would empty."""
        own, root = f"dledger-{self_id}", self._root
        others = sorted(each.parent.name for each in root.glob("dledger-*/data"))
        if others and not (root / own).exists():
            raise StoreError(
                f"{root}: expected no queues of another node, found those of {', '.join(others)}: give {self_id} a "
                "root of its own, or use the id of that node"
            )

    @property
    def store_options(self) -> dict[str, object]:
        """Fields of ``StoreConfig`` for the node's store: it deletes no file before an old CommitLog is deleted."""
        return {"old_log_dir": self._root / OLD_FOLDER}

    def close(self) -> None:
        """Release the root, also if no node was started. May be called twice."""
        self._worker.shutdown()
        if self._is_open:
            self._is_open = False
            self._lock.release(is_clean=not self._is_unclean and self._store is None)

    # The node's life

    def started(self, store: RunningStore) -> None:
        self._store = store
        is_served = self._identities.folder.is_dir()
        store.append_hook = self._engine.patch_physical_offsets
        oldest = now_ms() - self._settings.producer_id_expiry_ms
        # Clocks of leaders differ: a missing run of identities that have nearly expired is no gap.
        nearly = oldest + self._settings.producer_id_expiry_ms // 100
        listen_from = self._identities.load(
            partial(has_entry, store), first_stored_from(store, oldest), first_stored_from(store, nearly)
        )
        dispatcher = Dispatcher(
            *(self._root, self._data_dirs, self._dispatched.add, self._settings.dispatch),
            before_old_expiry=self._summary.before_old_expiry,
        )
        dispatcher.recover(store.end_pos, self._is_unclean, listen_from)
        self._dispatcher = dispatcher
        self._dispatched.begin(dispatcher, self._summary.log_begin)
        accept = self._settings.accept_lost_state
        self._summary.begin(store, is_served=is_served, accept_lost_state=accept)
        dispatcher.start()
        store.read_check = self._engine.find_damaged
        self.committed(store.committed_index)

    def stopped(self) -> None:
        self._end_leadership()
        self._puts.statistics.log()
        dispatcher, self._dispatcher = self._dispatcher, None
        is_clean = True
        if dispatcher is not None and (is_clean := dispatcher.stop(_STOP_SECONDS)):
            try:
                self._identities.flush()
            except OSError as error:
                # The next start reads them from the log.
                record(logging.WARNING, "identities not written", found=str(error))
        self._worker.shutdown()
        self._summary.stop()
        self._store = None
        if self._is_open:
            self._is_open = False
            self._lock.release(is_clean)

    def committed(self, index: int) -> None:
        """Raises StoreError if dispatch has failed."""
        dispatcher, store = self._running()
        self._summary.check_begin()
        if index >= 0:
            dispatcher.committed(index, store.end_of(index))

    def _running(self) -> tuple[Dispatcher, RunningStore]:
        assert self._dispatcher is not None
        assert self._store is not None
        if self._dispatcher.failure is not None:
            raise StoreError(
                f"{self._root}: building the ConsumeQueues from the log has failed: {self._dispatcher.failure}: "
                "restart the node"
            )
        return self._dispatcher, self._store

    # Leadership

    def role_changed(self, is_leader: bool, term: int) -> None:
        self._end_leadership()
        if not is_leader:
            return
        dispatcher, store = self._running()
        leadership, end = self._leadership, store.end_pos
        record(logging.INFO, "rebuilding", term=term, dispatchedIndex=dispatcher.dispatched_index, endPos=end)
        self._rebuilding = self._worker.submit(
            rebuild_leader_tables,
            self._dispatched,
            dispatcher,
            self._engine,
            partial(LogSegments, self._root, self._data_dirs),
            committed=store.committed_index,
            min_pos=min(self._divided, end),
            end=end,
            is_wanted=lambda: self._leadership == leadership,
        )

    def _end_leadership(self) -> None:
        self._leadership += 1
        self._tables = self._rebuilding = None

    def _leader_tables(self) -> LeaderTables | None:
        """The tables of this leader; None until they are rebuilt."""
        if self._tables is None and self._rebuilding is not None and self._rebuilding.done():
            self._tables, self._rebuilding = self._rebuilding.result(), None
        return self._tables

    def _ready_tables(self) -> LeaderTables:
        if (tables := self._leader_tables()) is None:
            raise RejectedError(ResponseCode.LEADER_NOT_READY, "the leader is still reading its log")
        return tables

    @property
    def is_ready(self) -> bool:
        """Whether puts are accepted: this leader's tables are rebuilt, and an old CommitLog is dispatched."""
        return self._leader_tables() is not None

    def metrics(self) -> Mapping[str, float | Mapping[tuple[str, ...], float]]:
        dispatcher, statistics = self._dispatcher, self._puts.statistics
        return {
            "dledger_topics": self._metadata.topic_count,
            "dledger_queues": self._dispatched.queue_count,
            "dledger_dispatched_index": -1 if dispatcher is None else dispatcher.dispatched_index,
            "dledger_put_messages_total": statistics.all_messages,
            "dledger_put_duplicates_total": statistics.all_duplicates,
            "dledger_put_rejected_total": {(reason,): count for reason, count in statistics.all_rejected.items()},
        }

    # Puts

    def admit(self, bodies: Bodies, queue_nums: int) -> Admitted:
        _, store = self._running()
        tables = self._ready_tables()
        return self._puts.admit(tables, store, bodies, queue_nums, may_wait=self.may_wait)

    def appended(self, admitted: Admitted, appended: AppendedEntries | None) -> bytes:
        assert self._tables is not None
        self._running()
        return self._puts.appended(self._tables, admitted, appended)

    def check_entries(self, bodies: Bodies) -> object:
        try:
            messages = messages_of(self._engine.unpack_bodies(bodies))
        except ValueError as error:
            raise self._rejected(error) from None
        if (first := next(messages, None)) is None:
            return {}
        self._running()
        tables = self._ready_tables()
        try:
            return ends_after(chain((first,), messages), tables, self._dispatched, self._puts.limits.queues)
        except ValueError as error:
            raise self._rejected(error) from None

    def _rejected(self, error: ValueError) -> RejectedError:
        """The rejection of a request that creates topics or queues without a put."""
        if isinstance(error, LimitError):
            self._puts.statistics.add_rejected(error.limit)
        return RejectedError(ResponseCode.UNEXPECTED_ARGUMENT, str(error))

    def entries_appended(self, checked: object) -> None:
        assert isinstance(checked, dict)
        if checked:
            assert self._tables is not None
            self._tables.queues.raise_to(checked)
            self._tables.add_queues(checked)

    def filler(self) -> Bodies:
        return self._rolled_back(_FILLER_TOPIC, b"")

    def control(self, content: bytes) -> Bodies:
        return self._rolled_back(_CONTROL_TOPIC, content)

    def _rolled_back(self, topic: bytes, body: bytes) -> Bodies:
        """A rolled back message, which RocketMQ puts in no queue and no index."""
        now = now_ms()
        message = encode_message(
            topic,
            body,
            0,
            sys_flag=TRANSACTION_FLAGS["rollback"],
            born_timestamp=now,
            born_host=self._host,
            store_timestamp=now,
            store_host=self._host,
        )
        return Bodies(1, len(message).to_bytes(4, "big") + message)

    # Metadata

    def topics(self, names: Sequence[str], queue_nums: int) -> tuple[Mapping[str, int], bytes]:
        self._running()
        tables = self._ready_tables()
        try:
            counts = topic_counts(self._metadata, tables, names, queue_nums)
            changed = {name: count for name, count in counts.items() if self._metadata.queue_count(name) != count}
            self._puts.limits.check(
                self._metadata, {name: changed[name] for name in changed if not tables.queue_count(name)}
            )
        except ValueError as error:
            raise self._rejected(error) from None
        if changed:
            self._metadata.add_topics(changed)
        return counts, self._host

    def producer(self, producer: bytes, run: int, from_index: int) -> ProducerState:
        self._running()
        tables = self._ready_tables()
        return producer_state(tables, self._identities, producer, run, from_index)

    def config(self) -> Mapping[str, bytes]:
        return self._metadata.files()

    def copied(self, files: Mapping[str, bytes]) -> None:
        self._metadata.take_over(files)

    # The summary, for members whose logs begin late

    @property
    def needs_summary(self) -> bool:
        return self._summary.is_needed

    def summary(self, begin_index: int, snapshot: int, offset: int) -> SummaryPart:
        return self._summary.part(begin_index, snapshot, offset)

    def take_summary(self, part: SummaryPart) -> bool:
        return self._summary.take(part)
