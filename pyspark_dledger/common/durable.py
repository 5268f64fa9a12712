"""Writes files, and makes files and folder entries survive a power loss."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from pyspark_dledger.errors import DiskFullError, StoreError

PRIVATE_FOLDER = 0o700
"""The mode of the folders of a store: its messages are for its user only."""
_PRIVATE_FILE = 0o600
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_write(path: str | Path, error: OSError, advice: str) -> StoreError:
    """An error of the system for a write, as an error for the user: what cannot be written, why, and what to do."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFullError(f"{path}: cannot be written: no space left ({reason}): free some, then {advice}")
    return StoreError(f"{path}: cannot be written ({reason}): fix this, then {advice}")


def full_disk() -> OSError:
    """The system's error for a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_own(file: Path, flags: int, mode: int = _PRIVATE_FILE) -> int:
    """Open or create a file for writing. Raises OSError, also for a link, which could lead out of the store.

    ``flags`` are those of ``os.open``; a new file gets ``mode``.
    """
    try:
        descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    except OSError as error:
        if not file.is_symlink():
            raise
        problem = "expected a file, found a symbolic link: remove it"
        raise OSError(error.errno, problem, str(file)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a file, found something else: move it away", str(file))
    return descriptor


def write_durably(file: Path, data: bytes | bytearray | memoryview, mode: int = _PRIVATE_FILE) -> None:
    """Create or overwrite a file; its folder entry is not yet durable. Raises OSError, as `open_own`."""
    descriptor = open_own(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_in_place(
    file: Path, data: bytes | memoryview, offset: int, size: int | None = None, mode: int = _PRIVATE_FILE
) -> None:
    """Write bytes into a file, which gets `size` bytes, durably; it is created if it is missing. Raises OSError."""
    descriptor = open_own(file, os.O_RDWR | os.O_CREAT, mode)
    try:
        if size is not None and os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, size)
        write_at(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(file: Path, data: bytes | bytearray | memoryview) -> None:
    """Create or replace a file, atomically and durably. Raises OSError; the old file stays then."""
    temporary = file.with_name(f"{file.name}.tmp")
    write_durably(temporary, data)
    temporary.replace(file)
    sync_dir(file.parent)


def write_at(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes at an offset of an open file. Raises OSError.

    The system writes at most 2 GiB at once, and less if the disk is nearly full.
    """
    view = memoryview(data)
    while view:
        wrote = os.pwrite(descriptor, view, offset)
        view, offset = view[wrote:], offset + wrote


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all bytes at the current position of an open file or pipe. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def drop_cached(descriptor: int, start: int = 0, size: int = 0) -> None:
    """Drop synced bytes of a file from the page cache, so that they are read from the disk; 0 for all to the end.

    Bytes that a process has mapped stay, and on systems without the call, such as macOS, all do.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)


def sync_file(file: Path) -> None:
    """Make a file's content durable, also if another process wrote it. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_dir(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, durably. Raises OSError."""
    if not folder.is_dir():
        make_dir(folder.parent, mode)
        folder.mkdir(mode, exist_ok=True)
        sync_dir(folder.parent)


def sync_dir(folder: Path) -> None:
    """Make creations, renames and deletions in a folder durable. Raises OSError."""
    sync_file(folder)
