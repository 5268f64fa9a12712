"""A store on disk, in the files of the Java DLedger (``DLedgerMmapFileStore`` of 0.3.1.2)."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir
from pyspark_dledger.common.histogram import DISK_LATENCIES, Histogram
from pyspark_dledger.errors import DiskFullError, IndexRangeError, StoreError
from pyspark_dledger.format.codec import encode_blank
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.store.dledger_store import (
    AppendedEntries,
    DLedgerStore,
    Entry,
    EntryRange,
    ScrubProgress,
    StoreMetrics,
)
from pyspark_dledger.store.entry_reader import EntryReader, RecentEntries
from pyspark_dledger.store.files.node_files import (
    StoreLock,
    load_cluster_id,
    load_current_term,
    load_member_state,
    load_members,
    load_restored_term,
    write_cluster_id,
    write_current_term,
    write_members,
)
from pyspark_dledger.store.files.services import CleanSpaceService, FlushDataService
from pyspark_dledger.store.log_files import LogFiles, is_without_room
from pyspark_dledger.store.recovery.load_files import check_version
from pyspark_dledger.store.rules import (
    AppendPosition,
    announce_members,
    check_index,
    check_lengths,
    check_next_entries,
    check_reset,
    check_truncate,
    raised_committed_index,
)
from pyspark_dledger.store.scrub import ScrubbedRange, ScrubService, scrub
from pyspark_dledger.store.store_config import StoreConfig


class MmapFileStore(DLedgerStore):
    """One node's log in ``base_dir/dledger-<self_id>``: data and index files, checkpoint, currterm.

    One thread writes. `flush`, `write_checkpoint` and `delete_expired` may be called from other threads.
    After a failure that leaves the state of the disk unknown, everything except reading raises StoreError.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self._engine = get_engine(config.engine)
        self.read_check = self._engine.find_wrong_body
        self._lock = StoreLock(config.node_dir / "lock")
        self._is_started = self._is_disk_full = False
        self._flushes = Histogram(DISK_LATENCIES)
        self._callback: Callable[[int], None] = lambda _index: None
        self._flush_service: FlushDataService | None = None
        self._scrub_service: ScrubService | None = None
        self._clean_service: CleanSpaceService | None = None
        self._wake: Callable[[], None] | None = None
        self._files = LogFiles(config, self._engine)
        self._begin = self._end_term = self.committed_index = self.flushed_index = -1
        self._next_index = self.end_pos = 0
        self._recent = RecentEntries(0, 0)
        self.curr_term = 0
        self.vote_leader: str | None = None
        self.cluster_id = ""
        self.member_ids: tuple[str, ...] = ()
        self.member_state = ""

    # Starting and stopping

    def startup(self, services: bool = False) -> None:
        """See `DLedgerStore.startup`. With `services` the flush and clean threads run until shutdown."""
        if self._is_started:
            return
        make_dir(self.config.node_dir, PRIVATE_FOLDER)
        self._lock.acquire()
        self._is_disk_full = False
        self._files = LogFiles(self.config, self._engine)
        try:
            self._load()
        except BaseException as error:
            self._files.close()
            self._lock.release()
            if isinstance(error, OSError) and is_without_room(error):
                raise self._files.disk_error(error) from error
            raise
        self._is_started = True
        if services:
            self._start_services()

    def _start_services(self) -> None:
        config = self.config
        interval = None if self._files.is_sync else config.flush_file_interval_ms
        self._flush_service = FlushDataService(
            self, interval, config.check_point_interval_ms, lambda index: self._callback(index)
        )
        self._clean_service = CleanSpaceService(self, config)
        if interval is None:
            self._wake = self._flush_service.wake
        self._flush_service.start()
        self._clean_service.start()

    def on_flushed(self, callback: Callable[[int], None]) -> None:
        """Set a callback for the flush thread. It gets each new flushed index."""
        self._callback = callback

    def _load(self) -> None:
        node_dir, files = self.config.node_dir, self._files
        check_version(node_dir)
        current = load_current_term(node_dir)
        self.cluster_id = load_cluster_id(node_dir)
        self.member_ids, self.member_state = load_members(node_dir), load_member_state(node_dir)
        self.restored_term = load_restored_term(node_dir)
        found = files.recover()
        self._reader = EntryReader(self._engine, files.data, files.index, files.pending)
        self._begin, self._next_index, self._end_term = found.begin_index, found.next_index, found.end_term
        self.end_pos, self.committed_index, self.flushed_index = (
            found.end_pos,
            found.committed_index,
            self.ledger_end_index,
        )
        self._recent = RecentEntries(self._next_index, self.end_pos)
        files.record_start(min(self.committed_index, self.flushed_index), self.flushed_index)
        assert current.curr_term is not None
        self.curr_term, self.vote_leader = current.curr_term, current.vote_leader
        if self._end_term > self.curr_term:
            # The vote of this term was not saved. A vote for itself keeps the node from voting twice.
            self._save_term(self._end_term, self.config.self_id)

    def shutdown(self) -> None:
        if not self._is_started:
            return
        self._wake = None
        for service in (self._scrub_service, self._clean_service, self._flush_service):
            if service is not None:
                service.stop()
        self._clean_service = self._flush_service = self._scrub_service = None
        try:
            with suppress(StoreError):
                self.finish_undo()
            if self.failure is None:
                self.flush()
                self.write_checkpoint()
        finally:
            self._is_started = False
            with self._files.lock:
                self._files.close()
            self._lock.release()

    def _check_started(self) -> None:
        if not self._is_started:
            raise StoreError(f"{self.config.node_dir}: the store is closed")

    def _check_writable(self) -> None:
        self.finish_undo()
        self._files.limit_pending(self.ledger_end_index)
        if self._files.failure is not None or self._is_disk_full or not self._is_started:
            self._check_started()
            self._files.check_failure()
            raise DiskFullError(
                f"{self.config.node_dir}: the disk is more than {self.config.disk_full_ratio:.0%} full: make room"
            )

    # State

    @property
    def failure(self) -> str | None:
        return self._files.failure

    @property
    def is_disk_full(self) -> bool:
        return self._is_disk_full

    def metrics(self) -> StoreMetrics:
        folders = tuple(dict.fromkeys((self.config.node_dir, *self.config.all_data_dirs)))
        # A reset in another thread may remove the files.
        scrub, first = self._scrub_service, next(iter(self._files.data.files), None)
        size = self.end_pos - first.base if first is not None else 0
        progress = ScrubProgress(log_bytes=size)
        if scrub is not None:
            progress = ScrubProgress(scrub.checked_bytes, scrub.pass_bytes, size, scrub.last_pass, scrub.rebuilt_units)
        return StoreMetrics(self._is_disk_full, folders, self._flushes, progress)

    @property
    def ledger_begin_index(self) -> int:
        return self._begin

    @property
    def ledger_end_index(self) -> int:
        return self._next_index - 1 if self._begin >= 0 else -1

    @property
    def ledger_end_term(self) -> int:
        return self._end_term

    def save_term(self, term: int, vote_leader: str | None) -> None:
        self._check_started()
        self._save_term(term, vote_leader)

    def _save_term(self, term: int, vote_leader: str | None) -> None:
        with self._files.store_errors():
            write_current_term(self.config.node_dir, term, vote_leader)
        self.curr_term, self.vote_leader = term, vote_leader

    def save_cluster_id(self, cluster_id: str) -> None:
        self._check_started()
        with self._files.store_errors():
            write_cluster_id(self.config.node_dir, cluster_id)
        self.cluster_id = cluster_id

    def save_member_ids(self, member_ids: tuple[str, ...], state: str = "") -> None:
        self._check_started()
        with self._files.store_errors():
            write_members(self.config.node_dir, member_ids, state)
        self.member_ids, self.member_state = member_ids, state

    @property
    def file_sizes(self) -> tuple[int, int]:
        return self._files.data.file_size, self._files.index.file_size

    # Appending

    def append_as_leader(
        self, bodies: Bodies | Sequence[Buffer], term: int | None = None, control: int = 0
    ) -> AppendedEntries:
        self._check_writable()
        packed = bodies if isinstance(bodies, Bodies) else self._engine.pack_bodies(bodies)
        self._check_sizes(packed)
        term = self.curr_term if term is None else term
        first, files = self._next_index, self._files
        if self._begin < 0:
            self._skip_file_without_room(packed, term)
        try:
            runs, end_pos = files.write_bodies(packed, first, term, self.end_pos, self.append_hook, control)
        except BaseException as error:
            self._undo_append(error)
            raise
        self._appended(packed.count, term, end_pos)
        return AppendedEntries(first, self._next_index - 1, term, runs)

    def _check_sizes(self, packed: Bodies) -> None:
        """Raises ValueError without a body, and for one that fits no data file. The engine checks other limits."""
        if packed.count < 1:
            raise ValueError("expected at least one body, found none")
        size = self._files.data.file_size
        if size < MAX_ENTRY_SIZE + MIN_BLANK_SIZE and len(packed.block) > size - MIN_BLANK_SIZE - ENTRY_HEADER_SIZE:
            lengths = struct.iter_unpack(">I", bytes(packed.block[: 4 * packed.count]))
            check_lengths((length for (length,) in lengths), size)

    def _skip_file_without_room(self, packed: Bodies, term: int) -> None:
        """Begin an empty log with the next file if the first body does not fit at its position.

        A log never begins with a file without entries, which recovery and readers would call damaged. Raises ValueError
        for a malformed block.
        """
        files, size = self._files, self._files.data.file_size
        left = size - self.end_pos % size
        if left == size or self._engine.encode_entries(packed, 0, self._next_index, term, self.end_pos, left).count:
            return
        with files.lock:
            self.end_pos += left
            if files.is_reset:
                files.apply(lambda: files.reset(self._next_index, self.end_pos))
            else:
                files.apply(files.delete_data)

    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        self._check_writable()
        files = self._files
        end = AppendPosition(self._next_index, self.end_pos, self._end_term, self._begin < 0)
        pos, checked = check_next_entries(self._engine, data, leader_term, end, files.data.file_size)
        announce_members(self.members_hook, data, checked)
        try:
            if pos != self.end_pos:
                files.data.write(self.end_pos, encode_blank(pos - self.end_pos))
            files.data.write(pos, data)
            files.write_units(self._next_index, checked.units, files.is_sync and files.looks_torn(data, pos))
        except BaseException as error:
            self._undo_append(error)
            raise
        self._appended(checked.count, checked.last_term, pos + len(data))
        return self._next_index - 1

    def _appended(self, count: int, term: int, end_pos: int) -> None:
        if self._begin < 0:
            self._begin = self._next_index
        self._end_term = term
        self.end_pos = end_pos
        self._next_index += count
        self._recent.appended(self._next_index, end_pos)
        if self._wake is not None:
            self._wake()

    def _undo_append(self, error: BaseException) -> None:
        self._files.failed_append = error
        if not self.is_undo_deferred:
            self.finish_undo()
        if isinstance(error, OSError):
            raise self._files.disk_error(error) from error

    @property
    def needs_undo(self) -> bool:
        return self._files.failed_append is not None

    @property
    def append_may_wait(self) -> bool:
        return self.needs_undo or self._files.append_may_wait

    def finish_undo(self) -> None:
        files = self._files
        if files.failed_append is not None:
            files.undo_append(self._next_index, self.end_pos, files.failed_append)
            files.failed_append = None
            # If entries could not be removed, the outcome is unknown: neither a full disk nor a wrong body explains it.
            files.check_failure()

    # Reading

    def get(self, index: int) -> Entry:
        check_index(index, self._begin, self.ledger_end_index)
        self._warm(index)
        return self._reader.get(index, self.read_check)

    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        end = self.ledger_end_index
        check_index(first_index, self._begin, end)
        try:
            return self._reader.read(first_index, max_bytes, end, self.end_pos, self._recent, self.read_check)
        except IndexRangeError as error:
            if first_index < self._begin:
                raise
            # No file has the position of its index unit.
            raise StoreError(f"the index unit of {first_index} is damaged: {error}") from None

    def is_recent(self, index: int) -> bool:
        return index >= self._recent.first_index or index < self._begin

    def end_of(self, index: int) -> int | None:
        if not self._begin <= index <= self.ledger_end_index or not self.is_recent(index):
            return None
        try:
            found = self._reader.find(index)
        except StoreError:
            return None
        return found.pos + found.size

    def _warm(self, index: int) -> None:
        """Read an entry into memory, in a way that does not stop other threads."""
        if not self.is_recent(index):
            self._reader.load(index, index, 1, self.end_pos)

    def term_at(self, index: int) -> int:
        check_index(index, self._begin, self.ledger_end_index)
        self._warm(index)
        return self._reader.find(index).term

    # Truncating

    def truncate(self, index: int) -> None:
        self._check_writable()
        check_truncate(index, self._begin, self.ledger_end_index, self.committed_index)
        is_all = index == self._begin
        self._warm(index if is_all else index - 1)
        if is_all:
            end_pos, end_term = self._reader.find(index).pos, -1
        else:
            last = self._reader.find(index - 1)
            end_pos, end_term = last.end, last.term
        self.removals += 1
        files = self._files
        with files.lock:
            files.lower_checkpoint(min(self.committed_index, self.flushed_index), index - 1)
            # From here on the entries are gone, even if changing the files fails.
            self.flushed_index = min(self.flushed_index, -1 if is_all else index - 1)
            self._next_index, self.end_pos, self._end_term = index, end_pos, end_term
            self._recent.truncated(index, end_pos)
            if is_all:
                self._begin = -1
            files.apply(lambda: files.truncate(index, end_pos))

    def reset(self, index: int, pos: int) -> None:
        """See `DLedgerStore.reset`. Until the first entry is durable, a restart finds the old log.

        Without it, this member could vote for a leader that lacks entries which this member helped to commit.
        """
        self._check_writable()
        files = self._files
        check_reset(index, pos, files.data.file_size, self.committed_index)
        if self._begin < 0 and (index, pos) == (self._next_index, self.end_pos):
            return  # as of a new follower, whose empty log begins there already
        self.removals += 1
        with files.lock:
            if not files.is_reset:
                # If the old log comes back, its index is gone, and only the checkpoint knows what is complete.
                files.write_checkpoint(min(self.committed_index, self.flushed_index), self.flushed_index)
            self._begin = self._end_term = self.committed_index = self.flushed_index = -1
            self._next_index, self.end_pos = index, pos
            self._recent = RecentEntries(index, pos)
            files.apply(lambda: files.reset(index, pos))

    # Scrubbing

    def start_scrubbing(self, on_damage: Callable[[dict[int, str]], None]) -> None:
        """Start a thread that reads the log until shutdown. It calls `on_damage` with what is wrong, by index."""
        rate = self.config.scrub_bytes_per_second
        if rate:
            self._scrub_service = ScrubService(self._scrub_bounds, self.scrub, on_damage, self.rebuild_unit, rate)
            self._scrub_service.start()

    def scrub(self, first: int, last: int) -> ScrubbedRange:
        """Check some of the committed and durable entries ``[first, last]`` on disk; any thread may call it."""
        return scrub(self._files.data, self._files.index, self._engine, first, last)

    def _scrub_bounds(self) -> tuple[int, int]:
        # A full disk can keep units of durable entries out of the index.
        return self._begin, self._files.pending.last_before(min(self.committed_index, self.flushed_index))

    def rebuild_unit(self, index: int) -> bool:
        """Overwrite a damaged index unit that its entry proves; False if none does. Any thread may call it."""
        with self._files.lock:
            begin, last = self._scrub_bounds()
            return begin <= index <= last and self._reader.rebuild_unit(index, begin, self.ledger_end_index)

    def repair(self, index: int, data: Buffer) -> None:
        self._check_started()
        self._files.check_failure()
        check_index(index, self._begin, self.flushed_index)
        with self._files.store_errors():
            self._reader.repair(index, data, self._begin, self.ledger_end_index)

    # Committing and flushing

    def update_committed_index(self, term: int, index: int) -> None:
        if index > self.committed_index:
            self.committed_index = raised_committed_index(
                self.committed_index, self._begin, self.ledger_end_index, self._end_term, term, index
            )

    def flush(self) -> int:
        files = self._files
        with files.lock:
            files.check_failure()
            end, began = self.ledger_end_index, time.perf_counter()
            # A failed sync may have dropped any data, and a second sync would not report it.
            with files.store_errors("flushing"):
                is_durable = files.sync(end, self.flushed_index)
                self._flushes.observe(time.perf_counter() - began)
                if is_durable:
                    if files.is_reset and end >= 0:
                        files.finish_reset(min(self.committed_index, end), end)
                    self.flushed_index = end
        return self.flushed_index

    def flush_soon(self) -> None:
        if self._flush_service is not None:
            self._flush_service.wake()

    @property
    def needs_flush(self) -> bool:
        """Whether entries were appended since the last flush."""
        return self.flushed_index != self.ledger_end_index

    def write_checkpoint(self) -> None:
        """Write the committed and the flushed index, never more than is durable."""
        files = self._files
        with files.lock:
            if files.is_reset:
                return
            if files.is_sync and files.failure is None:
                files.apply(files.index.sync)
            files.write_checkpoint(min(self.committed_index, self.flushed_index), self.flushed_index)

    # Cleaning

    def set_disk_state(self, is_full: bool, full_dirs: frozenset[Path]) -> None:
        """Set whether full disks reject appends, and the folders in which no more files are created."""
        self._is_disk_full, self._files.full_dirs = is_full, full_dirs

    def delete_expired(self, changed_before: float, force: bool) -> int:
        """Delete the first files whose last change was before a time (seconds since 1970); with `force`, at any time.

        At most ten files, never the last one, and none with an entry that is not both committed and durable, or that
        `expiry_hook` keeps. Returns the number of deleted files.
        """
        with self._files.lock:
            self._check_started()
            limit = min(self.committed_index, self.flushed_index) + 1
            begin, count = self._files.expired(self._begin, changed_before, force, limit, self._next_index)
        if not count:
            return 0
        # The hook may take long, so appends must not wait for it.
        limit = begin if self.expiry_hook is None else self.expiry_hook(begin, force)
        with self._files.lock:
            self._check_started()
            limit = min(limit, self.keeps_from, self.committed_index + 1, self.flushed_index + 1)
            begin, count = self._files.expired(self._begin, changed_before, force, limit, self._next_index)
            if count:
                self._begin = begin
                base = self._files.data.files[count].base
                self._files.apply(lambda: self._files.delete_before(base, begin))
        return count
