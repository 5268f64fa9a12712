"""Writes a large new file and reads it back with direct I/O, in a thread of its own.

Direct I/O bypasses the page cache: a broker on the same machine needs that memory to serve messages, and bytes that are
read back must come from the disk. On a file system without direct I/O, the file is dropped from the cache before it is
read.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, final

from pyspark_dledger.common.durable import drop_cached
from pyspark_dledger.format.encode.encoded import Buffer

BUFFER_SIZE = 16 * 1024 * 1024
"""Bytes that are collected for one write."""

_BLOCK = 4096
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_MODE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _memory(size: int) -> memoryview:
    """Memory aligned for direct I/O, in huge pages if the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _memory_file(size: int) -> int:
    """The descriptor of a nameless file of `size` bytes, in memory if the system supports that."""
    with suppress(AttributeError, OSError):
        return os.memfd_create("dledger-window", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="dledger-", buffering=0) as file:
        remaining = memoryview(bytes(size))
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from None
        return os.dup(file.fileno())


@final
class FileWindow:
    """Bytes ``[start, end)`` of a file, in memory that has a path: an engine can scan it as a segment."""

    def __init__(self, size: int) -> None:
        self._descriptor = _memory_file(size)
        try:
            os.ftruncate(self._descriptor, size)
            self.memory = memoryview(mmap.mmap(self._descriptor, size))
        except OSError:
            os.close(self._descriptor)
            raise
        self.start = self.end = 0

    @property
    def path(self) -> str:
        return f"/dev/fd/{self._descriptor}"

    def data(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)`` of the file that are in this window."""
        return self.memory[start - self.start : max(start, min(end, self.end)) - self.start]

    def close(self) -> None:
        os.close(self._descriptor)


@final
class DirectFile:
    """A new file that is written from start to end, then read back. A thread does the I/O. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._buffers = [_memory(BUFFER_SIZE), _memory(BUFFER_SIZE)]
        self._disk = ThreadPoolExecutor(1, "dledger-file")
        self._filled = self._written = 0
        self._writing: Future[None] | None = None
        self._descriptor = os.open(path, _MODE, 0o666)
        self._is_direct = self._set_direct(True)

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.shutdown()
        if not self._is_direct:
            drop_cached(self._descriptor)
        os.close(self._descriptor)

    def reserve(self, count: int) -> memoryview:
        """Buffer space for the next `count` bytes of the file; `advance` says how many of them are set."""
        if self._filled + count > len(self._buffers[0]):
            self._flush(count)
        return self._buffers[0][self._filled : self._filled + count]

    def advance(self, count: int) -> None:
        """Add the first `count` bytes of the last `reserve` to the file."""
        self._filled += count

    def append(self, data: Buffer) -> None:
        """Add bytes to the file. `data` may be changed afterwards."""
        self.reserve(len(data))[:] = data
        self.advance(len(data))

    def finish(self, size: int) -> None:
        """Extend the file with zeros to `size` bytes and sync it."""
        self.append(bytes(-self._filled % _BLOCK))
        self._flush(0)
        self._wait()
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)

    def read(self, ranges: Sequence[tuple[int, int]]) -> Iterator[FileWindow]:
        """A window for each range ``(start, end)``; the next one is read ahead.

        A window is valid until the next one is requested. It has fewer bytes than its range if the file ends earlier.
        """
        rounded = [(start // _BLOCK * _BLOCK, -(-end // _BLOCK) * _BLOCK) for start, end in ranges]
        longest = max([_BLOCK, *(end - start for start, end in rounded)])
        with closing(FileWindow(longest)) as one, closing(FileWindow(longest)) as other:
            windows = [one, other]
            first = zip(windows, rounded[:2], strict=False)  # may be fewer than two
            reading = [self._disk.submit(self._read_window, window, *each) for window, each in first]
            try:
                for number in range(len(rounded)):
                    reading.pop(0).result()
                    yield windows[0]
                    if number + 2 < len(rounded):
                        reading.append(self._disk.submit(self._read_window, windows[0], *rounded[number + 2]))
                    windows.reverse()
            finally:
                wait(reading)

    def _flush(self, count: int) -> None:
        """Write whole blocks; move the bytes after them to a buffer with space for `count` more."""
        self._wait()
        full, following = self._buffers
        whole = self._filled // _BLOCK * _BLOCK
        rest = self._filled - whole
        if rest + count > len(following):
            following = _memory(rest + count)
        following[:rest] = full[whole : self._filled]
        self._writing = self._disk.submit(self._write, full[:whole], self._written)
        self._written += whole
        self._filled = rest
        self._buffers = [following, full]

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            count = self._call(os.pwrite, data, offset)
            data, offset = data[count:], offset + count

    def _read_window(self, window: FileWindow, start: int, end: int) -> None:
        if not self._is_direct:
            drop_cached(self._descriptor, start, end - start)
        window.start = window.end = start
        while window.end < end:
            buffer = window.memory[window.end - start : end - start]
            count = self._call(os.preadv, [buffer], window.end)
            if not count:
                return
            window.end += count

    def _call(self, function: Callable[..., int], *args: Any) -> int:
        """Call a function of `os`; again without direct I/O if the file system does not support that."""
        try:
            return function(self._descriptor, *args)
        except OSError as error:
            if error.errno not in _UNSUPPORTED or not self._is_direct:
                raise
            self._is_direct = self._set_direct(False)
            return function(self._descriptor, *args)

    def _set_direct(self, is_wanted: bool) -> bool:
        """Switch direct I/O on or off. Returns whether it is on."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if is_wanted else 0))
        except OSError:
            return False
        return is_wanted and _DIRECT != 0
