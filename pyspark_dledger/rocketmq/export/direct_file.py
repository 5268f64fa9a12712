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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, final

from pyspark_dledger.format.encode.encoded import Buffer

AT_ONCE = 16 * 1024 * 1024
"""So many bytes are collected before they are written."""

_BLOCK = 4096
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_REFUSED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_MODE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _memory(size: int) -> memoryview:
    """Memory that begins where a block may, in pages that are found faster where there are such."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _memory_file(size: int) -> int:
    """The descriptor of a file without a name and with room for so many bytes, in memory where the system can."""
    with suppress(AttributeError, OSError):
        return os.memfd_create("dledger-window", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="dledger-", buffering=0) as file:
        left = memoryview(bytes(size))
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from None
        return os.dup(file.fileno())


@final
class FileWindow:
    """Bytes ``[start, end)`` of a file in memory that has a path, so that an engine can scan it as a segment."""

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
        """The bytes ``[start, end)`` of the file, as many of them as are here."""
        return self.memory[start - self.start : max(start, min(end, self.end)) - self.start]

    def close(self) -> None:
        os.close(self._descriptor)


@final
class DirectFile:
    """A new file, written from its begin to its end, then read back; the disk works in a thread of its own.

    Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self._buffers = [_memory(AT_ONCE), _memory(AT_ONCE)]
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
            self._drop_from_cache(0, 0)
        os.close(self._descriptor)

    def room(self, count: int) -> memoryview:
        """Memory for so many bytes behind those that were written before; `keep` says how many of them are there."""
        if self._filled + count > len(self._buffers[0]):
            self._flush(count)
        return self._buffers[0][self._filled : self._filled + count]

    def keep(self, count: int) -> None:
        """Write the first bytes of the room that was given last."""
        self._filled += count

    def append(self, data: Buffer) -> None:
        """Write bytes behind those that were written before; what they are may change afterwards."""
        self.room(len(data))[:] = data
        self.keep(len(data))

    def finish(self, size: int) -> None:
        """Give the file its size, which it has in zeros behind what was written, and make all of it durable."""
        self.append(bytes(-self._filled % _BLOCK))
        self._flush(0)
        self._wait()
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)

    def read(self, ranges: Sequence[tuple[int, int]]) -> Iterator[FileWindow]:
        """Windows with the ranges ``(start, end)``, one after the other; the next one is read while one is used.

        A window has fewer bytes where the file has, and holds only until the next.
        """
        rounded = [(start // _BLOCK * _BLOCK, -(-end // _BLOCK) * _BLOCK) for start, end in ranges]
        longest = max([_BLOCK, *(end - start for start, end in rounded)])
        with closing(FileWindow(longest)) as one, closing(FileWindow(longest)) as other:
            windows = [one, other]
            first = zip(windows, rounded[:2], strict=False)  # there may be none, or one
            reading = [self._disk.submit(self._fill, window, *each) for window, each in first]
            try:
                for number in range(len(rounded)):
                    reading.pop(0).result()
                    yield windows[0]
                    if number + 2 < len(rounded):
                        reading.append(self._disk.submit(self._fill, windows[0], *rounded[number + 2]))
                    windows.reverse()
            finally:
                wait(reading)

    def _flush(self, count: int) -> None:
        """Have whole blocks written; the bytes behind them move to where there is room for so many more."""
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
            wrote = self._tried(os.pwrite, data, offset)
            data, offset = data[wrote:], offset + wrote

    def _fill(self, window: FileWindow, start: int, end: int) -> None:
        if not self._is_direct:
            self._drop_from_cache(start, end - start)
        window.start = window.end = start
        while window.end < end:
            place = window.memory[window.end - start : end - start]
            count = self._tried(os.preadv, [place], window.end)
            if not count:
                return
            window.end += count

    def _drop_from_cache(self, start: int, count: int) -> None:
        """So many bytes, with 0 all to the end."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, count, os.POSIX_FADV_DONTNEED)

    def _tried(self, call: Callable[..., int], *given: Any) -> int:
        """The result of a call, made again through the page cache where the file system refuses it past that."""
        try:
            return call(self._descriptor, *given)
        except OSError as error:
            if error.errno not in _REFUSED or not self._is_direct:
                raise
            self._is_direct = self._set_direct(False)
            return call(self._descriptor, *given)

    def _set_direct(self, is_wanted: bool) -> bool:
        """Whether the file goes past the page cache from now on."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & ~_DIRECT
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | (_DIRECT if is_wanted else 0))
        except OSError:
            return False
        return is_wanted and _DIRECT != 0
