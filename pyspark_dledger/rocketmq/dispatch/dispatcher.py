"""The thread that builds ConsumeQueues and the index of keys from what is committed, and tells who listens.

It reads the log's own files, only what is committed, and writes beside them. Where it goes on after a restart is told
by the queues themselves, and after an unclean end by the store checkpoint, as in RocketMQ; but what is missing is made
anew, and not just dropped. Source: RocketMQ 5.3.3 ``DefaultMessageStore.ReputMessageService``, ``recover``,
``CommitLog.recoverAbnormally``, ``IndexService.load``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.retention import Retention
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.encode.puts import PutIds
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.rocketmq.consume_queue.queue_state import DispatchedMessage
from pyspark_dledger.rocketmq.consume_queue.queue_writer import UNITS_PER_FILE, QueueWriter, first_file_end
from pyspark_dledger.rocketmq.dispatch.expired_files import FileCleaner
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS, LogPart, read_part, stored_at
from pyspark_dledger.rocketmq.index_file.index_file import IndexHeader
from pyspark_dledger.rocketmq.index_file.index_writer import HASH_SLOTS, INDEX_UNITS, IndexWriter
from pyspark_dledger.rocketmq.log_files import LogFiles
from pyspark_dledger.rocketmq.message_arrays import QueueName
from pyspark_dledger.rocketmq.store_checkpoint import MARGIN_MS, read_store_checkpoint, write_store_checkpoint

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_WARNING_SECONDS = 10.0


@dataclass(frozen=True)
class DispatchSettings:
    """How a broker's files are written, with RocketMQ's defaults; times in milliseconds, chunks in bytes of the log.

    ``units_per_file``, ``hash_slots`` and ``index_units`` are those of new files. ``delays_ms`` are the delay levels,
    from 1 on. What was dispatched is on disk, and its keys are found, after ``flush_interval_ms``. What is committed
    within ``pause_ms`` is dispatched together.
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


class DispatchedPart(NamedTuple):
    """A part of the log that the queues have now. Indexes and term are -1 in an old CommitLog, and without entries.

    ``end_pos`` is where the next entry begins. ``ends`` gives the queueOffset that comes next in each queue of the
    part. Store timestamps are those of the first and the last message in milliseconds, 0 without one.
    """

    first_index: int
    last_index: int
    last_term: int
    end_pos: int
    ends: dict[QueueName, int]
    ids: PutIds | None
    first_store_timestamp: int
    last_store_timestamp: int


Listener = Callable[[DispatchedPart], None]


class _DispatchPosition(NamedTuple):
    """Where dispatch goes on, and the index of the entry before; -1 for none."""

    pos: int
    index_before: int


