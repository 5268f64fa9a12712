"""Remote file systems, through ``pyarrow.fs``: paths, listings and ranged reads. Nothing is ever written.

A call takes tens of milliseconds there, so a folder is listed once for each look at a store, sizes come from listings,
and small reads go through a cache of blocks. What fails is a StoreError, never taken for a file that is short.
"""

from __future__ import annotations

import io
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, final

import pyarrow as pa
from pyarrow import fs

from pyspark_dledger.common.uris import RemoteUri, Stamp, is_in_bucket, masked, parsable
from pyspark_dledger.errors import StoreError

# Seconds; tried so often as pyarrow does by default (three times on S3).
CONNECT_TIMEOUT = 10.0
REQUEST_TIMEOUT = 30.0

_BLOCK = 64 * 1024
_MOST_BLOCKS = 512  # 32 MiB
# A read of at least so many bytes would only push others out of the cache.
_LARGE = 4 * _BLOCK
_MOST_OPEN = 256
_THREADS = 4
_LOOKERS = 8
_LONGEST_REASON = 300

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Status(NamedTuple):
    """What of an ``os.stat_result`` is known of a remote file or folder."""

    st_mode: int
    st_size: int
    st_mtime_ns: int


# File systems.


def file_system(store: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI, and the path in it. Raises StoreError where there is none that can be reached."""
    return _file_system(store, os.getpid())  # a connection is not shared with a child that was forked


@lru_cache(maxsize=64)
def _file_system(store: str, _pid: int) -> tuple[fs.FileSystem, str]:
    found, path = asking(RemoteUri(store), lambda: fs.FileSystem.from_uri(parsable(store)))
    if isinstance(found, fs.S3FileSystem):
        found = _with_timeouts(found)
    return found, path.rstrip("/") or path


def _with_timeouts(found: fs.S3FileSystem) -> fs.S3FileSystem:
    """The same file system, that does not wait for ever: a URI cannot say so."""
    rebuild, (settings,) = found.__reduce__()
    timeouts = {"connect_timeout": CONNECT_TIMEOUT, "request_timeout": REQUEST_TIMEOUT}
    return rebuild({**settings, **timeouts})


def asking(uri: RemoteUri, question: Callable[[], _Result], passed: tuple[type[Exception], ...] = ()) -> _Result:
    """What a call of pyarrow answers; its errors, but those `passed` on, as a StoreError that names `uri`."""
    try:
        return question()
    except passed:
        raise
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        reason = masked(" ".join(str(error).split()), uri.store)
        if len(reason) > _LONGEST_REASON:
            reason = f"{reason[:_LONGEST_REASON]}..."
        raise StoreError(f"{uri}: cannot be read ({reason}): check the URI, the credentials and the network") from None


def _gone(uri: RemoteUri) -> StoreError:
    return StoreError(f"{uri}: expected the file that was listed, found none: it was deleted meanwhile, read anew")


def place_in(uri: RemoteUri) -> str:
    """The path of a URI's file in its file system."""
    _, base = file_system(uri.store)
    parts = base.rstrip("/").split("/")
    for name in filter(None, uri.place.split("/")):
        if name == "..":
            parts.pop()
        else:
            parts.append(name)
    return "/".join(parts) or base


# Paths.


@dataclass(frozen=True)
class _Known:
    """What a file or folder was when it was listed."""

    is_dir: bool
    stamp: Stamp | None


class _Look:
    """What was listed at one look at a store: folders by their place, each with what is in it by name."""

    def __init__(self, store: str) -> None:
        self.store = store
        self._folders: dict[str, dict[str, _Known]] = {}
        self._single: dict[str, _Known | None] = {}

    def folder(self, place: str) -> dict[str, _Known]:
        """What is in a folder; nothing where there is none. A folder of queues is listed whole, with one call."""
        if place not in self._folders and self.stamp(place) is not None:
            return {}  # it was listed as a file
        if place not in self._folders:
            self._list(place, is_deep=place.rpartition("/")[2] == "consumequeue")
        return self._folders[place]

    def known(self, place: str) -> _Known | None:
        """What stands at a place, None for nothing."""
        parent, _, name = place.rpartition("/")
        # Above what was given, permissions may not allow to list.
        if place and ".." not in place.split("/"):
            return self.folder(parent).get(name)
        if place not in self._single:
            self._single[place] = self._ask(place)
        return self._single[place]

    def stamp(self, place: str) -> Stamp | None:
        """What a file was, as far as it was listed."""
        above, _, name = place.rpartition("/")
        known = self._folders.get(above, {}).get(name) if place else None
        known = known or self._single.get(place)
        return known.stamp if known is not None else None

    def _ask(self, place: str) -> _Known | None:
        uri = RemoteUri(self.store, place)
        system, _ = file_system(self.store)
        found = asking(uri, lambda: system.get_file_info(place_in(uri)))
        return None if found.type == fs.FileType.NotFound else _known_of(found)

    def _list(self, place: str, is_deep: bool) -> None:
        uri = RemoteUri(self.store, place)
        system, _ = file_system(self.store)
        base = place_in(uri)
        selector = fs.FileSelector(base, allow_not_found=True, recursive=is_deep)
        try:
            found = asking(uri, lambda: system.get_file_info(selector))
        except StoreError:
            # Some file systems do not list what is a file; others say that nothing is in it.
            known = self._single.get(place)
            if known is None or known.is_dir:
                raise
            found = []
        self._folders[place] = {}
        for info in found:
            inner = info.path.strip("/")[len(base.strip("/")) :].strip("/")
            above, _, name = inner.rpartition("/")
            folder = "/".join(filter(None, (place, above)))
            if name not in ("", ".", ".."):
                self._folders.setdefault(folder, {})[name] = _known_of(info)
            if is_deep and info.type == fs.FileType.Directory:
                self._folders.setdefault("/".join(filter(None, (place, inner))), {})


def _known_of(info: fs.FileInfo) -> _Known:
    if info.type == fs.FileType.Directory:
        return _Known(True, None)
    return _Known(False, Stamp(max(info.size or 0, 0), info.mtime_ns or 0))


class RemotePath:
    """A file or folder of a remote file system, with those of ``pathlib.Path``'s calls that only read.

    Paths that were derived from one another share one look: each folder is listed once.
    """

    def __init__(self, look: _Look, place: str, stamp: Stamp | None = None) -> None:
        self._look = look
        self._place = place
        self._stamp = stamp

    @classmethod
    def of(cls, uri: RemoteUri) -> RemotePath:
        """The path of a URI, with a look of its own."""
        return cls(_Look(uri.store), uri.place, uri.stamp)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath.of, (self.uri,)

    @property
    def store(self) -> str:
        """The URI that the store was given by."""
        return self._look.store

    @property
    def uri(self) -> RemoteUri:
        """Its URI, with what is known of a file that was listed."""
        return RemoteUri(self.store, self._place, self._stamp or self._look.stamp(self._place))

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.uri == other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def __lt__(self, other: RemotePath) -> bool:
        return self.parts < other.parts

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(place_in(self.uri)).parts

    @property
    def name(self) -> str:
        return PurePosixPath(place_in(self.uri)).name

    @property
    def parent(self) -> RemotePath:
        if len(PurePosixPath(place_in(self.uri)).parts) <= 1:
            return self  # a bucket, or the root of the file system
        above, _, name = self._place.rpartition("/")
        place = above if name not in ("", "..") else "/".join(filter(None, (self._place, "..")))
        return RemotePath(self._look, place)

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        path = self
        for part in PurePosixPath(name).parts:
            path = path._child(part)
        return path

    def _child(self, name: str) -> RemotePath:
        base, place = file_system(self.store)[1], f"{self._place}/{name}".strip("/")
        # Down again on the way that was gone up: the same place, and listed already.
        ups = self._place.split("/") if self._place else []
        if ups and set(ups) == {".."} and base.split("/")[-len(ups)] == name:
            place = "/".join(ups[1:])
        return RemotePath(self._look, place)

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def absolute(self) -> RemotePath:
        return self

    resolve = absolute

    def as_posix(self) -> str:
        return str(self)

    def is_relative_to(self, other: object) -> bool:
        if not isinstance(other, RemotePath) or other.store != self.store:
            return False
        return self.parts[: len(other.parts)] == other.parts

    def relative_to(self, other: RemotePath) -> PurePosixPath:
        if not self.is_relative_to(other):
            raise ValueError(f"{self} does not lie below {other}")
        return PurePosixPath(*self.parts[len(other.parts) :])

    def samefile(self, other: object) -> bool:
        return isinstance(other, RemotePath) and (self.parts, self.store) == (other.parts, other.store)

    def exists(self) -> bool:
        return self._known() is not None

    def is_dir(self) -> bool:
        known = self._known()
        return known is not None and known.is_dir

    def is_file(self) -> bool:
        known = self._known()
        return known is not None and not known.is_dir

    def stat(self) -> _Status:
        """Its size and time of change. Raises FileNotFoundError for what is not there."""
        known = self._known()
        if known is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        size, written = known.stamp or (0, 0)
        return _Status(stat.S_IFDIR if known.is_dir else stat.S_IFREG, size, written)

    def _known(self) -> _Known | None:
        return _Known(False, self._stamp) if self._stamp is not None else self._look.known(self._place)

    def missing_bucket(self) -> str | None:
        """The name of its bucket, where the file system says that there is none of that name."""
        if not is_in_bucket(self.store):
            return None
        system, base = file_system(self.store)
        bucket = base.split("/")[0]
        try:
            found = asking(self.uri, lambda: system.get_file_info(bucket))
        except StoreError:
            return None  # not everybody who may read a bucket may ask for it
        return bucket if found.type == fs.FileType.NotFound else None

    def iterdir(self) -> Iterator[RemotePath]:
        return (self / name for name in self._look.folder(self._place))

    def entries(self) -> list[RemoteEntry]:
        """What is in the folder, as ``os.scandir`` gives it."""
        return [RemoteEntry(path) for path in self.iterdir()]

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """The paths below that fit `pattern`, name by name; no ``**``."""
        first, _, rest = pattern.partition("/")
        for path in self.iterdir() if self.is_dir() else ():
            if fnmatchcase(path.name, first):
                if not rest:
                    yield path
                elif path.is_dir():
                    yield from path.glob(rest)

    def open(self, mode: str) -> io.BufferedReader:
        """The file opened for reading; `mode` is ``rb``. Raises FileNotFoundError for what is not there."""
        assert mode == "rb"
        self.stat()
        return io.BufferedReader(_Stream(self.uri))

    def read_bytes(self) -> bytes:
        """All of the file. Raises FileNotFoundError for what is not there."""
        with self.open("rb") as stream:
            return stream.read()


class RemoteEntry:
    """What stands in a remote folder, with the calls of an ``os.DirEntry``."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self.name = path.name

    @property
    def path(self) -> str:
        return str(self._path)

    def is_dir(self) -> bool:
        return self._path.is_dir()

    def is_file(self) -> bool:
        return self._path.is_file()

    def stat(self) -> _Status:
        return self._path.stat()


# Reading.


class _Reading:
    """The files of this process that are open, and the blocks that were read of them last.

    Of a file that was not listed nothing is kept: nothing would tell that it has changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[RemoteUri, Stamp | None], tuple[Any, int]] = OrderedDict()
        self._blocks: OrderedDict[tuple[RemoteUri, Stamp | None, int], bytes] = OrderedDict()

    def file(self, uri: RemoteUri) -> tuple[Any, int]:
        """Pyarrow's open file, and its size in bytes. Raises StoreError where it is not what was listed."""
        if uri.stamp is None:
            return _opened(uri)
        key = uri, uri.stamp
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        opened = _opened(uri)
        with self._lock:
            self._open[key] = opened
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)  # closed where nobody reads it any more
        return opened

    def block(self, uri: RemoteUri, number: int) -> bytes:
        if uri.stamp is None:
            return fetch(uri, number * _BLOCK, _BLOCK)
        key = uri, uri.stamp, number
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
                return found
        data = fetch(uri, number * _BLOCK, _BLOCK)
        with self._lock:
            self._blocks[key] = data
            while len(self._blocks) > _MOST_BLOCKS:
                self._blocks.popitem(last=False)
        return data


