"""A large new file that is written and read back past the page cache, while its bytes are made and checked.

An export touches every byte of a file twice and then never again. Through the page cache that would cost a broker on
the same machine the memory from which it serves its messages, and what is read back would not come from the disk. A
file system that takes no direct I/O is used through its cache, from which the file is dropped before it is read.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, final

from pyspark_dledger.format.entries import Buffer

AT_ONCE = 16 * 1024 * 1024
"""So many bytes are written at once, a multiple of all block sizes; it is worth while to read as many."""

_BLOCK = 4096
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_MODE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _in_large_pages(memory: mmap.mmap) -> memoryview:
    """Memory in pages that the disk and the processor find faster, where there are such."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


@final
class Window:
    """Bytes ``[start, end)`` of a file in memory that has a path, so that an engine can scan it as a segment."""

    def __init__(self, size: int) -> None:
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("dledger-window", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile(prefix="dledger-") as file:
                self._descriptor = os.dup(file.fileno())
        os.ftruncate(self._descriptor, size)
        self.memory = _in_large_pages(mmap.mmap(self._descriptor, size))
        self.start = self.end = 0

    @property
    def path(self) -> str:
        return f"/dev/fd/{self._descriptor}"

    def data(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)`` of the file, as many of them as are here."""
        return self.memory[start - self.start : min(end, self.end) - self.start]

    def close(self) -> None:
        os.close(self._descriptor)


@final
class DirectFile:
    """A new file, written from its begin to its end, then read back; the disk works in a thread of its own.

    Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, _MODE, 0o644)
        self._is_direct = self._set_direct(True)
        self._disk = ThreadPoolExecutor(1, "dledger-file")
        self._buffers = [
            _in_large_pages(mmap.mmap(-1, AT_ONCE)) for _ in range(2)
        ]  # in whole pages, as the disk takes them
        self._filled = self._written = 0
        self._writing: Future[None] | None = None

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.shutdown()
        os.close(self._descriptor)

    def append(self, data: Buffer) -> None:
        """Write bytes behind those that were written before; what they are may change afterwards."""
        left = memoryview(data)
        while left:
            count = min(len(left), AT_ONCE - self._filled)
            self._buffers[0][self._filled : self._filled + count] = left[:count]
            self._filled += count
            left = left[count:]
            if self._filled == AT_ONCE:
                self._flush()

    def finish(self, size: int) -> None:
        """Give the file its size, which it has in zeros behind what was written, and make all of it durable."""
        rest = -self._filled % _BLOCK
        self._buffers[0][self._filled : self._filled + rest] = bytes(rest)
        self._filled += rest
        self._flush()
        self._wait()
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)

    def read(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Window]:
        """Windows with the ranges ``(start, end)``, one after the other; the next one is read while one is used.

        A window has fewer bytes where the file has, and holds only until the next.
        """
        rounded = [(start // _BLOCK * _BLOCK, -(-end // _BLOCK) * _BLOCK) for start, end in ranges]
        longest = max((end - start for start, end in rounded), default=_BLOCK)
        windows = [Window(longest), Window(longest)]
        following: Future[None] | None = None
        try:
            for number, (start, end) in enumerate(rounded):
                (following or self._disk.submit(self._fill, windows[0], start, end)).result()
                following = None
                if number + 1 < len(rounded):
                    following = self._disk.submit(self._fill, windows[1], *rounded[number + 1])
                yield windows[0]
                windows.reverse()
        finally:
            if following is not None:
                following.exception()
            for window in windows:
                window.close()

    def _flush(self) -> None:
        self._wait()
        buffer, offset = self._buffers[0][: self._filled], self._written
        self._writing = self._disk.submit(self._write, buffer, offset)
        self._written += self._filled
        self._filled = 0
        self._buffers.reverse()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            wrote = self._tried(os.pwrite, data, offset)
            data, offset = data[wrote:], offset + wrote

    def _fill(self, window: Window, start: int, end: int) -> None:
        if not self._is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
        window.start = window.end = start
        while window.end < end:
            place = window.memory[window.end - start : end - start]
            count = self._tried(os.preadv, [place], window.end)
            if not count:
                return
            window.end += count

    def _tried(self, call: Callable[..., int], *given: Any) -> int:
        """The result of a call, made again through the page cache where the file system refuses it past that."""
        try:
            return call(self._descriptor, *given)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
            self._is_direct = self._set_direct(False)
            return call(self._descriptor, *given)

    def _set_direct(self, is_wanted: bool) -> bool:
        """Whether the file goes past the page cache from now on."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if is_wanted else 0))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        return is_wanted and _DIRECT != 0
