"""The files of a log's data or index: fixed size, named by where they begin, read through mappings (``MmapFileList``).

Writing is ``pwrite``, never through a mapping: a full disk is then an error and no signal. Only the last files are kept
open for writing.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import SEGMENT_NAME_DIGITS
from pyspark_dledger.log.io.files import data_extents

_ZEROS = bytes(1 << 20)
_MOST_MAPPED = 64
# Blocks are allocated ahead of what is written, first little, then more and more: the system writes into them several
# times faster.
_LEAST_AHEAD, _MOST_AHEAD = 64 * 1024, 64 * 1024 * 1024
_allocate: Callable[[int, int, int], None] = getattr(os, "posix_fallocate", lambda *_: None)
_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class MappedFile:
    """One file, ``[base, base + size)`` of the log's positions."""

    __slots__ = ("_ahead", "_allocated", "_descriptor", "base", "is_dirty", "path", "size", "view")

    def __init__(self, path: Path, base: int, size: int) -> None:
        self.path = path
        self.base = base
        self.size = size
        self.is_dirty = False
        self.view: memoryview | None = None
        self._descriptor = -1
        self._allocated = 0
        self._ahead = _LEAST_AHEAD

    @property
    def end(self) -> int:
        return self.base + self.size

    def map(self) -> memoryview:
        """Map the whole file read-only. The view stays valid while it is referred to, even once the file is deleted."""
        # Not the descriptor for writing, which another thread may close meanwhile.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            view = self.view = memoryview(mmap.mmap(descriptor, self.size, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)
        return view

    def create(self) -> None:
        """Create the file, sparse and of full size; one that is there already is emptied."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o644)
        os.ftruncate(self._descriptor, self.size)
        self.is_dirty = True

    def write(self, pos: int, data: Buffer) -> None:
        """Write at a position of the log; the data lies within the file."""
        descriptor, offset = self._opened(), pos - self.base
        if offset + len(data) > self._allocated:
            self._allocate(descriptor, offset, offset + len(data))
        wrote = os.pwrite(descriptor, data, offset)
        if wrote < len(data):
            self._write_rest(memoryview(data)[wrote:], offset + wrote)
        self.is_dirty = True

    def _allocate(self, descriptor: int, start: int, end: int) -> None:
        """Take blocks for what is written next. It only saves time, so that it may fail: writing says why."""
        start = max(start, self._allocated)
        self._allocated = min(end + self._ahead, self.size)
        self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        with suppress(OSError):
            _allocate(descriptor, start, self._allocated - start)

    def _write_rest(self, data: memoryview, offset: int) -> None:
        """The system takes at most 2 GiB at once, and less where the disk is about to be full."""
        self.is_dirty = True
        while data:
            wrote = os.pwrite(self._opened(), data, offset)
            data, offset = data[wrote:], offset + wrote

    def zero(self, start: int, end: int) -> None:
        """Make the positions ``[start, end)`` zeros, from the front on; holes stay holes."""
        descriptor = self._opened()
        for low, high in list(data_extents(descriptor, start - self.base, end - self.base)):
            for offset in range(low, high, len(_ZEROS)):
                size = min(len(_ZEROS), high - offset)
                if os.pread(descriptor, size, offset).strip(b"\0"):
                    self._write_rest(memoryview(_ZEROS)[:size], offset)

    def sync(self) -> None:
        """Make what was written durable."""
        if self.is_dirty:
            self.is_dirty = False
            try:
                _sync_data(self._opened())
            except BaseException:
                self.is_dirty = True
                raise

    def close(self) -> None:
        """Let go of the descriptor; mappings that are in use stay."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor


