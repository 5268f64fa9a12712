"""A store on disk, in the files of the Java DLedger (``DLedgerMmapFileStore`` of 0.3.1.2).

What is durable, in which order. `flush` makes data files durable, then says so. With ``flush="sync"`` an entry's index
unit waits in memory until its data is durable, and reaches the index file only then. So that after a loss of power,
whichever sectors it took, an entry with its unit is whole, and one without was not written as a whole if a sector of
its body holds nothing but zeros, and is cut: what was not acknowledged is there with its bytes, or not at all. The
index itself is made durable from time to time, and before `flush` returns only where an entry holds such zeros by
itself. Whatever is cut loses its place in the checkpoint first, then its units, then its data, each durably: units and
checkpoint vouch for data. This relies on file systems that show zeros where nothing was written, give out room in whole
sectors, and keep the order in which files are created, renamed and deleted. With ``flush="async"`` units are written
with their entries, and flushed behind them: after a loss of power, sectors of entries that were not flushed yet can be
zeros.
"""

from __future__ import annotations

import errno
import logging
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.codec import encode_blank, record_struct
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.store.dledger_store import AppendedEntries, DLedgerStore, Entry, EntryRange
from pyspark_dledger.store.entry_reader import EntryReader
from pyspark_dledger.store.entry_writer import write_bodies
from pyspark_dledger.store.files.clean_space import CleanSpaceService
from pyspark_dledger.store.files.flush import FlushDataService
from pyspark_dledger.store.files.lock import StoreLock
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList, make_dir
from pyspark_dledger.store.files.node_files import (
    Reset,
    load_checkpoint,
    load_current_term,
    remove_reset,
    write_checkpoint,
    write_current_term,
    write_reset,
)
from pyspark_dledger.store.recovery.load_files import (
    check_order,
    check_version,
    finish_reset,
    load_data_files,
    load_index_files,
)
from pyspark_dledger.store.recovery.recover import Recovery
from pyspark_dledger.store.rules import (
    End,
    check_cut,
    check_following,
    check_held,
    check_lengths,
    check_reset,
    risen_commit,
)
from pyspark_dledger.store.store_config import StoreConfig
from pyspark_dledger.store.waiting_units import WaitingUnits

_LOG = logging.getLogger(__name__)
_HEADER = record_struct(ENTRY_HEADER)
_MOST_DELETED = 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class _Appending:
    """The part of an append that writes: where it fails, nothing of it stays."""

    def __init__(self, store: MmapFileStore) -> None:
        self._store = store

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._store.take_back(error)
            if isinstance(error, OSError):
                raise self._store.disk_error(error) from error


