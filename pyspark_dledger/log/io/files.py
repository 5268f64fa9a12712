"""Files and folders for reading: local ones, and those of a remote file system, which a URI names.

Code that reads a store uses these functions, or a path from `path_of`, and so reads both kinds.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar, cast, final

from pyspark_dledger.common.uris import RemoteUri, as_uri, is_remote, without_file_scheme
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.store_file import LocalFile, OpenFile, StoreFile

MAX_STATE_SIZE = 64 * 1024
"""Bytes that are read of a file of a few lines, such as ``checkpoint``."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class FolderEntry(Protocol):
    """The part of ``os.DirEntry`` that the entries of a folder have, and a RemotePath."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    def is_dir(self) -> bool: ...

    def is_file(self) -> bool: ...

    def stat(self) -> os.stat_result: ...


@final
class OpenLocalFile(OpenFile):
    """A local file. It owns its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        self.read_offset = offset
        return os.pread(self._descriptor, size, offset)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        return os.preadv(self._descriptor, [buffer], offset)

    def extents(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        return data_extents(self._descriptor, start, end)


def path_of(text: str) -> Path:
    """The path that a text names: a local one, also with ``file:``, or a `RemotePath` for a URI.

    A RemotePath has the methods of Path that read, so it is typed as a Path. Raises StoreError for a URI whose file
    system cannot be reached, OptionError for a malformed URI.
    """
    if not is_remote(text):
        return Path(without_file_scheme(text))
    from pyspark_dledger.log.io.remote_paths import RemotePath  # imports pyarrow's file systems

    return cast("Path", RemotePath.of(cast("RemoteUri", as_uri(text))))


def file_at(path: str) -> StoreFile:
    """The file at `path`: a local path without ``file:``, or a RemoteUri."""
    if not isinstance(path, RemoteUri):
        return LocalFile(path)
    from pyspark_dledger.log.io.remote_segment import RemoteFile  # imports pyarrow's file systems

    return RemoteFile(path)


def is_remote_path(path: Path) -> bool:
    """Whether a path from `path_of` is remote."""
    return not isinstance(path, os.PathLike)


def is_there(path: Path) -> bool:
    """Whether the path exists, also as a broken link."""
    return path.exists() if is_remote_path(path) else os.path.lexists(path)


def without_bucket(path: Path) -> str | None:
    """The text for an error if the bucket of a remote path does not exist, else None.

    It costs a request: call it only after nothing was found.
    """
    bucket = path.missing_bucket() if is_remote_path(path) else None  # type: ignore[attr-defined]
    return None if bucket is None else f"no bucket {bucket}: check its name, the region and the endpoint"


def is_readable(path: Path) -> bool:
    """Whether permissions allow to read a path; true for a remote path, where only a read shows it."""
    return is_remote_path(path) or os.access(path, os.R_OK)


def names_in(folder: Path) -> list[str]:
    """The names in a folder, in no order. Raises OSError, for a remote folder StoreError."""
    return [path.name for path in folder.iterdir()] if is_remote_path(folder) else os.listdir(folder)


def scan_folder(folder: Path) -> list[FolderEntry]:
    """The entries of a folder, in no order. Raises OSError, for a remote folder StoreError."""
    if is_remote_path(folder):
        return cast("list[FolderEntry]", list(folder.iterdir()))
    with os.scandir(folder) as entries:
        return list(entries)


def open_local(path: str | Path) -> int:
    """Open a local file for reading. Raises OSError, also for a FIFO or a device, whose reads could wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return descriptor


def read_start(file: Path, size: int) -> bytes:
    """At most the first `size` bytes of a file. Raises OSError, for a remote file StoreError."""
    with open_file(file) as opened:
        return opened.read(0, size)


def open_file(path: str | Path) -> OpenFile:
    """Open a file for reading. Raises OSError, for a remote file StoreError."""
    if isinstance(path, str) and not is_remote(path):
        return OpenLocalFile(open_local(path))
    file = path_of(path) if isinstance(path, str) else path
    if is_remote_path(file):
        from pyspark_dledger.log.io.remote_reads import OpenRemoteFile

        return OpenRemoteFile(cast("RemoteUri", str(file)))
    return OpenLocalFile(open_local(file))


OnUnreadable = Callable[[UnreadableError], None]
"""Called with what cannot be read; raises the error, or records it and returns."""


def raise_error(error: UnreadableError) -> None:
    raise error


def ignore_error(_error: UnreadableError) -> None:
    """For a read whose result only adds to what is known otherwise."""


def unreadable(path: str | Path, error: OSError) -> UnreadableError | None:
    """What to report for an error of a read; None if the path is gone, because brokers delete expired files."""
    is_gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
    if is_gone and not is_there(path_of(path) if isinstance(path, str) else path):
        return None
    reason = "expected a folder, found a file" if isinstance(error, NotADirectoryError) else error.strerror
    return UnreadableError(str(path), reason or str(error))


@contextmanager
def opened_existing(path: str, opens: Callable[[], OpenFile] | None = None) -> Iterator[OpenFile | None]:
    """A file that is open for reading; None if it does not exist. Errors of its reads become an UnreadableError.

    `opens` opens it, by default as a file of this path.
    """
    try:
        file = open_file(path) if opens is None else opens()
    except OSError as error:
        if problem := unreadable(path, error):
            raise problem from None
        yield None
        return
    with file:
        try:
            yield file
        except OSError as error:
            raise UnreadableError(path, error.strerror or str(error), file.read_offset) from None


def map_reads(function: Callable[[_Item], _Result], items: Sequence[_Item], path: str) -> Iterator[_Result]:
    """The result of `function`, which reads, for each item, in order; in several threads if `path` is remote."""
    if not isinstance(path, RemoteUri):
        return map(function, items)
    from pyspark_dledger.log.io.remote_reads import map_in_threads

    return map_in_threads(function, items)


def data_extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file's ``[start, end)`` that are not holes, as its file system reports them, ascending."""
    while start < end:
        try:
            low = os.lseek(descriptor, start, os.SEEK_DATA)
            high = os.lseek(descriptor, low, os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: only a hole remains. Otherwise the file system does not report holes: all is data.
            if error.errno != errno.ENXIO:
                yield start, end
            return
        if low >= end:
            return
        yield low, min(high, end)
        start = high


def last_data(file: OpenFile, start: int, end: int) -> int:
    """The offset after the last byte of ``[start, end)`` that is not 0; `start` if all are 0. Holes are not read."""
    for low, high in reversed(list(file.extents(start, end))):
        while low < high:
            block = max(low, high - file.TAIL_BLOCK)
            data = file.read(block, high - block).rstrip(b"\0")
            if data:
                return block + len(data)
            high = block
    return start
