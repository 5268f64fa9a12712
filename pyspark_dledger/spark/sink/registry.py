"""The registry of sink processes: a stream finds the process of its earlier micro-batches here.

It is a folder of files that only this user can read: address, secret and lease of a process. Each file has a lock,
which is held while a process is looked up and started. A process that ends removes its files.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.spark.sink.control import SinkAddress


def registry_file(key: str) -> Path:
    """Return the file for `key`. Raises DLedgerError if others can access its folder."""
    folder = Path(tempfile.gettempdir()) / f"pyspark-dledger-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DLedgerError(f"{folder}: expected a folder that only this user can access, found another: remove it")
    return folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.json"


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a registry file."""
    descriptor = _lock(file.with_suffix(".lock"), fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, operation: int) -> int:
    """Return the descriptor of a held lock. Raises BlockingIOError with LOCK_NB."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, operation)
            # The last owner may have removed the file.
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def read_sink(file: Path) -> SinkAddress | None:
    """Return the registered process, or None."""
    try:
        found = SinkAddress(**json.loads(file.read_text()))
        return found._replace(tls=tuple(found.tls))
    except (OSError, ValueError, TypeError):
        return None


def write_sink(file: Path, sink: SinkAddress) -> None:
    """Register a process. The caller holds the lock."""
    temporary = file.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as stream:
        json.dump(sink._asdict(), stream)
    temporary.replace(file)


def remove_sink(file: Path, pid: int) -> None:
    """Remove the files of a process, unless they are another's or locked."""
    lock = file.with_suffix(".lock")
    # A file that stays does no harm: its process does not respond.
    with suppress(OSError):
        descriptor = _lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            found = read_sink(file)
            if found is None or found.pid == pid:
                file.unlink(missing_ok=True)
                lock.unlink()
        finally:
            os.close(descriptor)
