"""The files by which a stream finds its process again: where that listens, and its secret, for this user only.

Beside each is a lock: who looks for a process, and starts one where there is none, holds it meanwhile; a process that
ends takes the files away under it.
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
from pyspark_dledger.spark.sink.lease import SinkProcess


def file_of(key: str) -> Path:
    """The file of what is to be found under `key`. Raises DLedgerError where somebody else made its folder."""
    return _folder() / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.json"


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"pyspark-dledger-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DLedgerError(f"{folder}: expected a folder that only this user can read, found another: remove it")
    return folder


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Of two processes that look for one that is not there only one starts it."""
    descriptor = _taken(file.with_suffix(".lock"), fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def _taken(lock: Path, operation: int) -> int:
    """The descriptor of a lock that is held. Raises BlockingIOError for one that is not to be waited for."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, operation)
            # Who had it may have taken the file away: then the lock is another one by now.
            if _is_at(lock, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def read_sink(file: Path) -> SinkProcess | None:
    """The process that a file names, if it names one."""
    try:
        return SinkProcess(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_sink(file: Path, sink: SinkProcess) -> None:
    """Name a process, under the lock."""
    temporary = file.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as stream:
        json.dump(sink._asdict(), stream)
    temporary.replace(file)


def forget_sink(file: Path, pid: int) -> None:
    """Take the files of a process away, unless they are those of one that follows, or somebody is starting that."""
    lock = file.with_suffix(".lock")
    # Files that stay do no harm: who reads them finds nobody there.
    with suppress(OSError):
        descriptor = _taken(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            found = read_sink(file)
            if found is None or found.pid == pid:
                file.unlink(missing_ok=True)
                lock.unlink()
        finally:
            os.close(descriptor)