@lru_cache(maxsize=1)
def _reading_of(_pid: int) -> _Reading:
    return _Reading()


@lru_cache(maxsize=1)
def _threads_of(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="dledger-fetch")


def _opened(uri: RemoteUri) -> tuple[Any, int]:
    system, _ = file_system(uri.store)
    path = place_in(uri)
    try:
        file = asking(uri, lambda: system.open_input_file(path), (FileNotFoundError,))
    except FileNotFoundError:
        if uri.stamp is None:
            raise
        raise _gone(uri) from None
    size = asking(uri, file.size)
    if uri.stamp is not None and size != uri.stamp.size:
        raise _changed(uri, f"{size} bytes")
    return file, size


def _changed(uri: RemoteUri, found: str) -> StoreError:
    size = uri.stamp.size if uri.stamp is not None else 0
    return StoreError(
        f"{uri}: expected the {size} bytes that were listed, found {found}: it was changed meanwhile, read anew"
    )


def check_unchanged(uri: RemoteUri) -> None:
    """Raises StoreError where a file is not any more what was listed, perhaps long ago and by another process."""
    if uri.stamp is None:
        return
    system, _ = file_system(uri.store)
    now = asking(uri, lambda: system.get_file_info(place_in(uri)))
    if now.type == fs.FileType.NotFound:
        raise _gone(uri)
    found = _known_of(now).stamp
    if found != uri.stamp:
        raise _changed(uri, f"{found.size} bytes, written later" if found is not None else "a folder")


