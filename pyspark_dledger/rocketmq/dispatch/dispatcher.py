"""Builds ConsumeQueues and the index of keys from committed entries, in a thread, and informs a listener.

It only reads the log's own files. Source: RocketMQ 5.3.3 ``DefaultMessageStore.ReputMessageService``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.retention import Retention
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.encode.encoded import PutIds
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.io.state_files import StoreCheckpoint, read_store_checkpoint
from pyspark_dledger.rocketmq.broker.index_writer import HASH_SLOTS, INDEX_UNITS, IndexWriter
from pyspark_dledger.rocketmq.broker.queue_writer import UNITS_PER_FILE, QueueWriter, first_file_end
from pyspark_dledger.rocketmq.broker.root_files import FileCleaner, LogSegments, write_store_checkpoint
from pyspark_dledger.rocketmq.dispatch.dispatch_recovery import DispatchRecovery
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS, LogPart, UnitRules, read_part

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
# A log that grows faster than so many bytes a second is dispatched in steps with pauses of up to 0.1 s: each step has
# costs that do not depend on its messages.
_BUSY_BYTES_PER_SECOND = 16 * 1024 * 1024
_MAX_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class DispatchSettings:
    """RocketMQ's defaults; times in milliseconds, ``chunk_bytes`` in bytes of the log.

    ``units_per_file``, ``hash_slots`` and ``index_units`` apply to new files. ``delays_ms`` are the delay levels from 1
    on. Dispatched messages are on disk, and their keys can be found, after ``flush_interval_ms``. Entries committed
    within ``pause_ms`` are dispatched together.
    """

    units_per_file: int = UNITS_PER_FILE
    hash_slots: int = HASH_SLOTS
    index_units: int = INDEX_UNITS
    delays_ms: tuple[int, ...] = DELAYS_MS
    has_index: bool = True
    pause_ms: int = 5
    flush_interval_ms: int = 3_000
    clean_interval_ms: int = 10_000
    chunk_bytes: int = 16 * 1024 * 1024
    clean: Retention = field(default_factory=Retention)
    engine: str = "auto"


class CommittedEnd:
    """``pos`` is the end of the committed entry ``index``. Of the dispatcher's thread, but `advance` and `wake`."""

    def __init__(self, engine: Engine, files: LogSegments) -> None:
        self._engine = engine
        self._files = files
        self._changed = threading.Condition()
        self._committed: tuple[int, int | None] = (-1, None)
        self._is_woken = False
        self.pos = 0
        self.index = -1

    def begin(self, pos: int, index: int) -> None:
        """Start at a position; all of an old CommitLog is committed."""
        self.pos, self.index = max(pos, self._files.divided) if self._files.divided >= 0 else pos, index

    def advance(self, index: int, end_pos: int | None) -> None:
        """Everything up to `index` is committed; `end_pos` is the end of its entry, if known."""
        with self._changed:
            if index > self._committed[0]:
                self._committed = (index, end_pos)
                self._changed.notify()

    def update(self, start: int) -> int:
        """The position up to which everything is committed, searched from `start` on if the end is unknown."""
        with self._changed:
            index, end_pos = self._committed
        if index > self.index:
            found = end_pos if end_pos is not None else self._end_of(index, max(self.pos, start))
            if found is not None:
                self.pos, self.index = max(self.pos, found), index
        return self.pos

    def _end_of(self, index: int, pos: int) -> int | None:
        """The end of the entry of an index, searched from `pos` on; None if the files do not have it yet."""
        while (segment := self._files.at(pos)) is not None and segment.source == DLEDGER:
            start = max(pos, self._files.first_in(self._engine, segment) if pos <= segment.base else pos)
            end = self._engine.log_end(segment, start, False)
            if end.entries and end.last_index >= index:
                return self._engine.seek(segment, start, end.pos, index + 1)
            pos = segment.end
        return None

    def wait(self, seconds: float) -> None:
        """Wait until more is committed, but not once `wake` was called."""
        with self._changed:
            if self._committed[0] <= self.index and not self._is_woken and seconds > 0:
                self._changed.wait(seconds)

    def wake(self) -> None:
        """End `wait`, now and from now on."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()


class DispatchedPart(NamedTuple):
    """A part of the log that the queues have. Indexes and term are -1 in an old CommitLog, and without entries.

    ``end_pos`` is where the next entry begins. ``ends`` has the next queueOffset of each queue of the part. Store
    timestamps are the first and the last message's in milliseconds, 0 without messages.
    """

    first_index: int
    last_index: int
    last_term: int
    end_pos: int
    ends: dict[QueueName, int]
    ids: PutIds
    first_store_timestamp: int
    last_store_timestamp: int


Listener = Callable[[DispatchedPart], None]


class Dispatcher:
    """One broker's dispatch: `recover`, `start`, `committed` each time more is committed, `stop`.

    The thread calls `listener` in the order of the log. An OSError from it, such as a full disk, repeats the part;
    other errors end the dispatch. `data_dirs` are all folders of DLedger's data files. `before_old_expiry` is called
    before files of an old CommitLog are deleted.

    Any thread may read: queues and listener have everything up to position ``dispatched_offset``, and to entry
    ``dispatched_index`` (-1 for none); ``failure`` is why dispatch has ended. Any thread may call `committed`.
    """

    def __init__(
        self,
        root: Path,
        data_dirs: Iterable[Path],
        listener: Listener,
        settings: DispatchSettings | None = None,
        before_old_expiry: Callable[[], object] = lambda: None,
    ) -> None:
        self._root = root
        self._listener = listener
        self._settings = settings = settings or DispatchSettings()
        self._engine = get_engine(settings.engine)
        self._files = LogSegments(root, data_dirs)
        self._queues = QueueWriter(root, settings.units_per_file)
        self._index = IndexWriter(root, settings.hash_slots, settings.index_units)
        self._cleaner = FileCleaner(root, self._files, settings.clean, self._queues, self._index)
        self._cleaner.before_old_expiry = before_old_expiry
        self._checkpoint = StoreCheckpoint()
        self._committed = CommittedEnd(self._engine, self._files)
        self.dispatched_offset = 0
        self.dispatched_index = -1
        self._index_pos = 0
        self._stored = self._index_stored = 0
        self._complete_from = 0
        self._is_dirty = False
        self._skipped = _SkippedEntries()
        self._stopping = threading.Event()
        self._deadline = 0.0
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="Dispatcher", daemon=True)

    def committed(self, index: int, end_pos: int | None = None) -> None:
        """Everything up to `index` is committed; `end_pos` is the end of its entry, if known."""
        self._committed.advance(index, end_pos)

    # Start and stop

    def recover(self, log_end: int, is_unclean: bool, listen_from: int | None = None) -> None:
        """Truncate queues and index to a log that ends at `log_end`, and find where dispatch continues.

        `is_unclean`: the previous dispatch was not stopped. The listener gets everything from index `listen_from` on.
        Raises StoreError if the log's files cannot be listed, OSError if the disk fails.
        """
        settings = self._settings
        recovery = DispatchRecovery(
            self._root, self._engine, self._files, self._queues, self._index, settings.chunk_bytes, settings.has_index
        )
        start, self._index_pos, self._complete_from = recovery.run(log_end, is_unclean, listen_from)
        self.dispatched_offset, self.dispatched_index = start
        self._checkpoint = read_store_checkpoint(self._root)
        self._stored = self._checkpoint.logics_msg_timestamp
        self._index_stored = self._checkpoint.index_msg_timestamp
        self._committed.begin(*start)
        _LOG.info("dispatch continues at %d, the index of keys at %d", self.dispatched_offset, self._index_pos)

    @property
    def queue_ends(self) -> dict[QueueName, int]:
        """The next queueOffset of each queue, up to `dispatched_offset`; before `start` only."""
        return self._queues.ends

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> bool:
        """Dispatch what is committed, for up to `seconds`, write everything to disk and end.

        Returns whether this is a clean end, after which nothing on disk has to be rebuilt.
        """
        self._deadline = time.monotonic() + seconds
        self._stopping.set()
        self._committed.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._skipped.report()
        is_flushed = self.failure is None and self._try(self.flush)
        self._queues.close()
        self._index.close()
        is_index_complete = not self._settings.has_index or self._index_pos >= self.dispatched_offset
        return is_flushed and is_index_complete and self.dispatched_offset >= self._complete_from

    # The thread

    def _run(self) -> None:
        settings = self._settings
        flush_at = time.monotonic() + settings.flush_interval_ms / 1000
        clean_at = time.monotonic()
        try:
            while True:
                is_stopping = self._stopping.is_set()  # before the step, which then dispatches all that is committed
                start = self.dispatched_offset
                is_idle = not self._try(self._step)
                now = time.monotonic()
                if now >= flush_at:
                    self._try(self.flush)
                    flush_at = time.monotonic() + settings.flush_interval_ms / 1000
                if now >= clean_at:
                    self._try(self._cleaner.run_once)
                    clean_at = time.monotonic() + settings.clean_interval_ms / 1000
                if is_stopping and (is_idle or now >= self._deadline):
                    return
                if is_idle:
                    self._committed.wait(min(flush_at, clean_at) - time.monotonic())
                    self._stopping.wait(settings.pause_ms / 1000)
                elif (size := self.dispatched_offset - start) < settings.chunk_bytes:
                    self._stopping.wait(min(size / _BUSY_BYTES_PER_SECOND, _MAX_PAUSE_SECONDS))
        except Exception as error:  # noqa: BLE001  # a thread has no caller: `failure` says it
            self.failure = f"{type(error).__name__}: {error}"
            _LOG.exception("dispatch has ended at %d", self.dispatched_offset)

    def _try(self, work: Callable[[], object]) -> bool:
        """Do work that a full disk, or a file that just expired, may stop. False if that happens or work returns False.

        The caller tries again later.
        """
        try:
            return work() is not False
        except (OSError, StoreError) as error:
            _LOG.warning("dispatch failed at %d, it will be retried: %s", self.dispatched_offset, error)
            self._stopping.wait(_RETRY_SECONDS)
            with suppress(OSError, StoreError):
                # After a reset of the log, files have gone that were listed before.
                self._files.refresh()
            return False

    def _step(self) -> bool:
        """Dispatch one chunk for the queues, and one for the index if it is late; False if there was none."""
        committed = self._committed.update(self.dispatched_offset)
        is_index_late = self._settings.has_index and self._index_pos < self.dispatched_offset
        if is_index_late:
            self._dispatch_index(self.dispatched_offset)
        if self.dispatched_offset < committed:
            self._dispatch(committed)
            return True
        return is_index_late

    def _read(self, start: int, limit: int) -> LogPart | None:
        """The next chunk of the log before `limit`; None if all of it has expired.

        Raises StoreError if no file has it.
        """
        segment = self._files.at(start)
        if segment is None:
            raise StoreError(f"{self._root}: expected a file of the log at {start}, found none: check its data folders")
        if start < segment.base:
            _LOG.warning("the log from %d to %d has expired before its dispatch", start, segment.base)
            start = self._files.first_in(self._engine, segment)
        end = min(limit, segment.end, start + self._settings.chunk_bytes)
        if end <= start:
            return None
        return read_part(self._engine, segment, start, end, UnitRules(self._settings.delays_ms))

    def _dispatch(self, limit: int) -> None:
        part = self._read(self.dispatched_offset, limit)
        end = limit
        is_index_level = self._index_pos >= self.dispatched_offset
        if part is not None:
            rows = part.rows
            self._queues.first_file_end = first_file_end(self._files.segments)
            ends = self._queues.put(rows.queues, rows.counts, rows.queue_offset, rows.units)
            end = min(part.end, limit)
            if self._settings.has_index and is_index_level:
                self._put_keys(part)
            self._notify(part, end, ends)
            self._skipped.add(part)
            self._stored = rows.last_stored or self._stored
        self._is_dirty = True
        if is_index_level:
            self._index_pos = end
        if part is not None and part.rows.last_index >= 0:
            self.dispatched_index = part.rows.last_index
        if end >= self._committed.pos:
            # Also if the last entries are damaged or expired: a new leader waits for the committed index.
            self.dispatched_index = max(self.dispatched_index, self._committed.index)
        self.dispatched_offset = end

    def _dispatch_index(self, limit: int) -> None:
        part = self._read(self._index_pos, limit)
        if part is not None:
            self._put_keys(part)
        self._index_pos = min(part.end, limit) if part is not None else limit
        self._is_dirty = True

    def _put_keys(self, part: LogPart) -> None:
        """Add the keys of a part. After a retry the writer skips the keys that it has."""
        self._index.put(part.rows.keys)
        self._index_stored = part.rows.last_stored or self._index_stored

    def _notify(self, part: LogPart, end: int, ends: dict[QueueName, int]) -> None:
        rows = part.rows
        bounds = rows.first_index, rows.last_index, rows.last_term
        self._listener(DispatchedPart(*bounds, end, ends, rows.ids, rows.first_stored, rows.last_stored))

    # On disk

    def flush(self) -> None:
        """Write everything to disk, then the store checkpoint. From the thread, or without one."""
        if not self._is_dirty:
            return
        self._is_dirty = False
        try:
            self._queues.sync()
            self._index.flush()
            is_index_level = self._index_pos >= self.dispatched_offset
            self._checkpoint = self._checkpoint._replace(
                physic_msg_timestamp=self._stored,
                logics_msg_timestamp=self._stored,
                index_msg_timestamp=self._stored if is_index_level else min(self._index_stored, self._stored),
                confirm_phy_offset=self.dispatched_offset,
            )
            write_store_checkpoint(self._root, self._checkpoint)
        except BaseException:
            self._is_dirty = True
            raise


class _SkippedEntries:
    """Counts entries that are in no queue. Logs the first ones, and all later ones at the end: there can be many."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""
        self._is_reported = False

    def add(self, part: LogPart) -> None:
        if part.rows.skipped:
            self._first = self._first or f"{part.segment.path} {part.first_skipped}"
            self._count += part.rows.skipped
        if not self._is_reported:
            self.report()

    def report(self) -> None:
        if self._count:
            _LOG.warning(
                "%s in no queue: no message of one; the first is %s",
                counted(self._count, "entry is", "entries are"),
                self._first,
            )
            self._count, self._first = 0, ""
            self._is_reported = True
