"""What makes the names in a folder outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync_dir(folder: Path) -> None:
    """Make names in a folder durable: files that were created, renamed or deleted. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