class MmapFileStore(DLedgerStore):
    """One node's log in ``base_dir/dledger-<self_id>``: data and index files, checkpoint, currterm.

    One thread writes and reads. `flush`, `write_checkpoint` and `delete_expired` may be called from others. Appends are
    readable at once and durable with the next flush. After a failure that leaves unknown what is on disk, everything
    but reading raises StoreError.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self._engine = get_engine(config.engine)
        self._lock = StoreLock(config.node_dir / "lock")
        # Held while files are synced, cut or deleted.
        self._sync_lock = threading.RLock()
        self._is_started = False
        self._is_strict = config.flush == "sync"
        self._forget_failures()
        self._appending = _Appending(self)
        self._callback: Callable[[int], None] = _ignore
        self._flush_service: FlushDataService | None = None
        self._clean_service: CleanSpaceService | None = None
        self._wake: Callable[[], None] | None = None
        self._set_files(
            MappedFileList([], config.data_file_size, self._data_dir),
            MappedFileList([], config.index_file_size, self._data_dir),
        )
        self._begin = self._end_term = self._committed = self._flushed = -1
        self._check_pointed = -1  # the end index that the checkpoint names
        self._next_index = self._end_pos = 0
        self._own_from = 0  # from this position on, this process wrote what there is
        self._term = 0
        self._vote_leader: str | None = None

    def _forget_failures(self) -> None:
        self._failure: str | None = None
        self._is_reset = False
        self._replaced: list[MappedFile] = []
        self._full_dirs: frozenset[Path] = frozenset()
        self._is_disk_full = False
        # Up to where entries were appended that a loss of power could have torn, as far as their bytes tell.
        self._doubtful = -1
        self._has_room = True

    def _set_files(self, data: MappedFileList, index: MappedFileList) -> None:
        self._data, self._index = data, index
        self._waiting = WaitingUnits()
        self._reader = EntryReader(self._engine, data, index, self._waiting)

    # Starting and stopping.

    def startup(self, services: bool = False) -> None:
        """See `DLedgerStore.startup`. With `services` the flush and clean threads run until shutdown."""
        if self._is_started:
            return
        make_dir(self.config.node_dir)
        self._lock.acquire()
        self._forget_failures()
        try:
            self._load()
        except BaseException:
            self._data.close()
            self._index.close()
            self._lock.release()
            raise
        self._is_started = True
        if services:
            self._start_services()

    def _start_services(self) -> None:
        config = self.config
        interval = None if self._is_strict else config.flush_file_interval_ms
        self._flush_service = FlushDataService(
            self, interval, config.check_point_interval_ms, lambda index: self._callback(index)
        )
        self._clean_service = CleanSpaceService(self, config)
        if interval is None:
            self._wake = self._flush_service.wake
        self._flush_service.start()
        self._clean_service.start()

    def on_flushed(self, callback: Callable[[int], None]) -> None:
        """Have the flush thread call this with the flushed index, whenever that has moved."""
        self._callback = callback

    def _load(self) -> None:
        config, node_dir = self.config, self.config.node_dir
        check_version(node_dir)
        for folder in (*config.all_data_dirs, node_dir / "index"):
            make_dir(folder)
        data_files, data_size = load_data_files(
            {*config.all_data_dirs, *config.read_only_data_dirs}, config.data_file_size
        )
        index_files, index_size, useless = load_index_files(node_dir / "index", config.index_file_size)
        checkpoint, current = load_checkpoint(node_dir), load_current_term(node_dir)
        data_files, checkpoint = finish_reset(node_dir, data_files, index_files, checkpoint)
        check_order(data_files)
        self._set_files(
            MappedFileList(data_files, data_size, self._data_dir),
            MappedFileList(index_files, index_size, lambda _: node_dir / "index"),
        )
        found = Recovery(node_dir, self._data, self._index, self._engine, checkpoint, config.truncate_at, useless).run()
        if found.cut is not None:
            _LOG.warning("cut what stood from index %d on; it is kept in %s", found.next_index, found.cut)
        self._begin, self._next_index, self._end_term = found.begin_index, found.next_index, found.end_term
        self._end_pos, self._committed, self._flushed = found.end_pos, found.committed_index, self.ledger_end_index
        self._own_from = self._end_pos
        assert current.curr_term is not None
        self._term, self._vote_leader = current.curr_term, current.vote_leader
        if self._end_term > self._term:
            # For whom this node voted in a term that was not saved is lost, so it votes for nobody else.
            self.save_term_now(self._end_term, config.self_id)
        self._check_pointed = min(-1 if checkpoint.end_index is None else checkpoint.end_index, self._next_index - 1)

    def shutdown(self) -> None:
        if not self._is_started:
            return
        self._wake = None
        for service in (self._clean_service, self._flush_service):
            if service is not None:
                service.stop()
        self._clean_service = self._flush_service = None
        try:
            if self._failure is None:
                self.flush()
                self.write_checkpoint()
        finally:
            self._is_started = False
            with self._sync_lock:
                self._data.close()
                self._index.close()
            self._lock.release()

    # Where the log stands.

    @property
    def ledger_begin_index(self) -> int:
        return self._begin

    @property
    def ledger_end_index(self) -> int:
        return self._next_index - 1 if self._begin >= 0 else -1

    @property
    def ledger_end_term(self) -> int:
        return self._end_term

    @property
    def committed_index(self) -> int:
        return self._committed

    @property
    def flushed_index(self) -> int:
        return self._flushed

    @property
    def end_pos(self) -> int:
        return self._end_pos

    @property
    def failure(self) -> str | None:
        return self._failure

    @property
    def curr_term(self) -> int:
        return self._term

    @property
    def vote_leader(self) -> str | None:
        return self._vote_leader

    def save_term(self, term: int, vote_leader: str | None) -> None:
        self._check_started()
        self.save_term_now(term, vote_leader)

    def save_term_now(self, term: int, vote_leader: str | None) -> None:
        try:
            write_current_term(self.config.node_dir, term, vote_leader)
        except OSError as error:
            raise self.disk_error(error) from error
        self._term, self._vote_leader = term, vote_leader

    # Appending.

    def append_as_leader(self, bodies: Bodies | Sequence[Buffer], term: int | None = None) -> AppendedEntries:
        self._check_writable()
        packed = bodies if isinstance(bodies, Bodies) else self._engine.pack_bodies(bodies)
        self._check_sizes(packed)
        term = self._term if term is None else term
        first = self._next_index
        if self._begin < 0:
            self._begin_where_it_fits(packed, term)
        with self._appending:
            wrote = write_bodies(
                self._engine, self._data, packed, first, term, self._end_pos, self.append_hook, self._is_strict
            )
            self._write_units(wrote.units, wrote.is_doubtful)
        self._appended(packed.count, term, wrote.end_pos)
        return AppendedEntries(first, self._next_index - 1, term, wrote.runs)

    def _check_sizes(self, packed: Bodies) -> None:
        """Raises ValueError for no body, and for one that fits no data file; encoding refuses what no store takes."""
        if packed.count < 1:
            raise ValueError("expected at least one body, found none")
        size = self._data.file_size
        if size < MAX_ENTRY_SIZE + MIN_BLANK_SIZE and len(packed.block) > size - MIN_BLANK_SIZE - ENTRY_HEADER_SIZE:
            lengths = struct.iter_unpack(">I", bytes(packed.block[: 4 * packed.count]))
            check_lengths((length for (length,) in lengths), size)

    def _begin_where_it_fits(self, packed: Bodies, term: int) -> None:
        """Let an empty log that would begin inside of a file begin with the next one, where the first body needs that.

        A file without an entry is none that a log begins with: recovery and readers take it for damage. Raises
        ValueError for a block that is none.
        """
        size = self._data.file_size
        left = size - self._end_pos % size
        if left == size or self._engine.encode_entries(packed, 0, self._next_index, term, self._end_pos, left).count:
            return
        with self._sync_lock:
            self._end_pos += left
            self._on_disk(self._replace_files if self._is_reset else self._delete_data)

    def _delete_data(self) -> None:
        """Delete all data files, durably: where the log begins then may be noted on another disk."""
        self._data.delete(self._data.release())
        self._data.sync()

    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        self._check_writable()
        end = End(self._next_index, self._end_pos, self._end_term, self._begin < 0)
        pos, checked = check_following(self._engine, data, leader_term, end, self._data.file_size)
        with self._appending:
            if pos != self._end_pos:
                self._data.write(self._end_pos, encode_blank(pos - self._end_pos))
            self._data.write(pos, data)
            self._write_units(checked.units, self._is_strict and self._is_like_torn(data, pos))
        self._appended(checked.count, checked.last_term, pos + len(data))
        return self._next_index - 1

    def _is_like_torn(self, data: Buffer, pos: int) -> bool:
        """Whether one of these entries, which are of one file, holds sectors of zeros by itself."""
        return self._engine.find_torn(data, pos % self._data.file_size) is not None

    def _write_units(self, units: bytes | bytearray, is_doubtful: bool) -> None:
        """Write the units of entries whose data was just written, or keep them until that is durable."""
        if not self._is_strict:
            self._index.write(self._next_index * INDEX_UNIT_SIZE, units)
            return
        if is_doubtful:
            self._doubtful = self._next_index + len(units) // INDEX_UNIT_SIZE - 1
        self._waiting.append(self._next_index, units)

    def _appended(self, count: int, term: int, end_pos: int) -> None:
        if self._begin < 0:
            self._begin = self._next_index
        self._end_term = term
        self._end_pos = end_pos
        self._next_index += count
        if self._wake is not None:
            self._wake()

    def take_back(self, error: BaseException) -> None:
        """Take back what a failed append wrote. Where that fails as well, the store is not to be used any more."""
        try:
            with self._sync_lock:
                self._data.cut(self._end_pos)
                if self._is_strict:
                    self._waiting.cut(self._next_index)
                    self._data.sync()  # or a loss of power could mix what failed with what is written there next
                elif self._index.files:
                    self._index.cut(self._next_index * INDEX_UNIT_SIZE)
        except OSError as second:
            self._failure = f"an append failed ({error}), and taking it back as well ({second})"

    def disk_error(self, error: OSError) -> StoreError:
        """What to raise for an error of the system while writing."""
        if error.errno in _NO_ROOM:
            return DiskFullError(
                f"{self.config.node_dir}: expected room for what was appended, found none ({error.strerror}): make room"
            )
        return StoreError(f"{self.config.node_dir}: expected to write, found {error}: check the disk")

    # Reading.

    def get(self, index: int) -> Entry:
        check_held(index, self._begin, self.ledger_end_index)
        return self._reader.get(index)

    def read(self, first_index: int, max_bytes: int) -> EntryRange:
        end = self.ledger_end_index
        check_held(first_index, self._begin, end)
        return self._reader.read(first_index, max_bytes, end, self._end_pos, self._own_from)

    def term_at(self, index: int) -> int:
        check_held(index, self._begin, self.ledger_end_index)
        return self._reader.locate(index).term

    # Cutting.

    def truncate(self, index: int) -> None:
        self._check_writable()
        check_cut(index, self._begin, self.ledger_end_index, self._committed)
        is_all = index == self._begin
        if is_all:
            end_pos, end_term = self._reader.locate(index).pos, -1
        else:
            last = self._reader.locate(index - 1)
            end_pos, end_term = last.end, last.term
        with self._sync_lock:
            if self._check_pointed >= index and not self._is_reset:
                self._note_checkpoint(min(self._committed, self._flushed), index - 1)
            # What follows is gone from here on, whether or not the disk follows.
            self._flushed = min(self._flushed, -1 if is_all else index - 1)
            self._next_index, self._end_pos, self._end_term = index, end_pos, end_term
            if is_all:
                self._begin = -1
            self._on_disk(self._cut_files)

    def _cut_files(self) -> None:
        self._doubtful = min(self._doubtful, self._next_index - 1)
        self._waiting.cut(self._next_index)
        self._index.cut(self._next_index * INDEX_UNIT_SIZE)
        self._index.sync()
        self._data.cut(self._end_pos)
        self._data.sync()

    def reset(self, index: int, pos: int) -> None:
        """See `DLedgerStore.reset`. Until the first entry is durable a restart finds the old log instead.

        A member that lost its log in between could elect a leader that lacks what it had helped to commit.
        """
        self._check_writable()
        check_reset(index, pos, self._data.file_size, self._committed)
        with self._sync_lock:
            if not self._is_reset:
                # Should the old log come back, then without the index that tells what of it is whole.
                self._note_checkpoint(min(self._committed, self._flushed), self._flushed)
            self._begin = self._end_term = self._committed = self._flushed = self._doubtful = -1
            self._next_index, self._end_pos = index, pos
            self._on_disk(self._replace_files)

    def _replace_files(self) -> None:
        if self._is_reset:
            # A restart may find the old log, and would refuse files of an unfinished reset behind a gap.
            self._delete_data()
        self._is_reset = True
        write_reset(self.config.node_dir, Reset(self._next_index, self._end_pos))
        self._waiting.cut(0)
        first = self._end_pos - self._end_pos % self._data.file_size
        # With those from before all resets, whose names must not be taken for those of new files.
        old = [*self._replaced, *self._data.release()]
        self._data.delete([file for file in old if file.base >= first])
        self._replaced = [file for file in old if file.base < first]
        for file in self._replaced:
            file.close()
        self._index.delete(self._index.release())
        self._data.sync()
        self._index.sync()

    def _forget_replaced(self, last: int) -> None:
        """Delete the files from before a reset, once entries behind it are durable, up to index `last`."""
        replaced, self._replaced = self._replaced, []
        self._data.delete(replaced)
        self._data.sync()
        write_checkpoint(self.config.node_dir, min(self._committed, last), last)
        self._check_pointed = last
        remove_reset(self.config.node_dir)
        self._is_reset = False

    def _on_disk(self, change: Callable[[], None]) -> None:
        """Run a change that cannot be taken back. Where it fails, the store is not to be used any more."""
        try:
            change()
        except OSError as error:
            self._failure = f"changing files failed ({error})"
            raise self.disk_error(error) from error

    # Committing and flushing.

    def update_committed_index(self, term: int, index: int) -> None:
        if index > self._committed:
            self._committed = risen_commit(
                self._committed, self._begin, self.ledger_end_index, self._end_term, term, index
            )

    def update_ledger_end_index_and_term(self) -> None:
        if self._begin >= 0:
            last = self._reader.locate(self.ledger_end_index)
            self._end_pos, self._end_term = last.end, last.term

    def flush(self) -> int:
        with self._sync_lock:
            self._check_failure()
            end = self.ledger_end_index
            try:
                if self._sync_files(end):
                    if self._is_reset and end >= 0:
                        self._forget_replaced(end)
                    self._flushed = end
            except OSError as error:
                # What the system dropped after a failed sync is unknown, and a second one would not tell.
                self._failure = f"flushing failed ({error})"
                raise self.disk_error(error) from error
        return self._flushed

    def _sync_files(self, end: int) -> bool:
        """Make the entries up to index `end` durable; False where the index has no room for what that takes."""
        self._data.sync()
        if not self._is_strict:
            self._index.sync()
            return True
        is_needed = self._is_reset or self._flushed < 0 or self._doubtful > self._flushed
        try:
            self._write_waiting(end)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._note_room(False)
            return not is_needed
        self._note_room(True)
        if is_needed:
            self._index.sync()
        return True

    def _write_waiting(self, end: int) -> None:
        first, units = self._waiting.up_to(end)
        if units:
            self._index.write(first * INDEX_UNIT_SIZE, units)
            self._waiting.forget_up_to(end)

    def _note_room(self, has_room: bool) -> None:
        if self._has_room and not has_room:
            _LOG.warning("the disk has no room for the index, which waits in memory until there is")
        self._has_room = has_room

    @property
    def needs_flush(self) -> bool:
        """Whether anything was appended since the last flush."""
        return self._flushed != self.ledger_end_index

    def write_checkpoint(self) -> None:
        """Note the committed and the flushed index, never more than is durable."""
        with self._sync_lock:
            if self._is_reset:
                return
            if self._is_strict and self._failure is None:
                self._on_disk(self._index.sync)
            self._note_checkpoint(min(self._committed, self._flushed), self._flushed)

    def _note_checkpoint(self, committed: int, end: int) -> None:
        """Replace the checkpoint; where that fails the old one stays."""
        try:
            write_checkpoint(self.config.node_dir, committed, end)
        except OSError as error:
            raise self.disk_error(error) from error
        self._check_pointed = end

    # Cleaning.

    def set_disk_state(self, is_full: bool, full_dirs: frozenset[Path]) -> None:
        """Whether appends are refused because of full disks, and in which folders no more files are created."""
        self._is_disk_full, self._full_dirs = is_full, full_dirs

    def delete_expired(self, changed_before: float, force: bool) -> int:
        """Delete the first files while they were last changed before a time in seconds since 1970, or all with `force`.

        At most ten at once, never the last, and none with an entry that is not committed and durable. How many.
        """
        with self._sync_lock:
            self._check_started()
            files = self._data.files
            begin, count = self._begin, 0
            for file, following in pairwise(files[: _MOST_DELETED + 1]):
                if not force and file.path.stat().st_mtime > changed_before:
                    break
                first = self._first_index(following)
                if first is None or first - 1 > min(self._committed, self._flushed):
                    break
                begin, count = first, count + 1
            if count:
                self._begin = begin
                self._on_disk(lambda: self._drop_files(files[count].base))
        return count

    def _first_index(self, file: MappedFile) -> int | None:
        """The index of the entry that a file begins with; None where none can be read."""
        data = read_at(str(file.path), 0, ENTRY_HEADER_SIZE)
        if len(data) < ENTRY_HEADER_SIZE:
            return None
        header = _HEADER.unpack(data)
        return int(header[2]) if header[4] == file.base and header[1] else None

    def _drop_files(self, base: int) -> None:
        self._data.drop_before(base)
        self._index.drop_before(self._begin * INDEX_UNIT_SIZE)

    # Files.

    def _data_dir(self, base: int) -> Path:
        """The folder of a new data file: in turn those that are not full (``MultiPathMmapFileList``)."""
        writable = {str(path) for path in self.config.all_data_dirs} - {
            str(path) for path in self.config.read_only_data_dirs
        }
        free = writable - {str(path) for path in self._full_dirs} or writable
        if not free:
            raise StoreError("expected a folder in which data files can be created, found read-only ones only")
        return Path(sorted(free)[base // self._data.file_size % len(free)])

    def _check_started(self) -> None:
        if not self._is_started:
            raise StoreError(f"{self.config.node_dir}: expected a store that was started, found it closed")

    def _check_writable(self) -> None:
        if self._failure is not None or self._is_disk_full or not self._is_started:
            self._check_started()
            self._check_failure()
            raise DiskFullError(
                f"{self.config.node_dir}: expected a disk that is at most {self.config.disk_full_ratio:.0%} full, "
                "found it fuller: make room"
            )

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise StoreError(f"{self.config.node_dir}: expected a store that works, found {self._failure}: restart it")


def _ignore(index: int) -> None:
    """Nobody asked to be told what was flushed."""
