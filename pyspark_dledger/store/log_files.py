"""Data files, index files and checkpoint of one store, changed in an order that survives a power loss.

With ``flush="sync"``, data is made durable first. The index unit of an entry stays in memory until the entry's data is
durable, and only then goes to the index file. After a power loss an entry that has its unit is therefore complete. An
entry without a unit is truncated if a sector of its body is all zeros. So an entry that was not acknowledged is there
with its bytes, or not at all. The index is synced from time to time, and before `MmapFileStore.flush` returns only if
an entry has such zeros itself.

Truncation lowers the checkpoint first, then removes index units, then data, each durably: checkpoint and units vouch
for data. File systems must show zeros where nothing was written, allocate whole sectors, and keep the order of file
creations, renames and deletions.

With ``flush="async"``, units are written with their entries and flushed after them. After a power loss, sectors of
entries that were not flushed can be zeros.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir
from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.codec import encode_blank, mark_control, record_struct
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.store.dledger_store import AppendHook, EntryRun
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList
from pyspark_dledger.store.files.node_files import (
    CHECKPOINT,
    Reset,
    boot_id,
    load_boot,
    load_checkpoint,
    load_reset,
    remove_reset,
    write_boot,
    write_checkpoint,
    write_reset,
)
from pyspark_dledger.store.files.pending_units import PendingUnits
from pyspark_dledger.store.recovery.load_files import check_order, finish_reset, load_data_files, load_index_files
from pyspark_dledger.store.recovery.recover import Recovered, Recovery
from pyspark_dledger.store.store_config import StoreConfig

_LOG = logging.getLogger(__name__)
_HEADER = record_struct(ENTRY_HEADER)
_MAX_DELETED = 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# Chunks of this size stay in the CPU cache. Each chunk scans the lengths of the whole block again, so chunks grow with
# the number of bodies to keep the total time linear.
_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_PER_BODY = 8
# Pending units that are written at a time.
_UNITS_AT_ONCE = 1 << 15


class LogFiles:
    """The files of a store from one start to the next stop.

    ``failure`` says why the files must not be written again until a restart. ``lock`` is held while files are synced,
    truncated or deleted; callers change their own end of the log under it.
    """

    def __init__(self, config: StoreConfig, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self.is_sync = config.flush == "sync"
        self.lock = threading.RLock()
        self.failure: str | None = None
        self.full_dirs: frozenset[Path] = frozenset()
        self.is_reset = False
        # Files from before a reset, kept until an entry of the new log is durable.
        self._replaced: list[MappedFile] = []
        self._checkpoint_end = -1
        # The last entry that looks torn, but is not.
        self._last_torn_like = -1
        self._has_room = True
        # The exception of an append that may have left bytes after the log's end.
        self.failed_append: BaseException | None = None
        self.pending = PendingUnits()
        self.data = MappedFileList([], config.data_file_size, self._data_dir, engine.map_file)
        self.index = MappedFileList([], config.index_file_size, self._data_dir, engine.map_file)

    def recover(self) -> Recovered:
        """Load all files and recover the log. Raises StoreError if too much of it is damaged."""
        config, node_dir = self._config, self._config.node_dir
        index_dir = node_dir / "index"
        for folder in (*config.all_data_dirs, index_dir):
            make_dir(folder, PRIVATE_FOLDER)
        data_files, data_size = load_data_files(
            {*config.all_data_dirs, *config.read_only_data_dirs}, config.data_file_size
        )
        index_files, index_size, unusable = load_index_files(index_dir, config.index_file_size)
        boot = load_boot(node_dir)
        # Units and entries are as the last node wrote them. Java writes units before entries are durable.
        is_sync = boot.flush == "sync"
        # Without a checkpoint file nothing is known to be durable, and everything would need a checksum.
        is_rebooted = (node_dir / CHECKPOINT).exists() and boot.id not in ("", boot_id())
        data_files, checkpoint = finish_reset(
            *(node_dir, data_files, index_files, load_checkpoint(node_dir)),
            self._engine,
            needs_checksum=is_rebooted and not is_sync,
        )
        check_order(data_files)
        self.data = MappedFileList(data_files, data_size, self._data_dir, self._engine.map_file)
        self.index = MappedFileList(index_files, index_size, lambda _: index_dir, self._engine.map_file)
        found = Recovery(
            *(node_dir, self.data, self.index, self._engine, checkpoint, config.truncate_at, unusable),
            is_sync=is_sync,
            is_rebooted=is_rebooted,
            is_same_boot=bool(boot.flush) and boot.id == boot_id() != "",
            is_own=bool(boot.flush),
        ).run()
        if found.saved_tail is not None:
            _LOG.warning("truncated the log at index %d; its tail is kept in %s", found.next_index, found.saved_tail)
        self._checkpoint_end = min(-1 if checkpoint.end_index is None else checkpoint.end_index, found.next_index - 1)
        return found

    def close(self) -> None:
        self.data.close()
        self.index.close()

    # Appending

    def write_bodies(
        self, bodies: Bodies, index: int, term: int, pos: int, hook: AppendHook | None, control: int = 0
    ) -> tuple[tuple[EntryRun, ...], int]:
        """Write all bodies as entries from `index` and `pos` on (``MmapFileList.preAppend``). Returns runs and end.

        Each body fits a data file; `hook` is called before each write. Raises ValueError for a malformed block. Raises
        OSError if the disk fails; some entries may be written then.
        """
        first, written, looks_torn = index, 0, False
        runs: list[EntryRun] = []
        units: list[bytearray] = []
        size, chunk = self.data.file_size, max(_CHUNK_BYTES, _CHUNK_BYTES_PER_BODY * bodies.count)
        while written < bodies.count:
            left = size - pos % size
            encoded = self._engine.encode_entries(bodies, written, index, term, pos, min(left, chunk))
            if encoded.count == 0 and left > chunk:
                encoded = self._engine.encode_entries(bodies, written, index, term, pos, left)
            if encoded.count == 0:
                self.data.write(pos, encode_blank(left))
                pos += left
                continue
            if hook is not None:
                hook(encoded.data, encoded.units)
            if control:
                mark_control(encoded.data, control)
            self._engine.write_body_crcs(encoded.data)
            if self.is_sync and not looks_torn:
                looks_torn = self.looks_torn(encoded.data, pos)
            self.data.write(pos, encoded.data)
            if not runs or pos % size == 0:
                runs.append(EntryRun(index, pos))
            units.append(encoded.units)
            index, written, pos = index + encoded.count, written + encoded.count, pos + len(encoded.data)
        self.write_units(first, units[0] if len(units) == 1 else b"".join(units), looks_torn)
        return tuple(runs), pos

    def write_units(self, first: int, units: bytes | bytearray, looks_torn: bool) -> None:
        """Write the units of entries whose data was just written, or keep them until the data is durable."""
        if not self.is_sync:
            self.index.write(first * INDEX_UNIT_SIZE, units)
            return
        if looks_torn:
            self._last_torn_like = first + len(units) // INDEX_UNIT_SIZE - 1
        self.pending.append(first, units)

    def looks_torn(self, data: Buffer, pos: int) -> bool:
        """Whether one of these entries of one file has all-zero sectors, as after a power loss."""
        return self._engine.find_torn(data, pos % self.data.file_size) is not None

    def undo_append(self, next_index: int, end_pos: int, error: BaseException) -> None:
        """Remove what a failed append wrote. If that fails too, the files must not be used again.

        Durably: a power loss could mix its bytes with later ones, or show them in place of later ones.
        """
        try:
            with self.lock:
                self.truncate(next_index, end_pos)
        except OSError as second:
            self.failure = f"an append failed ({error}), and so did undoing it ({second})"

    # Truncating

    def truncate(self, next_index: int, end_pos: int) -> None:
        """End the log before `next_index`, durably."""
        self._last_torn_like = min(self._last_torn_like, next_index - 1)
        self.pending.truncate(next_index)
        self.index.truncate(next_index * INDEX_UNIT_SIZE)
        self.index.sync()
        self.data.truncate(end_pos)
        self.data.sync()

    def delete_data(self) -> None:
        """Delete all data files, durably: the new start of the log may be written to another disk."""
        self.data.delete(self.data.release())
        self.data.sync()

    def reset(self, next_index: int, end_pos: int) -> None:
        """Begin a new log at `end_pos`. The old files stay until `finish_reset`, so a restart can undo the reset."""
        if self.is_reset:
            # A restart may find the old log, and would reject files of an unfinished reset after a gap.
            self.delete_data()
        self.is_reset = True
        self._last_torn_like = -1
        write_reset(self._config.node_dir, Reset(next_index, end_pos))
        self.pending.truncate(0)
        first = end_pos - end_pos % self.data.file_size
        # Old files whose names new files could get are deleted at once.
        old = [*self._replaced, *self.data.release()]
        self.data.delete([file for file in old if file.base >= first])
        self._replaced = [file for file in old if file.base < first]
        for file in self._replaced:
            file.close()
        self.index.delete(self.index.release())
        self.data.sync()
        self.index.sync()

    def finish_reset(self, committed: int, last: int) -> None:
        """Delete the files from before a reset; entries of the new log are durable up to index `last`."""
        replaced, self._replaced = self._replaced, []
        reset = load_reset(self._config.node_dir)
        assert reset is not None
        write_reset(self._config.node_dir, reset._replace(is_durable=True))
        self.data.delete(replaced)
        self.data.sync()
        write_checkpoint(self._config.node_dir, committed, last)
        self._checkpoint_end = last
        remove_reset(self._config.node_dir)
        self.is_reset = False

    def expired(self, begin: int, changed_before: float, force: bool, limit: int, next_index: int) -> tuple[int, int]:
        """Where the log would begin without expired files, at most at index `limit`, and how many these are.

        The log begins at `begin`, and ends before `next_index`: entries of an append that has not ended do not count.
        """
        count = 0
        for file, following in pairwise(self.data.files[: _MAX_DELETED + 1]):
            if not force and file.path.stat().st_mtime > changed_before:
                break
            first = _first_index(following)
            if first is None or first > limit or first >= next_index:
                break
            begin, count = first, count + 1
        return begin, count

    def delete_before(self, base: int, first_index: int) -> None:
        """Delete data files that end at or before `base`, and index files without a unit from `first_index` on."""
        self.data.delete_before(base)
        self.index.delete_before(first_index * INDEX_UNIT_SIZE)

    # Flushing

    def sync(self, end: int, flushed: int) -> bool:
        """Make the entries up to index `end` durable; False if the index needs room that the disk does not have."""
        self.data.sync()
        if not self.is_sync:
            self.index.sync()
            return True
        needs_index = self.is_reset or flushed < 0 or self._last_torn_like > flushed
        try:
            self._write_pending(end)
        except OSError as error:
            if not is_without_room(error):
                raise
            self._set_room(False)
            return not needs_index
        self._set_room(True)
        if needs_index:
            self.index.sync()
        return True

    def _write_pending(self, end: int) -> None:
        """Write the units up to index `end`, whose data is durable."""
        while units := self.pending.first_ones(end, _UNITS_AT_ONCE):
            first, data = units
            self.index.write(first * INDEX_UNIT_SIZE, data)
            self.pending.forget_up_to(first + len(data) // INDEX_UNIT_SIZE - 1)

    @property
    def append_may_wait(self) -> bool:
        """Whether the next append first waits until other files or entries are durable."""
        return self.pending.is_full or self.data.creation_may_wait

    def limit_pending(self, end: int) -> None:
        """If many units are pending, make all entries durable up to index `end`, the log's last, then write the units.

        This limits their memory, also with a slow disk. Raises StoreError.
        """
        if not self.pending.is_full:
            return
        with self.lock:
            with self.store_errors("flushing"):
                self.data.sync()
            with self.store_errors():
                self._write_pending(end)

    def _set_room(self, has_room: bool) -> None:
        if self._has_room and not has_room:
            _LOG.warning("the disk has no room for the index, which stays in memory until there is room")
        self._has_room = has_room

    def write_checkpoint(self, committed: int, end: int) -> None:
        """Replace the checkpoint; if that fails the old one stays. Raises StoreError."""
        with self.store_errors():
            write_checkpoint(self._config.node_dir, committed, end)
        self._checkpoint_end = end

    def lower_checkpoint(self, committed: int, end: int) -> None:
        """Lower the checkpoint before entries after index `end` are removed, because it vouches for them."""
        if self._checkpoint_end > end and not self.is_reset:
            self.write_checkpoint(committed, end)

    def record_start(self, committed: int, end: int) -> None:
        """Write the checkpoint, because recovery made the log durable up to `end`; then machine's run and flush mode.

        After a restart of the machine, entries after the checkpoint may have lost bytes.
        """
        node_dir, flush = self._config.node_dir, self._config.flush
        is_new = load_boot(node_dir) != (boot_id(), flush)
        if is_new or end > self._checkpoint_end:
            self.write_checkpoint(committed, end)
        if is_new:
            self.apply(lambda: write_boot(node_dir, flush))

    # Errors

    def apply(self, change: Callable[[], None]) -> None:
        """Run a change that cannot be undone. Raises StoreError."""
        with self.store_errors("changing files"):
            change()

    @contextmanager
    def store_errors(self, cannot_fail: str = "") -> Iterator[None]:
        """Raise StoreError for an error of the system. After one in `cannot_fail` the files must not be used again."""
        try:
            yield
        except OSError as error:
            if cannot_fail:
                self.failure = f"{cannot_fail} failed ({error})"
            raise self.disk_error(error) from error

    def disk_error(self, error: OSError) -> StoreError:
        """The exception for a failed write."""
        if is_without_room(error):
            return DiskFullError(f"{self._config.node_dir}: the disk is full ({error.strerror}): make room")
        return StoreError(f"{self._config.node_dir}: a write failed ({error}): check the disk")

    def check_failure(self) -> None:
        if self.failure is not None:
            raise StoreError(f"{self._config.node_dir}: the store has failed ({self.failure}): restart it")

    def _data_dir(self, base: int) -> Path:
        """The folder of a new data file: those that are not full take turns (``MultiPathMmapFileList``)."""
        writable = {str(path) for path in self._config.all_data_dirs} - {
            str(path) for path in self._config.read_only_data_dirs
        }
        candidates = writable - {str(path) for path in self.full_dirs} or writable
        if not candidates:
            raise StoreError(f"{self._config.node_dir}: all folders of data files are read-only: add a writable one")
        return Path(sorted(candidates)[base // self.data.file_size % len(candidates)])


def is_without_room(error: OSError) -> bool:
    """Whether a write failed because the disk is full."""
    return error.errno in _NO_ROOM


def _first_index(file: MappedFile) -> int | None:
    """The index of the entry at the start of a file; None if there is none."""
    data = read_at(str(file.path), 0, ENTRY_HEADER_SIZE)
    if len(data) < ENTRY_HEADER_SIZE:
        return None
    header = _HEADER.unpack(data)
    return int(header[2]) if header[4] == file.base and header[1] else None
