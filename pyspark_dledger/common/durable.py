"""Makes files and folder entries survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(file: Path) -> None:
    """Make a file's content durable, also if another process wrote it. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_dir(folder: Path) -> None:
    """Make creations, renames and deletions in a folder durable. Raises OSError."""
    sync_file(folder)
