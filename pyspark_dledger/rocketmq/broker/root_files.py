"""Writes files of a broker's root: ``lock`` and ``abort``, whether its store is open, and the ``checkpoint``.

Source: RocketMQ 5.3.3 ``DefaultMessageStore.start``, ``createTempFile``, ``isTempFileExist``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_dledger.common.durable import (
    PRIVATE_FOLDER,
    cannot_write,
    open_own,
    sync_dir,
    write_durably,
    write_in_place,
)
from pyspark_dledger.errors import StoreError, StoreInUseError
from pyspark_dledger.log.io.state_files import CHECKPOINT, CHECKPOINT_SIZE, StoreCheckpoint

LOCK = "lock"
ABORT = "abort"

# POSIX locks, which Java's FileChannel.tryLock takes, do not exclude a second lock in the same process.
_locked: set[tuple[int, int]] = set()


class StoreLock:
    """The lock of a storePathRootDir, and its abort file, from `acquire` to `release`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor = -1
        self._file = (0, 0)

    def acquire(self) -> bool:
        """Lock the store and create `ABORT`. Returns whether it existed: the store was not closed cleanly.

        Raises StoreError if a broker or a node uses the store, or if the files cannot be written.
        """
        try:
            self._root.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            self.lock()
            abort = self._root / ABORT
            is_unclean = abort.exists()
            if not is_unclean:
                write_durably(abort, f"{os.getpid()}".encode())
                sync_dir(self._root)
        except OSError as error:
            self.unlock()
            raise StoreError(f"{self._root}: cannot be written: {error}: check permissions") from error
        return is_unclean

    def lock(self) -> None:
        """Lock the first byte, as Java does: broker and node exclude each other."""
        path = self._root / LOCK
        # Before it is opened: closing any descriptor of a file releases all locks of the process on it.
        if path.exists() and _identity(path.stat()) in _locked:
            raise StoreInUseError(f"{path}: the store is open in this process: close it")
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            os.close(descriptor)
            raise StoreInUseError(
                f"{path}: the store is in use by a broker, a node or a job of Spark: stop it, or use another folder"
            ) from None
        self._descriptor, self._file = descriptor, _identity(os.fstat(descriptor))
        _locked.add(self._file)
        os.pwrite(descriptor, b"lock", 0)

    def release(self, is_clean: bool) -> None:
        """Unlock the store. Unless `is_clean`, `ABORT` stays."""
        if self._descriptor < 0:
            return
        if is_clean:
            (self._root / ABORT).unlink(missing_ok=True)
            sync_dir(self._root)
        self.unlock()

    def unlock(self) -> None:
        """Release the lock only."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _locked.discard(self._file)
            os.close(descriptor)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock a storePathRootDir without opening it, so that neither a broker nor a node opens it meanwhile.

    Raises StoreError if one uses it, or if its lock cannot be written.
    """
    lock = StoreLock(root)
    try:
        lock.lock()
    except OSError as error:
        raise cannot_write(root / LOCK, error, "try again") from error
    try:
        yield
    finally:
        lock.unlock()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def write_store_checkpoint(root: Path, checkpoint: StoreCheckpoint) -> None:
    """Write the checkpoint durably, in place as RocketMQ does. Raises StoreError if that fails.

    The numbers are in one sector: a crash leaves the old ones or the new ones.
    """
    try:
        write_in_place(root / CHECKPOINT, checkpoint.pack(), 0, CHECKPOINT_SIZE)
    except OSError as error:
        raise cannot_write(root / CHECKPOINT, error, "try again") from error
