"""Reads of remote files through ``pyarrow.fs``: by ranges, from a cache, because a request takes tens of milliseconds.

Errors become a StoreError that names the URI without its secrets. They are never mistaken for the end of a file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar, final

import pyarrow as pa
from pyarrow import fs

from pyspark_dledger.common.uris import RemoteUri, Stamp, masked, parsable
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.store_file import OpenFile

# Seconds for one attempt. The number of attempts is pyarrow's default (three on S3).
CONNECT_TIMEOUT = 10.0
REQUEST_TIMEOUT = 30.0

_MAX_REASON_CHARS = 300

_Result = TypeVar("_Result")


def file_system(store: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI, and the path in it. Raises StoreError if it cannot be reached."""
    return _file_system(store, os.getpid())  # a forked child needs connections of its own


@lru_cache(maxsize=64)
def _file_system(store: str, _pid: int) -> tuple[fs.FileSystem, str]:
    found, path = remote_call(RemoteUri(store), lambda: fs.FileSystem.from_uri(parsable(store)))
    if isinstance(found, fs.S3FileSystem):
        found = _with_timeouts(found)
    return found, path.rstrip("/") or path


def _with_timeouts(found: fs.S3FileSystem) -> fs.S3FileSystem:
    """The same file system with timeouts, which a URI cannot set."""
    rebuild, (settings,) = found.__reduce__()
    timeouts = {"connect_timeout": CONNECT_TIMEOUT, "request_timeout": REQUEST_TIMEOUT}
    return rebuild({**settings, **timeouts})


def remote_call(uri: RemoteUri, call: Callable[[], _Result], reraised: tuple[type[Exception], ...] = ()) -> _Result:
    """The result of a call of pyarrow. Its errors become a StoreError about `uri`, except for those `reraised`."""
    try:
        return call()
    except reraised:
        raise
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        reason = masked(" ".join(str(error).split()), uri.store)
        if len(reason) > _MAX_REASON_CHARS:
            reason = f"{reason[:_MAX_REASON_CHARS]}..."
        raise StoreError(f"{uri}: cannot be read ({reason}): check the URI, the credentials and the network") from None


def path_in_system(uri: RemoteUri) -> str:
    """The path of a URI's file in its file system."""
    _, base = file_system(uri.store)
    parts = base.rstrip("/").split("/")
    for name in filter(None, uri.subpath.split("/")):
        if name == "..":
            parts.pop()
        else:
            parts.append(name)
    return "/".join(parts) or base


def stamp_of(info: fs.FileInfo) -> Stamp | None:
    """Size and time of change of a file; None for a folder."""
    if info.type == fs.FileType.Directory:
        return None
    return Stamp(max(info.size or 0, 0), info.mtime_ns or 0)


_BLOCK = 64 * 1024
_MAX_BLOCKS = 512  # 32 MiB
# Larger reads bypass the cache: they would evict many blocks.
_LARGE = 4 * _BLOCK
_MAX_OPEN_FILES = 256
_FETCH_THREADS = 4
_LOOKUP_THREADS = 8

_Item = TypeVar("_Item")


def _file(uri: RemoteUri) -> tuple[Any, int]:
    """Pyarrow's open file and its size in bytes. Raises StoreError if its size is not the listed one.

    A file that was not listed is not cached, because a change of it would not be noticed; nor are its blocks.
    """
    return _open(uri) if uri.stamp is None else _cached_file(uri, uri.stamp, os.getpid())


@lru_cache(maxsize=_MAX_OPEN_FILES)
def _cached_file(uri: RemoteUri, _stamp: Stamp, _pid: int) -> tuple[Any, int]:
    return _open(uri)


def _block(uri: RemoteUri, number: int) -> bytes:
    if uri.stamp is None:
        return fetch(uri, number * _BLOCK, _BLOCK)
    return _cached_block(uri, uri.stamp, number, os.getpid())


@lru_cache(maxsize=_MAX_BLOCKS)
def _cached_block(uri: RemoteUri, _stamp: Stamp, number: int, _pid: int) -> bytes:
    return fetch(uri, number * _BLOCK, _BLOCK)


