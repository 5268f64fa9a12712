"""Writes new files and reads them back from the disk.

A `DirectFile` bypasses the page cache with direct I/O, in a thread of its own: a broker on the same machine needs that
memory to serve messages, and bytes that are read back must come from the disk. On a file system without direct I/O, the
file is dropped from the cache before it is read. A `BlockFile` has a CRC-32 for each block, and can be continued.
"""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, final

from pyspark_dledger.common.durable import drop_cached, open_own, sync_file, write_all, write_at
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.rocketmq.jobs.target_folder import (
    Count,
    Crc,
    FileReport,
    RelativePath,
    left_path,
    new_file,
    source_errors,
)

BUFFER_SIZE = 16 * 1024 * 1024
"""Bytes that are collected for one write."""

_Result = TypeVar("_Result")

_RANGE_BYTES = 32 * 1024 * 1024
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


class WrittenRange(NamedTuple):
    """Bytes ``[start, end)`` of a file with that many rows; ``crc`` is the CRC-32 of the file up to ``end``."""

    start: int
    end: int
    crc: int
    rows: int = 0


def written_ranges(contents: Iterable[tuple[memoryview, int]]) -> Iterator[WrittenRange]:
    """The ranges of a file, from its contents in order, each with its number of rows."""
    start = end = crc = rows = 0
    for data, count in contents:
        crc = crc32(data, crc)
        end, rows = end + len(data), rows + count
        if end - start >= _RANGE_BYTES:
            yield WrittenRange(start, end, crc, rows)
            start, rows = end, 0
    if start < end:
        yield WrittenRange(start, end, crc, rows)


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

    def __exit__(self, *_: object) -> None:
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

    def read_back(
        self, path: str, ranges: Sequence[WrittenRange], beyond: Callable[[int], int] = lambda end: end
    ) -> Iterator[tuple[WrittenRange, FileWindow]]:
        """Each range with a window, which ends at least where `beyond` says for the range's end.

        Raises StoreError for bytes that differ from the written ones; `path` names the file then.
        """
        crc = 0
        windows = self.read([(each.start, max(each.end, beyond(each.end))) for each in ranges])
        for each, window in zip(ranges, windows, strict=True):
            crc = crc32(window.data(each.start, each.end), crc)
            if crc != each.crc or window.end < each.end:
                expected = f"CRC-32 {each.crc:08x} of bytes {each.start} to {each.end}"
                raise read_back_error(path, expected, f"{crc:08x}")
            yield each, window

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


BLOCK_BYTES = 4 << 20
"""Damage is located to a block."""