class MappedFileList:
    """The files of one kind in order, without gaps. `choose_dir` says in which folder a file is created, by its base.

    One thread writes. Others may sync and delete the first files: `files` is replaced, never shortened in place.
    """

    def __init__(self, files: Sequence[MappedFile], file_size: int, choose_dir: Callable[[int], Path]) -> None:
        self.files = list(files)
        self.file_size = file_size
        self._choose_dir = choose_dir
        self._list_lock = threading.Lock()
        self._changed_dirs: set[Path] = set()
        self._mapped: deque[MappedFile] = deque()

    def view(self, file: MappedFile) -> memoryview:
        """The whole file, read-only. Only so many stay mapped: each mapping keeps a descriptor.

        Raises IndexRangeError where the file has expired meanwhile.
        """
        view = file.view
        if view is not None:
            return view
        self._mapped.append(file)
        if len(self._mapped) > _MOST_MAPPED:
            self._mapped.popleft().view = None
        try:
            return file.map()
        except FileNotFoundError:
            raise IndexRangeError(f"{file.path}: expected the file of an entry, found that it has expired") from None

    def find(self, pos: int) -> MappedFile | None:
        """The file that holds a position."""
        files = self.files
        if not files:
            return None
        place = (pos - files[0].base) // self.file_size
        return files[place] if 0 <= place < len(files) else None

    def at(self, pos: int) -> MappedFile:
        """The file that holds a position; it is created where that is the next file, or the first of all."""
        file = self.find(pos)
        if file is not None:
            return file
        assert not self.files or 0 <= pos - self.files[-1].end < self.file_size, f"{pos} is not in the next file"
        return self._create(pos - pos % self.file_size)

    def write(self, pos: int, data: Buffer) -> None:
        """Write at a position of the log, over as many files as it takes."""
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

    def _create(self, base: int) -> MappedFile:
        folder = self._choose_dir(base)
        make_dir(folder)
        self._sync_other_dirs(folder)
        file = MappedFile(folder / f"{base:0{SEGMENT_NAME_DIGITS}d}", base, self.file_size)
        try:
            file.create()
        except OSError:
            file.close()
            file.path.unlink(missing_ok=True)
            raise
        # Only now: a sync in another thread would take the folder for done before the file is in it.
        self._changed_dirs.add(folder)
        with self._list_lock:
            self.files.append(file)
        return file

    def cut(self, pos: int) -> None:
        """End the log at a position: later files are deleted, and behind it everything becomes zero.

        The file that holds `pos` stays even where it begins there.
        """
        with self._list_lock:
            kept = [file for file in self.files if file.base <= pos]
            removed = self.files[len(kept) :]
            self.files = kept
        self.delete(removed)
        if kept and pos < kept[-1].end:
            kept[-1].zero(pos, kept[-1].end)

    def drop_before(self, pos: int) -> int:
        """Delete the files that end at or before a position, from the first on; how many."""
        with self._list_lock:
            removed = [file for file in self.files if file.end <= pos]
            self.files = self.files[len(removed) :]
        self._delete_in_order(removed)
        return len(removed)

    def release(self) -> list[MappedFile]:
        """Begin without files; those there were are left as they are, and given back."""
        with self._list_lock:
            released, self.files = self.files, []
        return released

    def delete(self, files: Sequence[MappedFile]) -> None:
        """Delete files that are not in the list any more, from the last on."""
        self._delete_in_order(files[::-1])

    def _delete_in_order(self, files: Sequence[MappedFile]) -> None:
        for file in files:
            self._sync_other_dirs(file.path.parent)
            file.path.unlink(missing_ok=True)
            file.close()
            file.view = None  # the disk keeps its bytes until nobody looks at them any more
            self._changed_dirs.add(file.path.parent)

    def _sync_other_dirs(self, folder: Path) -> None:
        """Before a change in a folder, which may lie on another disk: a loss of power must not leave a gap."""
        for other in tuple(self._changed_dirs):
            if other != folder:
                sync_dir(other)

    def sync(self) -> None:
        """Make everything durable that was written, created or deleted; only the last file stays open.

        The others can be closed beside a thread that writes: a file that was not the last any more when this began is
        never written again but after a cut, which does not run at the same time.
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


def sync_file(file: Path) -> None:
    """Make a file durable that another process may have written."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _sync_data(descriptor)
    finally:
        os.close(descriptor)


def make_dir(folder: Path) -> None:
    """Create a folder durably, and those above it, where it is not there."""
    if not folder.is_dir():
        make_dir(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_dir(folder.parent)