@lru_cache(maxsize=1)
def _fetch_threads(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_FETCH_THREADS, thread_name_prefix="dledger-fetch")


def _open(uri: RemoteUri) -> tuple[Any, int]:
    system, _ = file_system(uri.store)
    path = path_in_system(uri)
    try:
        file = remote_call(uri, lambda: system.open_input_file(path), (FileNotFoundError,))
    except FileNotFoundError:
        if uri.stamp is None:
            raise
        raise _deleted(uri) from None
    size = remote_call(uri, file.size)
    if uri.stamp is not None and size != uri.stamp.size:
        raise _changed(uri, f"{size} bytes")
    return file, size


def _deleted(uri: RemoteUri) -> StoreError:
    return StoreError(f"{uri}: expected the file that was listed, found none: it was deleted meanwhile, read again")


def _changed(uri: RemoteUri, found: str) -> StoreError:
    size = uri.stamp.size if uri.stamp is not None else 0
    return StoreError(
        f"{uri}: expected the {size} bytes that were listed, found {found}: it was changed meanwhile, read again"
    )


def check_unchanged(uri: RemoteUri) -> None:
    """Raises StoreError if a file was changed or deleted since it was listed, perhaps by another process."""
    if uri.stamp is None:
        return
    system, _ = file_system(uri.store)
    info = remote_call(uri, lambda: system.get_file_info(path_in_system(uri)))
    if info.type == fs.FileType.NotFound:
        raise _deleted(uri)
    found = stamp_of(info)
    if found != uri.stamp:
        raise _changed(uri, f"{found.size} bytes, written later" if found is not None else "a folder")


def size_of(uri: RemoteUri) -> int:
    """The size of a remote file in bytes: the listed one, else the current one."""
    return uri.stamp.size if uri.stamp is not None else _file(uri)[1]


def fetch(uri: RemoteUri, offset: int, size: int) -> bytes:
    """The bytes of a remote file at `offset`, by one request; fewer at its end.

    Raises StoreError if they cannot be read, or the file became shorter.
    """
    file, length = _file(uri)
    wanted = max(min(size, length - offset), 0)
    if wanted == 0:
        return b""
    try:
        data: bytes = remote_call(uri, lambda: file.read_at(wanted, offset), (FileNotFoundError,))
    except FileNotFoundError:
        raise _deleted(uri) from None
    if len(data) != wanted:
        raise _changed(uri, f"{offset + len(data)} bytes")
    return data


def fetch_later(uri: RemoteUri, offset: int, size: int, take: Callable[[int, bytes], None]) -> Future[None]:
    """Fetch bytes in a background thread, which then calls `take` with the offset and the bytes."""
    return _fetch_threads(os.getpid()).submit(lambda: take(offset, fetch(uri, offset, size)))


def read_remote(uri: RemoteUri, offset: int, size: int) -> bytes:
    """The bytes at `offset`, small reads from the cache; fewer at the end of the file. Raises as `fetch`."""
    if uri.stamp is not None:
        size = min(size, uri.stamp.size - offset)
    if offset < 0 or size <= 0:
        return b""
    if size >= _LARGE:
        return fetch(uri, offset, size)
    first, last = offset // _BLOCK, (offset + size - 1) // _BLOCK
    data = b"".join(_block(uri, number) for number in range(first, last + 1))
    return data[offset - first * _BLOCK :][:size]


def map_in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """The results for `items`, in their order; several calls wait for the network at the same time."""
    with ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="dledger-look") as threads:
        yield from threads.map(function, items)


@final
class OpenRemoteFile(OpenFile):
    """A remote file, opened for reading; see `store_file.OpenFile`."""

    TAIL_BLOCK = 1024 * 1024

    def __init__(self, uri: RemoteUri) -> None:
        self._uri = uri

    def size(self) -> int:
        return size_of(self._uri)

    def read(self, offset: int, size: int) -> bytes:
        return read_remote(self._uri, offset, size)


class RemoteStream(io.RawIOBase):
    """A remote file as a stream."""

    def __init__(self, uri: RemoteUri) -> None:
        self._uri = uri
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = OpenRemoteFile(self._uri).read_into(self._offset, memoryview(buffer).cast("B"))
        self._offset += count
        return count