@dataclass(frozen=True)
class FileBlocks:
    """A file at ``path`` in a folder: its first ``size`` bytes, with the CRC-32 of each block of `BLOCK_BYTES`.

    The whole file has ``file_size`` bytes; the others are zeros.
    """

    path: RelativePath
    size: Count
    file_size: Count
    crc32: tuple[Crc, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that do not fit together."""
        if not self.size <= self.file_size <= INT32_MAX or len(self.crc32) != -(-self.size // BLOCK_BYTES):
            raise ValueError(f"{self.size} of {self.file_size} bytes with {len(self.crc32)} CRCs")


def read_blocks(file: BinaryIO, name: str, record: FileBlocks, first_block: int = 0) -> Iterator[bytes]:
    """The blocks of an open file from that one on.

    Raises StoreError for the first that does not match its CRC, UnreadableError for one that cannot be read.
    """
    file.seek(first_block * BLOCK_BYTES)
    for number in range(first_block, len(record.crc32)):
        start = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, record.size - start)
        with source_errors(name):
            data = file.read(size)
        found = crc32(data)
        if len(data) != size or found != record.crc32[number]:
            raise StoreError(
                f"{name} at byte {start} to {start + size - 1}: expected {size} bytes with CRC-32 "
                f"{record.crc32[number]:08x}, found {len(data)} with {found:08x}"
            )
        yield data


@final
class BlockFile:
    """A file that is being written. What is `kept` of it is not written again, and its last block is not checked.

    Raises OSError.
    """

    def __init__(self, file: Path, kept: FileBlocks | None = None) -> None:
        self._file = file
        self._checked = kept.size // BLOCK_BYTES if kept is not None else 0
        self._crcs = list(kept.crc32[: self._checked]) if kept is not None else []
        self._crc, self.size = 0, self._checked * BLOCK_BYTES
        self._descriptor = open_own(file, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._descriptor, kept.size if kept is not None else 0)
        if kept is not None:
            self._add(os.pread(self._descriptor, kept.size - self.size, self.size))

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes to the file."""
        write_at(self._descriptor, data, self.size)
        self._add(data)

    def skip_to(self, offset: int) -> None:
        """Leave zeros up to an offset; they are a hole of the file."""
        while self.size < offset:
            self._add(bytes(min(BLOCK_BYTES, offset - self.size)))

    def _add(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            part = view[: BLOCK_BYTES - self.size % BLOCK_BYTES]
            self._crc = crc32(part, self._crc)
            self.size += len(part)
            if self.size % BLOCK_BYTES == 0:
                self._crcs.append(self._crc)
                self._crc = 0
            view = view[len(part) :]

    def finish(self, path: str, file_size: int, written_size: int | None = None) -> FileBlocks:
        """Sync the file and read back what was written. Raises StoreError if it differs.

        The record has the `path` and `file_size`; the file itself gets `written_size`, by default that of its content.
        """
        crcs = (*self._crcs, *([self._crc] if self.size % BLOCK_BYTES else ()))
        record = FileBlocks(path, self.size, file_size, crcs)
        os.ftruncate(self._descriptor, self.size if written_size is None else written_size)
        os.fsync(self._descriptor)
        drop_cached(self._descriptor)
        with self._file.open("rb") as file:
            for _ in read_blocks(file, str(self._file), record, self._checked):
                pass
        return record


def write_blocks(file: Path, path: str, blocks: Iterable[bytes], file_size: int, *, is_full: bool) -> FileBlocks:
    """Write a file in blocks of any size, and read it back; with `is_full` it gets all of `file_size`."""
    with BlockFile(file) as written:
        for block in blocks:
            written.write(block)
        return written.finish(path, file_size, file_size if is_full else None)


class ChecksumFile(io.FileIO):
    """A new file that computes the CRC-32 of the bytes written to it."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, "xb")
        self.crc32 = 0

    def write(self, data: Any) -> int:
        """Write all of `data`. Raises OSError."""
        view = memoryview(data).cast("B")
        self.crc32 = crc32(view, self.crc32)
        write_all(self.fileno(), view)
        return len(view)


def leave(target: Path, number: int, write: Callable[[ChecksumFile], _Result]) -> tuple[FileReport, _Result]:
    """Write the file that a part leaves for the end of the job. Returns its report, and the result of `write`."""
    with new_file(target, left_path(number)) as file:
        with ChecksumFile(file) as stream:
            found = write(stream)
        sync_file(file)
        return FileReport(left_path(number), file.stat().st_size, stream.crc32, 0), found


def file_report(file: Path, path: str, rows: int) -> FileReport:
    """The report of a file that will be at `path`, by reading all of it. Raises OSError."""
    crc = size = 0
    with file.open("rb") as stream:
        while block := stream.read(2 * BLOCK_BYTES):
            crc = crc32(block, crc)
            size += len(block)
    return FileReport(path, size, crc, rows)


def read_back_error(path: str, expected: str, found: str) -> StoreError:
    """An error for a file that differs from what was written to it."""
    return StoreError(
        f"{path}: the file differs when read back: expected {expected}, found {found}: check the disk and the memory "
        "of this machine, and try again"
    )


def left_file(target: Path, file: FileReport) -> Path:
    """The path of the file that a part left. Raises StoreError if it changed."""
    path = target / file.path
    found = file_report(path, file.path, file.rows)
    if found != file:
        raise StoreError(
            f"{path}: expected {file.size} bytes with CRC-32 {file.crc32:08x}, found {found.size} with "
            f"{found.crc32:08x}: check the disk; delete the file to write its part again"
        )
    return path
