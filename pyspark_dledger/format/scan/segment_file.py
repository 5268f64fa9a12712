"""Reads one segment in bounded windows. It is never mapped: a file that shrinks must not end the process."""

from __future__ import annotations

import errno
import os
import stat
from functools import cached_property
from typing import final

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.spec import KnownEntries, Segment

WINDOW = 64 * 1024


class FileShrunk(Exception):
    """The file has fewer bytes than before. `SegmentFile.end` is lower, and the caller starts again."""


class MissingBytes(Exception):
    """A read needs bytes that the partial copy does not have; `offset` is that of the first one in the file.

    Results up to then are invalid. The caller repeats the call on a copy that has these bytes.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@final
class SegmentFile:
    """A `Buffer` whose slices are positions of the log, in ``[segment.base, end)``.

    ``end`` is the end of the file or of the segment, whichever comes first. A slice that cannot be read lowers ``end``
    to its first missing byte and raises `FileShrunk`.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        try:
            self._fd = os.open(segment.file.opened, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise StoreError(f"{segment.path}: cannot be opened: {error.strerror}") from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise StoreError(f"{segment.path}: is not a readable file: {os.strerror(errno.EINVAL)}")
        self.end = segment.base + min(segment.size, status.st_size)
        self._found = status.st_size
        self._errno = 0
        self._window = b""
        self._window_start = segment.base

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def __getitem__(self, key: slice, /) -> bytes:
        start, stop = key.start, key.stop
        if not self.segment.base <= start <= stop <= self.end:
            raise IndexError(f"expected positions in [{self.segment.base}, {self.end}], found {start} to {stop}")
        if stop - start > WINDOW:
            return self._read_exactly(start, stop)
        begin = self._window_start
        if start < begin or stop > begin + len(self._window):
            self._window = self._read_window(start, stop)
            self._window_start = begin = start
        return self._window[start - begin : stop - begin]

    @cached_property
    def known_entries(self) -> KnownEntries:
        """The entries that the segment's witness knows; it is asked once."""
        return self.segment.known_entries()

    @property
    def shortage(self) -> Fact:
        """The problem of a file that ends, or cannot be read, before its segment ends."""
        if self._errno:
            return Fact(ProblemCode.UNREADABLE, 0, self.segment.size, self._found, 0, self._errno)
        return Fact(ProblemCode.SHORT_FILE, 0, self.segment.size, self._found)

    def check(self) -> None:
        """Raises UnreadableError if bytes of the file could not be read."""
        if self._errno:
            raise UnreadableError(self.segment.path, os.strerror(self._errno), self._found)

    def _read_window(self, start: int, stop: int) -> bytes:
        try:
            return self._read(start, min(start + WINDOW, self.end))
        except (OSError, MissingBytes):
            return self._read_exactly(start, stop)

    def _read_exactly(self, start: int, stop: int) -> bytes:
        try:
            return self._read(start, stop)
        except OSError as error:
            at = start - self.segment.base
            self._found, self._errno = at, error.errno or errno.EIO
            self.end = start
            raise FileShrunk from error

    def _read(self, start: int, stop: int) -> bytes:
        self._check_held(start - self.segment.base, stop - self.segment.base)
        parts: list[bytes] = []
        at = start
        while at < stop:
            part = os.pread(self._fd, stop - at, at - self.segment.base)
            if not part:
                size = min(os.fstat(self._fd).st_size, at - self.segment.base)
                self._found, self._errno = size, 0
                self.end = self.segment.base + size
                raise FileShrunk
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_held(self, start: int, stop: int) -> None:
        """Raises MissingBytes for the first byte of ``[start, stop)`` that a partial copy does not have."""
        at = start
        extents = self.segment.file.extents
        for low, high in extents or ():
            if low <= at < high:
                at = high
        if extents is not None and at < stop:
            raise MissingBytes(at)


class FileBytes:
    """The bytes of one file, copied from it. What was read stays valid when the file is deleted."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes at the offsets ``[start, stop)``. Raises OSError if the file does not have all of them."""
        return memoryview(read_exactly(self._path, start, stop))

    def peek(self, start: int, stop: int) -> memoryview:
        """As `read`; of the native engine faster, and bytes that cannot be read may be zeros."""
        return self.read(start, stop)


def read_exactly(path: str, start: int, stop: int) -> bytes:
    """The bytes at the offsets ``[start, stop)`` of a file. Raises OSError if it does not have all of them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, stop - start, start)
        while len(data) < stop - start:
            part = os.pread(descriptor, stop - start - len(data), start + len(data))
            if not part:
                raise OSError(errno.EIO, f"expected {stop} bytes, found the end of the file at {start + len(data)}")
            data += part
        return data
    finally:
        os.close(descriptor)