class Dispatcher:
    """One broker's dispatch: `recover`, then `start`, `committed` whenever more is, and `stop`.

    `listener` is called from the thread, in the order of the log. What it raises ends the dispatch (`failure`), but an
    OSError, as of a full disk: then the same part comes again. `data_dirs` are all folders of DLedger's data files.
    """

    def __init__(
        self,
        root: Path,
        data_dirs: Iterable[Path],
        listener: Listener,
        settings: DispatchSettings | None = None,
    ) -> None:
        self._root = root
        self._listener = listener
        self._settings = settings = settings or DispatchSettings()
        self._engine = get_engine(settings.engine)
        self._files = LogFiles(root, data_dirs)
        self._queues = QueueWriter(root, settings.units_per_file)
        self._index = IndexWriter(root, settings.hash_slots, settings.index_units)
        self._cleaner = FileCleaner(root, self._files, settings.clean, self._queues, self._index)
        self._checkpoint = read_store_checkpoint(root)
        self._told = threading.Condition()
        self._committed: tuple[int, int | None] = (-1, None)
        self._bound = 0
        self._bound_index = -1
        self._pos = self._index_pos = 0
        self._dispatched = -1
        self._stored = self._index_stored = 0
        self._complete_from = 0
        self._is_dirty = False
        self._skipped = 0
        self._first_skipped = ""
        self._warn_at = 0.0
        self._stop_asked = threading.Event()
        self._deadline = 0.0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="Dispatcher", daemon=True)

    # What others see.

    @property
    def dispatched_offset(self) -> int:
        """The position up to which queues and listener have everything; from any thread."""
        return self._pos

    @property
    def dispatched_index(self) -> int:
        """The index of the last entry before `dispatched_offset`; -1 without one. From any thread."""
        return self._dispatched

    @property
    def indexed_offset(self) -> int:
        """The position up to which keys are indexed, or will be with the next flush; from any thread."""
        return self._index_pos

    @property
    def failure(self) -> str | None:
        """Why dispatch has ended by itself; None while all is well."""
        return self._failure

    @property
    def queue_ends(self) -> dict[QueueName, int]:
        """The queueOffset that comes next in each queue, up to `dispatched_offset`; before `start` only."""
        return self._queues.ends

    # Where it goes on.

    def recover(self, log_end: int, is_unclean: bool, listen_from: int | None = None) -> None:
        """Cut queues and index to a log that ends at `log_end`, and find where dispatch goes on.

        `is_unclean`: the last one did not stop by itself. With `listen_from` the listener is told everything from that
        index on. Raises StoreError where the log's files cannot be listed, OSError where the disk fails.
        """
        self._files.refresh()
        first = self._first_place()
        proven = self._queues.truncate(log_end)
        place = self._behind(proven.complete_to, first)
        if is_unclean:
            place = min(place, self._covered_place(log_end, first))
        # Until that is reached again queues may have holes before their last units.
        self._complete_from = proven.end if place.pos < proven.end else 0
        index_from = self._recover_index(log_end, is_unclean, place, first) if self._settings.has_index else place.pos
        if listen_from is not None:
            place = min(place, self._place_of(listen_from, place, first))
        self._queues.rewind(place.pos)
        self._pos, self._dispatched = place
        self._index_pos = min(index_from, place.pos)
        self._stored = self._checkpoint.logics_msg_timestamp
        self._index_stored = self._checkpoint.index_msg_timestamp
        self._bound, self._bound_index = self._old_end(place.pos), place.index_before
        _LOG.info("dispatch goes on at %d, with the index of keys at %d", self._pos, self._index_pos)

    def _first_place(self) -> _DispatchPosition:
        """The beginning of the log."""
        pos = self._files.begin(self._engine)
        return _DispatchPosition(pos, self._index_before(pos))

    def _index_before(self, pos: int) -> int:
        segment = self._files.at(pos)
        header = entry_at(segment, pos) if segment is not None and segment.source == DLEDGER else None
        return header.index - 1 if header is not None else -1

    def _behind(self, last: DispatchedMessage | None, first: _DispatchPosition) -> _DispatchPosition:
        """The place behind a message that a queue has; the beginning where that is no message of this log."""
        if last is None or last.end <= first.pos:
            return first
        pos = self._files.pos_of(last.offset)
        segment = self._files.at(pos)
        if segment is not None and segment.source == COMMITLOG:
            return _DispatchPosition(last.end, -1)
        header = entry_at(segment, pos) if segment is not None else None
        if header is None or header.body_size != last.size:
            _LOG.warning(
                "expected a message of %d bytes at %d, to which the last unit of a queue points, found none: all "
                "queues are written once more",
                last.size,
                last.offset,
            )
            return first
        return _DispatchPosition(last.end, header.index)

    def _covered_place(self, log_end: int, first: _DispatchPosition) -> _DispatchPosition:
        """A place before which the checkpoint covers every message: at most one chunk before what it covers.

        By time as RocketMQ has it; and not behind the position up to which queues were on disk, which clocks of several
        leaders cannot make wrong. RocketMQ itself notes a later position there, or none.
        """
        chunk = self._settings.chunk_bytes
        for segment in reversed(self._files.segments):
            begin = self._files.first_in(self._engine, segment)
            if not self._is_covered(segment, begin):
                continue
            inside = self._engine.split(segment, begin, max(min(segment.end, log_end), begin), chunk)
            pos = next((each for each in reversed(inside) if self._is_covered(segment, each)), begin)
            return _DispatchPosition(pos, self._index_before(pos))
        return first

    def _is_covered(self, segment: Segment, pos: int) -> bool:
        checkpoint = self._checkpoint
        if 0 < checkpoint.confirm_phy_offset < pos:
            return False
        stored = stored_at(self._engine, segment, pos)
        return stored is not None and stored <= checkpoint.logics_msg_timestamp - MARGIN_MS

    def _place_of(self, index: int, place: _DispatchPosition, first: _DispatchPosition) -> _DispatchPosition:
        """Where the entry of an index stands, if that is before a place."""
        if index > place.index_before:
            return place
        for segment in reversed([each for each in self._files.segments if each.source == DLEDGER]):
            pos = self._files.first_in(self._engine, segment)
            before = self._index_before(pos)
            if pos < place.pos and before < index:
                pos = self._engine.seek(segment, pos, min(segment.end, place.pos), index)
                return _DispatchPosition(pos, index - 1)
        return first

    def _recover_index(self, log_end: int, is_unclean: bool, place: _DispatchPosition, first: _DispatchPosition) -> int:
        """Delete index files that are not to be trusted; the position from which keys are indexed.

        After an unclean end those are not that the checkpoint does not cover. That it covers less of the index than of
        the queues is noted before they go: another unclean end finds it.
        """
        checkpoint = self._checkpoint
        covered = checkpoint.index_msg_timestamp

        def is_wrong(header: IndexHeader) -> bool:
            is_newer = is_unclean and header.end_timestamp > covered
            return is_newer or header.end_phy_offset >= log_end or self._is_strange(header.end_phy_offset, first)

        kept, wrong = self._index.sort_out(is_wrong)
        is_behind = is_unclean and covered < checkpoint.logics_msg_timestamp
        if wrong:
            _LOG.warning("%d index files from %s on are made anew from the log", len(wrong), wrong[0].name)
            stored = min(covered, kept.end_timestamp) if kept is not None else 0
            self._checkpoint = checkpoint._replace(index_msg_timestamp=stored)
            write_store_checkpoint(self._root, self._checkpoint)
            for path in wrong:
                path.unlink()
        self._index.resume()
        if not wrong and not is_behind:
            return place.pos
        behind = self._files.pos_of(kept.end_phy_offset) if kept is not None else first.pos
        return min(place.pos, max(behind, first.pos))

    def _is_strange(self, offset: int, first: _DispatchPosition) -> bool:
        """Whether the last message of an index file is none of this log."""
        pos = self._files.pos_of(offset)
        if pos < first.pos:
            return False  # expired
        segment = self._files.at(pos)
        return segment is None or (segment.source == DLEDGER and entry_at(segment, pos) is None)

    def _old_end(self, pos: int) -> int:
        """What an old CommitLog has is committed, all of it."""
        return max(pos, self._files.divided) if self._files.divided >= 0 else pos

    # The thread.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def committed(self, index: int, end_pos: int | None = None) -> None:
        """Everything up to that index is committed; `end_pos` is where its entry ends, if that is known. Any thread."""
        with self._told:
            if index > self._committed[0]:
                self._committed = (index, end_pos)
                self._told.notify()

    def stop(self, seconds: float = 5.0) -> bool:
        """Dispatch what is committed, for so long at most, write everything to disk and end.

        True where nothing of what is on disk has to be made anew: then, and only then, was it closed.
        """
        with self._told:
            self._deadline = time.monotonic() + seconds
            self._stop_asked.set()
            self._told.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._tell_skipped()
        is_flushed = self._failure is None and self._try(self.flush)
        self._queues.close()
        self._index.close()
        is_index_whole = not self._settings.has_index or self._index_pos >= self._pos
        return is_flushed and is_index_whole and self._pos >= self._complete_from

    def _run(self) -> None:
        settings = self._settings
        flush_at = time.monotonic() + settings.flush_interval_ms / 1000
        clean_at = time.monotonic()
        try:
            while True:
                is_stopping = self._stop_asked.is_set()  # before what was committed until then is looked for
                is_idle = not self._try(self._step)
                now = time.monotonic()
                if now >= flush_at:
                    self._try(self.flush)
                    flush_at = time.monotonic() + settings.flush_interval_ms / 1000
                if now >= clean_at:
                    self._try(self._clean)
                    clean_at = time.monotonic() + settings.clean_interval_ms / 1000
                if is_stopping and (is_idle or now >= self._deadline):
                    return
                if is_idle:
                    self._wait(min(flush_at, clean_at) - time.monotonic())
                    self._stop_asked.wait(settings.pause_ms / 1000)
        except Exception as error:  # noqa: BLE001  # a thread has nobody above it: who asks `failure` is told
            self._failure = f"{type(error).__name__}: {error}"
            _LOG.exception("dispatch has ended at %d", self._pos)

    def _try(self, work: Callable[[], bool | None]) -> bool:
        """Do something that a full disk or a file that expires meanwhile may stop; False where there was nothing to do.

        It is tried again later, so that the caller goes on.
        """
        try:
            return work() is not False
        except (OSError, StoreError) as error:
            _LOG.warning("dispatch at %d failed, and is tried again: %s", self._pos, error)
            self._stop_asked.wait(_RETRY_SECONDS)
            return False

    def _wait(self, seconds: float) -> None:
        with self._told:
            if self._committed[0] <= self._bound_index and not self._stop_asked.is_set() and seconds > 0:
                self._told.wait(seconds)

    def _step(self) -> bool:
        """Dispatch one chunk for the queues, and one for the index where that is behind; whether there was any."""
        bound = self._find_bound()
        is_index_behind = self._settings.has_index and self._index_pos < self._pos
        if is_index_behind:
            self._dispatch_index(self._pos)
        if self._pos < bound:
            self._dispatch(bound)
            return True
        return is_index_behind

    def _find_bound(self) -> int:
        """The position up to which everything is committed."""
        with self._told:
            index, end_pos = self._committed
        if index > self._bound_index:
            found = end_pos if end_pos is not None else self._end_of(index)
            if found is not None:
                self._bound, self._bound_index = max(self._bound, found), index
        return self._bound

    def _end_of(self, index: int) -> int | None:
        """Where the entry of an index ends, looked for from what is known on; None where it is not there yet."""
        pos = max(self._bound, self._pos)
        while (segment := self._files.at(pos)) is not None and segment.source == DLEDGER:
            start = max(pos, self._files.first_in(self._engine, segment) if pos <= segment.base else pos)
            end = self._engine.log_end(segment, start, False)
            if end.entries and end.last_index >= index:
                return self._engine.seek(segment, start, end.pos, index + 1)
            pos = segment.end
        return None

    def _part(self, start: int, bound: int) -> LogPart | None:
        """The next chunk of the log, up to a position; None where all of that has expired.

        Raises StoreError where no file has it.
        """
        segment = self._files.at(start)
        if segment is None:
            raise StoreError(f"{self._root}: expected a file of the log at {start}, found none: check its data folders")
        if start < segment.base:
            _LOG.warning(
                "expected the log at %d, found that it begins at %d: the rest has expired", start, segment.base
            )
            start = self._files.first_in(self._engine, segment)
        end = min(bound, segment.end, start + self._settings.chunk_bytes)
        if end <= start:
            return None
        return read_part(self._engine, segment, start, end, self._settings.delays_ms)

    def _dispatch(self, bound: int) -> None:
        part = self._part(self._pos, bound)
        end = bound
        is_level = self._index_pos >= self._pos
        if part is not None:
            queue, queue_offset, units = part.units()
            self._queues.first_file_end = first_file_end(self._files.segments)
            ends = self._queues.put(part.names.names, queue, queue_offset, units)
            end = min(part.end, bound)
            if self._settings.has_index and is_level:
                self._put_keys(part)
            self._tell(part, end, ends)
            self._note_skipped(part)
            self._stored = part.last_stored or self._stored
        self._is_dirty = True
        if is_level:
            self._index_pos = end
        if part is not None and part.last_index >= 0:
            self._dispatched = part.last_index
        if end >= self._bound:
            # Also where the last entries are damaged, or have expired: a new leader waits for what was committed.
            self._dispatched = max(self._dispatched, self._bound_index)
        self._pos = end

    def _dispatch_index(self, bound: int) -> None:
        part = self._part(self._index_pos, bound)
        if part is not None:
            self._put_keys(part)
        self._index_pos = min(part.end, bound) if part is not None else bound
        self._is_dirty = True

    def _put_keys(self, part: LogPart) -> None:
        """Add the keys of a part. It may come again, and with more: the writer knows which keys it has."""
        self._index.put(part.keys(self._engine))
        self._index_stored = part.last_stored or self._index_stored

    def _tell(self, part: LogPart, end: int, ends: dict[QueueName, int]) -> None:
        is_ledger = part.segment.source == DLEDGER and part.last_index >= 0
        ids = self._engine.put_ids(part.segment, part.start, min(part.end, end)) if is_ledger else None
        stored = part.first_stored, part.last_stored
        self._listener(DispatchedPart(part.first_index, part.last_index, part.last_term, end, ends, ids, *stored))

    def _note_skipped(self, part: LogPart) -> None:
        """Have it told, from time to time, what has no place in a queue: somebody may append much of that."""
        if part.skipped:
            self._first_skipped = self._first_skipped or f"{part.segment.path} {part.first_skipped}"
            self._skipped += part.skipped
        if time.monotonic() >= self._warn_at:
            self._tell_skipped()

    def _tell_skipped(self) -> None:
        if self._skipped:
            _LOG.warning(
                "%d entries are in no queue, because they are no messages of one: the first is %s",
                self._skipped,
                self._first_skipped,
            )
            self._skipped, self._first_skipped = 0, ""
            self._warn_at = time.monotonic() + _WARNING_SECONDS

    # On disk.

    def flush(self) -> None:
        """Write everything to disk, and then say so in the store checkpoint. From the thread, or without one."""
        if not self._is_dirty:
            return
        self._is_dirty = False
        try:
            self._queues.sync()
            self._index.flush()
            self._write_checkpoint()
        except BaseException:
            self._is_dirty = True
            raise

    def _write_checkpoint(self) -> None:
        is_level = self._index_pos >= self._pos
        self._checkpoint = self._checkpoint._replace(
            physic_msg_timestamp=self._stored,
            logics_msg_timestamp=self._stored,
            index_msg_timestamp=self._stored if is_level else min(self._index_stored, self._stored),
            confirm_phy_offset=self._pos,
        )
        write_store_checkpoint(self._root, self._checkpoint)

    def _clean(self) -> None:
        self._cleaner.run_once()
