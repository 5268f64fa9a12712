"""Files of a store as values: each kind says how its bytes are read. `log/io` has those of other places."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyspark_dledger.errors import StoreError

_Engine = TypeVar("_Engine")

Extents = tuple[tuple[int, int], ...]


class StoreFile(ABC):
    """A file of a store: picklable, hashable, and compared by value. ``path`` is its name in messages.

    A file that is neither local nor remote has bytes of several others. ``extents`` are the bytes that a partial copy
    has: see `PartialFile`.
    """

    path: str
    is_local = False
    is_remote = False
    extents: Extents | None = None

    @property
    def opened(self) -> str:
        """The file that an engine opens."""
        return self.path

    @property
    def whole(self) -> StoreFile:
        """The file itself; of a partial copy, the file that it is a copy of."""
        return self

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`; fewer at the file's end, none if it cannot be read.

        Raises StoreError if a remote file cannot be read, because it may exist.
        """

    @abstractmethod
    def size(self) -> int | None:
        """Its size in bytes; None if it is no file, or no longer exists. Raises StoreError if that is not known."""

    def over(self, engine: _Engine) -> _Engine:
        """The engine that reads this file by means of `engine`, which reads local ones."""
        return engine


@dataclass(frozen=True)
class LocalFile(StoreFile):
    """A file on this machine."""

    path: str
    is_local = True

    def read(self, offset: int, size: int) -> bytes:
        return read_ranges(self.opened, ((offset, size),))[0]

    def size(self) -> int | None:
        return regular_size(self.path, Path(self.opened).stat)


@dataclass(frozen=True)
class PartialFile(LocalFile):
    """A local copy of some extents of a file, with the size and the ``path`` of that file.

    ``extents`` are ``(start, end)`` in bytes of the file: ascending, disjoint, and whole MiB except at the file's end.
    An engine that needs other bytes raises `segment_file.MissingBytes`.
    """

    original: StoreFile
    copy: str
    extents: Extents
    is_local = False

    @classmethod
    def of(cls, original: StoreFile, copy: str, extents: Extents) -> PartialFile:
        """The extents of `original` that are in the file `copy`."""
        return cls(original.path, original, copy, extents)

    @property
    def opened(self) -> str:
        return self.copy

    @property
    def whole(self) -> StoreFile:
        return self.original


class OpenFile(ABC):
    """A file that is open for reading. Its reads raise OSError, those of a remote file StoreError."""

    TAIL_BLOCK = 64 * 1024
    """Bytes of one read when a file is read backwards from its end."""
    read_offset: int | None = None
    """That of the last read, if errors need it."""

    def __enter__(self) -> OpenFile:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - a remote file owns nothing
        """Close it."""

    @abstractmethod
    def size(self) -> int:
        """Its size in bytes."""

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`; fewer at the file's end."""

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read the bytes at `offset` into a buffer. Returns their number."""
        data = self.read(offset, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def extents(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of ``[start, end)`` that are not holes, ascending."""
        if start < end:
            yield start, end


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """As `StoreFile.read`, for each offset and size in a local file, which is opened once."""
    try:
        # Opening a FIFO must not wait; `os.pread` does not read from one.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return [b""] * len(ranges)
    try:
        return [os.pread(descriptor, size, offset) for offset, size in ranges]
    except OSError:
        return [b""] * len(ranges)
    finally:
        os.close(descriptor)


def regular_size(path: object, stat_of: Callable[[], os.stat_result]) -> int | None:
    """The size of a regular file in bytes; None for anything else, and for a file that no longer exists."""
    try:
        status = stat_of()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
