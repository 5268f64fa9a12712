"""Paths on a remote file system, with the calls of ``pathlib.Path`` that read.

A call to the file system takes tens of milliseconds, so a folder is listed once for each opened store. Sizes of
files come from that listing.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pyarrow import fs

from pyspark_dledger.common.uris import RemoteUri, Stamp, is_in_bucket
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.remote_reads import RemoteStream, file_system, path_in_system, remote_call, stamp_of


class _Status(NamedTuple):
    """The fields of an ``os.stat_result`` that are known of a remote file or folder."""

    st_mode: int
    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True)
class _Listed:
    """A file or folder as it was listed; a folder has no stamp."""

    is_dir: bool
    stamp: Stamp | None


class _Listings:
    """The folders of a store that were listed, by their path in it; each has its files and folders by name."""

    def __init__(self, store: str) -> None:
        self.store = store
        self._folders: dict[str, dict[str, _Listed]] = {}
        self._single: dict[str, _Listed | None] = {}

    def folder(self, subpath: str) -> dict[str, _Listed]:
        """The contents of a folder; empty if it does not exist. ``consumequeue`` is listed recursively, by one call."""
        if subpath not in self._folders and self.stamp(subpath) is not None:
            return {}  # it is a file
        if subpath not in self._folders:
            self._list(subpath, is_deep=subpath.rpartition("/")[2] == "consumequeue")
        return self._folders[subpath]

    def find(self, subpath: str) -> _Listed | None:
        """The file or folder at a path below the store, or None."""
        parent, _, name = subpath.rpartition("/")
        # Permissions may not allow to list folders above the given one.
        if subpath and ".." not in subpath.split("/"):
            return self.folder(parent).get(name)
        if subpath not in self._single:
            self._single[subpath] = self._request(subpath)
        return self._single[subpath]

    def stamp(self, subpath: str) -> Stamp | None:
        """Size and time of change of a file that was listed."""
        above, _, name = subpath.rpartition("/")
        known = self._folders.get(above, {}).get(name) if subpath else None
        known = known or self._single.get(subpath)
        return known.stamp if known is not None else None

    def _request(self, subpath: str) -> _Listed | None:
        uri = RemoteUri(self.store, subpath)
        system, _ = file_system(self.store)
        found = remote_call(uri, lambda: system.get_file_info(path_in_system(uri)))
        return None if found.type == fs.FileType.NotFound else _listed(found)

    def _list(self, subpath: str, is_deep: bool) -> None:
        uri = RemoteUri(self.store, subpath)
        system, _ = file_system(self.store)
        base = path_in_system(uri)
        selector = fs.FileSelector(base, allow_not_found=True, recursive=is_deep)
        try:
            found = remote_call(uri, lambda: system.get_file_info(selector))
        except StoreError:
            # For the path of a file, some file systems raise an error and others list nothing.
            known = self._single.get(subpath)
            if known is None or known.is_dir:
                raise
            found = []
        self._folders[subpath] = {}
        for info in found:
            inner = info.path.strip("/")[len(base.strip("/")) :].strip("/")
            above, _, name = inner.rpartition("/")
            folder = "/".join(filter(None, (subpath, above)))
            if name not in ("", ".", ".."):
                self._folders.setdefault(folder, {})[name] = _listed(info)
            if is_deep and info.type == fs.FileType.Directory:
                self._folders.setdefault("/".join(filter(None, (subpath, inner))), {})


def _listed(info: fs.FileInfo) -> _Listed:
    return _Listed(info.type == fs.FileType.Directory, stamp_of(info))


class RemotePath:
    """A file or folder of a remote file system. Paths derived from one another share one cache of listings."""

    def __init__(self, listings: _Listings, subpath: str, stamp: Stamp | None = None) -> None:
        self._listings = listings
        self._subpath = subpath
        self._stamp = stamp

    @classmethod
    def of(cls, uri: RemoteUri) -> RemotePath:
        """The path of a URI, with an empty cache of listings."""
        return cls(_Listings(uri.store), uri.subpath, uri.stamp)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath.of, (self.uri,)

    @property
    def store(self) -> str:
        """The URI of the store, as the user gave it."""
        return self._listings.store

    @property
    def uri(self) -> RemoteUri:
        """Its URI, with size and time of change if it is a file that was listed."""
        return RemoteUri(self.store, self._subpath, self._stamp or self._listings.stamp(self._subpath))

    def __str__(self) -> str:
        return self.uri

    path = uri
    """Its URI, as of an ``os.DirEntry``."""

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
        return PurePosixPath(path_in_system(self.uri)).parts

    @property
    def name(self) -> str:
        return PurePosixPath(path_in_system(self.uri)).name

    @property
    def parent(self) -> RemotePath:
        if len(PurePosixPath(path_in_system(self.uri)).parts) <= 1:
            return self  # a bucket, or the root of the file system
        above, _, name = self._subpath.rpartition("/")
        subpath = above if name not in ("", "..") else "/".join(filter(None, (self._subpath, "..")))
        return RemotePath(self._listings, subpath)

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        path = self
        for part in PurePosixPath(name).parts:
            path = path._child(part)
        return path

    def _child(self, name: str) -> RemotePath:
        base, subpath = file_system(self.store)[1], f"{self._subpath}/{name}".strip("/")
        # A step down the path that led up: the same folder, which may be listed already.
        ups = self._subpath.split("/") if self._subpath else []
        if ups and set(ups) == {".."} and base.split("/")[-len(ups)] == name:
            subpath = "/".join(ups[1:])
        return RemotePath(self._listings, subpath)

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
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(*self.parts[len(other.parts) :])

    def samefile(self, other: object) -> bool:
        return isinstance(other, RemotePath) and (self.parts, self.store) == (other.parts, other.store)

    def exists(self) -> bool:
        return self._find() is not None

    def is_dir(self) -> bool:
        found = self._find()
        return found is not None and found.is_dir

    def is_file(self) -> bool:
        found = self._find()
        return found is not None and not found.is_dir

    def stat(self) -> _Status:
        """Its size and time of change. Raises FileNotFoundError if it does not exist."""
        found = self._find()
        if found is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        size, written = found.stamp or (0, 0)
        return _Status(stat.S_IFDIR if found.is_dir else stat.S_IFREG, size, written)

    def _find(self) -> _Listed | None:
        return _Listed(False, self._stamp) if self._stamp is not None else self._listings.find(self._subpath)

    def missing_bucket(self) -> str | None:
        """The name of its bucket, if the file system says that it does not exist; else None."""
        if not is_in_bucket(self.store):
            return None
        system, base = file_system(self.store)
        bucket = base.split("/")[0]
        try:
            found = remote_call(self.uri, lambda: system.get_file_info(bucket))
        except StoreError:
            return None  # permissions may allow to read files, but not to look up the bucket
        return bucket if found.type == fs.FileType.NotFound else None

    def iterdir(self) -> Iterator[RemotePath]:
        return (self / name for name in self._listings.folder(self._subpath))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """The paths below that match `pattern`, name by name; ``**`` is not supported."""
        first, _, rest = pattern.partition("/")
        for path in self.iterdir() if self.is_dir() else ():
            if fnmatchcase(path.name, first):
                if not rest:
                    yield path
                elif path.is_dir():
                    yield from path.glob(rest)

    def open(self, mode: str) -> io.BufferedReader:
        """Open the file for reading; `mode` is ``rb``. Raises FileNotFoundError if it does not exist."""
        assert mode == "rb"
        self.stat()
        return io.BufferedReader(RemoteStream(self.uri))

    def read_bytes(self) -> bytes:
        """The whole file. Raises FileNotFoundError if it does not exist."""
        with self.open("rb") as stream:
            return stream.read()
