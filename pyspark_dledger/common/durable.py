"""What makes the bytes of a file, and the names in a folder, outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(file: Path) -> None:
    """Make a file's bytes durable, whoever wrote them. Raises OSError."""
    _sync(file)


def sync_dir(folder: Path) -> None:
    """Make names in a folder durable: files that were created, renamed or deleted. Raises OSError."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
