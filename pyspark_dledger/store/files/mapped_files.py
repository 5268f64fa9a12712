"""The data or index files of a log: of one size, named by their first position, mapped to read (``MmapFileList``).

Writes use ``pwrite``, never a mapping: a full disk is then an error instead of a signal. Only the last files stay open
for writing.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, make_dir, open_own, sync_dir, write_at
from pyspark_dledger.errors import IndexRangeError, StoreError, UnreadableError
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import segment_name
from pyspark_dledger.format.scan.segment_file import FileBytes
from pyspark_dledger.log.io.files import data_extents

_ZEROS = bytes(1 << 20)
_MAX_MAPPED = 64
# Blocks are allocated ahead, in growing steps: writing into allocated blocks is several times faster.
_MIN_AHEAD, _MAX_AHEAD = 64 * 1024, 64 * 1024 * 1024
_allocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", lambda *_: None)
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class MappedFile:
    """One file with the positions ``[base, base + size)``."""

    __slots__ = ("_ahead", "_allocated", "_descriptor", "base", "bytes", "is_dirty", "path", "size")

    def __init__(self, path: Path, base: int, size: int) -> None:
        self.path = path
        self.base = base
        self.size = size
        self.is_dirty = False
        self.bytes: FileBytes | None = None
        self._descriptor = -1
        self._allocated = 0
        self._ahead = _MIN_AHEAD

    @property
    def end(self) -> int:
        return self.base + self.size

    def create(self) -> None:
        """Create the file, sparse and of full size; an existing one is emptied."""
        self._descriptor = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.ftruncate(self._descriptor, self.size)
        self.is_dirty = True

    def write(self, pos: int, data: Buffer) -> None:
        """Write at a position of the log; the data ends within the file."""
        descriptor, offset = self._opened(), pos - self.base
        if offset + len(data) > self._allocated:
            self._allocate(descriptor, offset, offset + len(data))
        written = os.pwrite(descriptor, data, offset)
        if written < len(data):
            self._write_rest(memoryview(data)[written:], offset + written)
        self.is_dirty = True

    def _allocate(self, descriptor: int, start: int, end: int) -> None:
        """Allocate blocks for the next writes. Errors are ignored: the write itself reports them."""
        start = max(start, self._allocated)
        self._allocated = min(end + self._ahead, self.size)
        self._ahead = min(2 * self._ahead, _MAX_AHEAD)
        with suppress(OSError):
            _allocate(descriptor, start, self._allocated - start)

    def _write_rest(self, data: memoryview, offset: int) -> None:
        self.is_dirty = True
        write_at(self._opened(), data, offset)

    def zero(self, start: int, end: int) -> None:
        """Overwrite the positions ``[start, end)`` with zeros, from the front on; holes stay holes."""
        descriptor = self._opened()
        for low, high in list(data_extents(descriptor, start - self.base, end - self.base)):
            for offset in range(low, high, len(_ZEROS)):
                size = min(len(_ZEROS), high - offset)
                if os.pread(descriptor, size, offset).strip(b"\0"):
                    self._write_rest(memoryview(_ZEROS)[:size], offset)

    def sync(self) -> None:
        """Make all writes durable."""
        if self.is_dirty:
            self.is_dirty = False
            try:
                _sync_data(self._opened())
            except BaseException:
                self.is_dirty = True
                raise

    def close(self) -> None:
        """Close the descriptor; mappings stay valid."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor < 0:
            self._descriptor = open_own(self.path, os.O_RDWR)
        return self._descriptor


