"""The bytes of a file that another process may truncate, or the disk may fail to read."""

from __future__ import annotations

import errno
import os
from typing import Protocol


class FileBytes(Protocol):
    """The bytes of one file. What was read stays valid when the file is deleted."""

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes at the offsets ``[start, stop)``. Raises OSError if the file does not have all of them."""

    def peek(self, start: int, stop: int) -> memoryview:
        """As `read`, but faster: bytes that cannot be read may be zeros."""


class ReadBytes:
    """Bytes that are copied from the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(read_exactly(self._path, start, stop))

    peek = read


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