def size_of(uri: RemoteUri) -> int:
    """The size of a remote file in bytes: as it was listed, else as it is now."""
    return uri.stamp.size if uri.stamp is not None else _reading_of(os.getpid()).file(uri)[1]


def fetch(uri: RemoteUri, offset: int, size: int) -> bytes:
    """The bytes of a remote file at `offset`, by one request; fewer at its end.

    Raises StoreError where it cannot be read, and where it has become shorter.
    """
    file, length = _reading_of(os.getpid()).file(uri)
    wanted = max(min(size, length - offset), 0)
    if wanted == 0:
        return b""
    try:
        data: bytes = asking(uri, lambda: file.read_at(wanted, offset), (FileNotFoundError,))
    except FileNotFoundError:
        raise _gone(uri) from None
    if len(data) != wanted:
        raise _changed(uri, f"{offset + len(data)} bytes")
    return data


def fetch_later(uri: RemoteUri, offset: int, size: int, take: Callable[[int, bytes], None]) -> Future[None]:
    """Fetches bytes beside what goes on, a few at once, and hands them with their offset to `take`."""
    return _threads_of(os.getpid()).submit(lambda: take(offset, fetch(uri, offset, size)))


def read_remote(uri: RemoteUri, offset: int, size: int) -> bytes:
    """The bytes at `offset`, of which few come out of the cache; fewer at the end of the file. Raises as `fetch`."""
    if uri.stamp is not None:
        size = min(size, uri.stamp.size - offset)
    if offset < 0 or size <= 0:
        return b""
    if size >= _LARGE:
        return fetch(uri, offset, size)
    reading = _reading_of(os.getpid())
    first, last = offset // _BLOCK, (offset + size - 1) // _BLOCK
    data = b"".join(reading.block(uri, number) for number in range(first, last + 1))
    return data[offset - first * _BLOCK :][:size]


def side_by_side(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """The results for some items in their order; a few are worked on at once, each of which waits for the network."""
    with ThreadPoolExecutor(_LOOKERS, thread_name_prefix="dledger-look") as threads:
        yield from threads.map(function, items)


@final
class RemoteFile:
    """A remote file, opened for reading; see `files.OpenFile`. Nothing is known of holes: data is everywhere."""

    TAIL_BLOCK = 1024 * 1024

    def __init__(self, uri: RemoteUri) -> None:
        self._uri = uri

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def size(self) -> int:
        return size_of(self._uri)

    def read(self, offset: int, size: int) -> bytes:
        return read_remote(self._uri, offset, size)

    def extents(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        if start < end:
            yield start, end


class _Stream(io.RawIOBase):
    """A remote file as a stream."""

    def __init__(self, uri: RemoteUri) -> None:
        self._uri = uri
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = read_remote(self._uri, self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
