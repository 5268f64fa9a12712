"""That a broker has a store, and how it ended the last time: the files ``lock`` and ``abort`` below the root.

Source: RocketMQ 5.3.3 ``DefaultMessageStore.start``, ``createTempFile``, ``isTempFileExist``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError, StoreInUseError

LOCK = "lock"
ABORT = "abort"

# Java's FileChannel.tryLock(0, 1, false) is a lock of the process: a second one of the same process would be granted.
_held: set[tuple[int, int]] = set()


class Presence:
    """One holder of a storePathRootDir, from `acquire` to `release`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor = -1
        self._file = (0, 0)

    def acquire(self) -> bool:
        """Take the store. True where `ABORT` shows that it was not closed the last time.

        Raises StoreError where a broker or a node has it, or where the files cannot be written.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self.hold()
            abort = self._root / ABORT
            is_unclean = abort.exists()
            if not is_unclean:
                _write_durably(abort, f"{os.getpid()}".encode())
        except OSError as error:
            self.let_go()
            raise StoreError(f"{self._root}: expected a folder to write, found {error}: check permissions") from error
        return is_unclean

    def hold(self) -> None:
        """Lock the first byte, as Java does: so that neither of the two opens what the other has."""
        path = self._root / LOCK
        # Before it is opened: closing any descriptor of a file lets go of all locks that the process has on it.
        if path.exists() and _identity(path.stat()) in _held:
            raise StoreInUseError(
                f"{path}: expected a store that nobody writes, found it open in this process: close it"
            )
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            os.close(descriptor)
            raise StoreInUseError(
                f"{path}: expected a store that nobody writes, found it in use by a broker, a node or a job of "
                "Spark: end that, or use another folder"
            ) from None
        self._descriptor, self._file = descriptor, _identity(os.fstat(descriptor))
        _held.add(self._file)
        os.pwrite(descriptor, b"lock", 0)

    def release(self, is_clean: bool) -> None:
        """Let go of the store. Unless `is_clean`, the next to open it finds that it was not closed."""
        if self._descriptor < 0:
            return
        if is_clean:
            (self._root / ABORT).unlink(missing_ok=True)
            sync_dir(self._root)
        self.let_go()

    def let_go(self) -> None:
        """Let go of the lock alone."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _held.discard(self._file)
            os.close(descriptor)


@contextmanager
def held(root: Path) -> Iterator[None]:
    """Hold a storePathRootDir that is not opened, so that meanwhile neither a broker nor a node opens it.

    Raises StoreError where one has it, or where its lock cannot be written.
    """
    presence = Presence(root)
    try:
        presence.hold()
    except OSError as error:
        raise StoreError(f"{root / LOCK}: expected to lock it, found {error}: check permissions") from error
    try:
        yield
    finally:
        presence.let_go()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_dir(path.parent)