class MappedFileList:
    """The data or index files in order, without gaps. `choose_dir` returns the folder of a new file, by its base.

    `map_file` is that of an engine.
    One thread writes. Others may sync, and delete the first files: `files` is replaced, never shortened in place.
    """

    def __init__(
        self,
        files: Sequence[MappedFile],
        file_size: int,
        choose_dir: Callable[[int], Path],
        map_file: Callable[[str], FileBytes],
    ) -> None:
        self.files = list(files)
        self.file_size = file_size
        self._choose_dir = choose_dir
        self._map_file = map_file
        self._list_lock = threading.Lock()
        self._changed_dirs: set[Path] = set()
        self._mapped: deque[MappedFile] = deque()

    def read(self, file: MappedFile, start: int, stop: int) -> memoryview:
        """The positions ``[start, stop)`` of a file. They stay valid while they are referenced.

        Raises IndexRangeError if the file has expired, UnreadableError if the disk cannot read it.
        """
        try:
            return (file.bytes or self._map(file)).read(start - file.base, stop - file.base)
        except (OSError, StoreError) as error:
            if not file.path.exists():
                raise IndexRangeError(f"{file.path}: the file has expired") from None
            raise UnreadableError(str(file.path), str(error), start - file.base) from error

    def peek(self, file: MappedFile, start: int, stop: int) -> memoryview:
        """As `read`, but faster: bytes that cannot be read may be zeros."""
        if file.bytes is not None:
            with suppress(OSError):
                return file.bytes.peek(start - file.base, stop - file.base)
        return self.read(file, start, stop)

    def _map(self, file: MappedFile) -> FileBytes:
        """Map a file. At most 64 files stay mapped, because each mapping keeps a descriptor."""
        self._mapped.append(file)
        if len(self._mapped) > _MAX_MAPPED:
            self._mapped.popleft().bytes = None
        mapped = file.bytes = self._map_file(str(file.path))
        return mapped

    def find(self, pos: int) -> MappedFile | None:
        """The file that contains a position."""
        files = self.files
        if not files:
            return None
        number = (pos - files[0].base) // self.file_size
        return files[number] if 0 <= number < len(files) else None

    def at(self, pos: int) -> MappedFile:
        """The file that contains a position; the next file, or the first one, is created."""
        file = self.find(pos)
        if file is not None:
            return file
        assert not self.files or 0 <= pos - self.files[-1].end < self.file_size, f"{pos} is not in the next file"
        return self._create(pos - pos % self.file_size)

    def write(self, pos: int, data: Buffer) -> None:
        """Write at a position of the log, over as many files as needed."""
        file = self.at(pos)
        if pos + len(data) <= file.end:
            file.write(pos, data)
            return
        rest = memoryview(data)
        while rest:
            file = self.at(pos)
            part = rest[: file.end - pos]
            file.write(pos, part)
            rest, pos = rest[len(part) :], pos + len(part)

    @property
    def creation_may_wait(self) -> bool:
        """Whether the next file can be created only after changes in another folder are durable."""
        if not self._changed_dirs or not self.files:
            return False
        with suppress(StoreError):  # the append raises it
            return self._changed_dirs != {self._choose_dir(self.files[-1].end)}
        return False

    def _create(self, base: int) -> MappedFile:
        folder = self._choose_dir(base)
        make_dir(folder, PRIVATE_FOLDER)
        self._sync_other_dirs(folder)
        file = MappedFile(folder / segment_name(base), base, self.file_size)
        try:
            file.create()
        except OSError:
            file.close()
            file.path.unlink(missing_ok=True)
            raise
        # After the creation: a sync in another thread would forget the folder before the file is in it.
        self._changed_dirs.add(folder)
        with self._list_lock:
            self.files.append(file)
        return file

    def truncate(self, pos: int) -> None:
        """End the log at `pos`: later files are deleted, later bytes of this file become zeros.

        The file that contains `pos` stays, even if it begins there.
        """
        with self._list_lock:
            kept = [file for file in self.files if file.base <= pos]
            removed = self.files[len(kept) :]
            self.files = kept
        self.delete(removed)
        if kept and pos < kept[-1].end:
            kept[-1].zero(pos, kept[-1].end)

    def delete_before(self, pos: int) -> None:
        """Delete the files that end at or before `pos`, from the first on."""
        with self._list_lock:
            removed = [file for file in self.files if file.end <= pos]
            self.files = self.files[len(removed) :]
        self._delete_in_order(removed)

    def release(self) -> list[MappedFile]:
        """Empty the list and return its files, which stay on disk."""
        with self._list_lock:
            released, self.files = self.files, []
        return released

    def delete(self, files: Sequence[MappedFile]) -> None:
        """Delete files that were released or removed from the list, from the last on."""
        self._delete_in_order(files[::-1])

    def _delete_in_order(self, files: Sequence[MappedFile]) -> None:
        for file in files:
            self._sync_other_dirs(file.path.parent)
            file.path.unlink(missing_ok=True)
            file.close()
            file.bytes = None  # the system frees the blocks when nothing refers to them
            self._changed_dirs.add(file.path.parent)

    def _sync_other_dirs(self, folder: Path) -> None:
        """Sync earlier changes in other folders, which may be on other disks: a power loss must not leave a gap."""
        for other in tuple(self._changed_dirs):
            if other != folder:
                sync_dir(other)

    def sync(self) -> None:
        """Make all writes, creations and deletions durable; only the last file stays open.

        Other files can be closed while a thread writes: it writes to them again only after a truncation, which never
        runs at the same time.
        """
        files = list(self.files)
        for file in files:
            if file.is_dirty:
                file.sync()
        while self._changed_dirs:
            sync_dir(self._changed_dirs.pop())
        for file in files[:-1]:
            if not file.is_dirty:
                file.close()

    def close(self) -> None:
        for file in self.files:
            file.close()
