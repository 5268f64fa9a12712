"""The lock that allows one writer per store: on a file of the node's folder, released with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pyspark_dledger.errors import StoreInUseError


class StoreLock:
    """Held from `acquire` to `release`. The file stays and contains the process id of the last owner."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1

    def acquire(self) -> None:
        """Raises StoreInUseError with the process id if another process has the store open."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreInUseError(
                f"{self._file.parent}: the store is in use by process {owner}: stop that process, or use another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
