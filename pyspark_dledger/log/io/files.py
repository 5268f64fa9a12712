"""Files and folders that are only read, on this machine or, named by a URI, on a remote file system.

Everything that reads a store goes through here or takes a path from `path_of`, so that both kinds are read alike.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar, cast, final

from pyspark_dledger.common.uris import RemoteUri, as_uri, is_remote, without_file_scheme

_TAIL_BLOCK = 64 * 1024

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class FolderEntry(Protocol):
    """What of an ``os.DirEntry`` is used of the entries of a folder."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    def is_dir(self) -> bool: ...

    def is_file(self) -> bool: ...

    def stat(self) -> os.stat_result: ...


class OpenFile(Protocol):
    """A file that is open for reading."""

    TAIL_BLOCK: int
    """In pieces of so many bytes it is read from behind."""

    def __enter__(self) -> OpenFile: ...  # noqa: PYI034 - Self needs Python 3.11

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def size(self) -> int:
        """Its size in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset`; fewer at the file's end. Raises OSError, of a remote file StoreError."""

    def extents(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of ``[start, end)`` that are known to be no holes, ascending."""


@final
class LocalFile:
    """A file on this machine, by its descriptor, which is closed with it."""

    TAIL_BLOCK = _TAIL_BLOCK

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def extents(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        return data_extents(self._descriptor, start, end)


def path_of(text: str) -> Path:
    """The path that a text names: one of this machine, also as ``file:``, or a `remote.RemotePath` of a URI.

    A RemotePath has those of Path's calls that read; it is declared as a Path, which what is read need not tell apart.
    Raises StoreError for a URI that names no file system, OptionError for one that is none.
    """
    if not is_remote(text):
        return Path(without_file_scheme(text))
    from pyspark_dledger.log.io.remote import RemotePath  # imports pyarrow's file systems

    return cast(Path, RemotePath.of(cast(RemoteUri, as_uri(text))))


def is_remote_path(path: Path) -> bool:
    """Whether a path of `path_of` is one of a remote file system."""
    return not isinstance(path, os.PathLike)


def is_there(path: Path) -> bool:
    """Whether anything, be it a link to nothing, has that path."""
    return path.exists() if is_remote_path(path) else os.path.lexists(path)


def without_bucket(path: Path) -> str | None:
    """What an error says was found where the bucket of a remote path does not exist; None where it may.

    It costs a request: ask only once nothing was found.
    """
    bucket = path.missing_bucket() if is_remote_path(path) else None  # type: ignore[attr-defined]
    return None if bucket is None else f"no bucket {bucket}: check its name, the region and the endpoint"


def is_readable(path: Path) -> bool:
    """Whether permissions allow to read a path; of a remote one only reading tells."""
    return is_remote_path(path) or os.access(path, os.R_OK)


def names_in(folder: Path) -> list[str]:
    """The names of what is in a folder, in no order. Raises OSError, of a remote folder StoreError."""
    return [path.name for path in folder.iterdir()] if is_remote_path(folder) else os.listdir(folder)


def scan_folder(folder: Path) -> list[FolderEntry]:
    """What is in a folder, in no order. Raises OSError, of a remote folder StoreError."""
    if is_remote_path(folder):
        return list(folder.entries())  # type: ignore[attr-defined]
    with os.scandir(folder) as entries:
        return list(entries)


def open_file(path: str | Path) -> OpenFile:
    """A file opened for reading. Raises OSError, of a remote file StoreError, where it cannot be."""
    if isinstance(path, str) and not is_remote(path):
        return LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    file = path_of(path) if isinstance(path, str) else path
    if is_remote_path(file):
        from pyspark_dledger.log.io.remote import RemoteFile

        return RemoteFile(cast(RemoteUri, str(file)))
    return LocalFile(os.open(file, os.O_RDONLY | os.O_CLOEXEC))


def looked_up(function: Callable[[_Item], _Result], items: Sequence[_Item], path: str) -> Iterator[_Result]:
    """What `function` reads for each of the items, in order; several at once where `path` is a remote one."""
    if not isinstance(path, RemoteUri):
        return map(function, items)
    from pyspark_dledger.log.io.remote import side_by_side

    return side_by_side(function, items)


def data_extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file's ``[start, end)`` that are no holes, as its file system says it, ascending."""
    while start < end:
        try:
            low = os.lseek(descriptor, start, os.SEEK_DATA)
            high = os.lseek(descriptor, low, os.SEEK_HOLE)
        except OSError as error:
            # Nothing but a hole is left; else the file system knows no holes, and data is everywhere.
            if error.errno != errno.ENXIO:
                yield start, end
            return
        if low >= end:
            return
        yield low, min(high, end)
        start = high


def last_data(file: OpenFile, start: int, end: int) -> int:
    """The byte behind the last one of a file's ``[start, end)`` that is not 0; `start` if all are. Holes are free."""
    for low, high in reversed(list(file.extents(start, end))):
        while low < high:
            block = max(low, high - file.TAIL_BLOCK)
            data = file.read(block, high - block).rstrip(b"\0")
            if data:
                return block + len(data)
            high = block
    return start
