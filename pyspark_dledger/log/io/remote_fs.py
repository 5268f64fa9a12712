"""Remote file systems, through ``pyarrow.fs``. Errors become a StoreError that names the URI without its secrets."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from pyspark_dledger.common.uris import RemoteUri, Stamp, masked, parsable
from pyspark_dledger.errors import StoreError

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
