"""Writes files, and makes files and folder entries survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(file: Path, data: bytes) -> None:
    """Create or overwrite a file; its folder entry is not yet durable. Raises OSError."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


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


def sync_file(file: Path) -> None:
    """Make a file's content durable, also if another process wrote it. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_dir(folder: Path) -> None:
    """Create a folder and its missing parents, durably. Raises OSError."""
    if not folder.is_dir():
        make_dir(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_dir(folder.parent)


def sync_dir(folder: Path) -> None:
    """Make creations, renames and deletions in a folder durable. Raises OSError."""
    sync_file(folder)
