"""Files of a store as values: each kind says how its bytes are read. `log/io` has those of other places."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark_dledger.errors import StoreError

_Engine = TypeVar("_Engine")

Extents = tuple[tuple[int, int], ...]


class StoreFile(Protocol):
    """A file of a store: picklable, hashable, and compared by value.

    A file that is neither local nor remote has bytes of several others. ``opened`` is the file that an engine opens,
    and ``extents`` are the bytes that it has: see `PartialFile`.
    """

    is_local: bool
    is_remote: bool

    @property
    def path(self) -> str:
        """Its name in messages; the path of a local file."""

    @property
    def opened(self) -> str: ...

    @property
    def extents(self) -> Extents | None: ...

    @property
    def whole(self) -> StoreFile:
        """The file itself; of a partial copy, the file that it is a copy of."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`; fewer at the file's end, none if it cannot be read.

        Raises StoreError if a remote file cannot be read, because it may exist.
        """

    def size(self) -> int | None:
        """Its size in bytes; None if it is no file, or no longer exists. Raises StoreError if that is not known."""

    def over(self, engine: _Engine) -> _Engine:
        """The engine that reads this file by means of `engine`, which reads local ones."""


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine."""

    path: str

    is_local = True
    is_remote = False
    extents = None

    @property
    def opened(self) -> str:
        return self.path

    @property
    def whole(self) -> LocalFile:
        return self

    def read(self, offset: int, size: int) -> bytes:
        return read_ranges(self.path, ((offset, size),))[0]

    def size(self) -> int | None:
        return regular_size(self.path, Path(self.path).stat)

    def over(self, engine: _Engine) -> _Engine:
        return engine


@dataclass(frozen=True)
class PartialFile:
    """A local copy of some extents of the file ``whole``, with that file's size.

    ``extents`` are ``(start, end)`` in bytes of the file: ascending, disjoint, and whole MiB except at the file's end.
    An engine that needs other bytes raises `segment_file.MissingBytes`.
    """

    whole: StoreFile
    opened: str
    extents: Extents

    is_local = False
    is_remote = False

    @property
    def path(self) -> str:
        return self.whole.path

    def read(self, offset: int, size: int) -> bytes:
        return read_ranges(self.opened, ((offset, size),))[0]

    def size(self) -> int | None:
        return regular_size(self.path, Path(self.opened).stat)

    def over(self, engine: _Engine) -> _Engine:
        return engine


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
