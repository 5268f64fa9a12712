"""The target folder of a job: its lock, and files that get their names once they are complete.

The manifest ``_export.json`` says what is written, from where, and whether it is finished. ``_export/part-NNNNN.json``
is the report of a part, written when all files of the part are there and verified. ``_export/part-NNNNN.left`` is the
file that a part leaves for the end of the job. Spark and Hive ignore names that begin with an underscore.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark_dledger.common.durable import cannot_write, full_disk, make_dir, sync_dir
from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.common.uris import is_remote, local_target, store_path
from pyspark_dledger.errors import OptionError, StoreError, StoreInUseError, UnreadableError
from pyspark_dledger.log.io.files import is_remote_path, path_of, unreadable
from pyspark_dledger.log.io.store_paths import with_data_dirs
from pyspark_dledger.log.io.store_use import MANIFEST, RUNNING, written_here
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.jobs.manifest import FileReport, read_manifest

STATE_FOLDER = "_export"
FINISHED = "finished"
"""The ``state`` of a manifest that is not `RUNNING`."""

_PART = "part-{:05d}"
_TEMPORARY = "tmp"
_STORE_FOLDERS = ("consumequeue", "batchconsumequeue", "index", "config")
# A page of a mapped file that has holes needs this much memory of a tmpfs, which can be full.
_FULL_BELOW = 64 * 1024


def target_path(target: str | os.PathLike[str]) -> Path:
    """The folder to write to. Raises OptionError for an empty or remote path."""
    if not os.fspath(target):
        raise OptionError("expected a folder to write to, found an empty path: name a folder")
    return Path(local_target(os.path.realpath(local_target(os.fspath(target)))))


def absolute_path(path: str) -> str:
    """The path of a store for any process: a URI, or an absolute path.

    Links are resolved, unless only a link avoids a name that is not UTF-8.
    """
    found = store_path(path)
    if is_remote(found):
        return found
    first, more = with_data_dirs(found)
    return ",".join(map(_real_path, (first, *more)))


def _real_path(path: str) -> str:
    real = os.path.realpath(path)
    return real if is_utf8(real) else str(Path(path).absolute())


def file_state(path: str) -> tuple[int, int] | None:
    """Size and time of a file of a source, which tell that it has not changed; None if there is none."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


@contextmanager
def source_errors(path: str | Path) -> Iterator[None]:
    """Raises errors of the system as UnreadableError: for a read of a source while the target is written."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) or StoreError(f"{path}: the file is gone: stop what deletes it") from error


@contextmanager
def target_errors(target: Path, verb: str) -> Iterator[None]:
    """Raises errors of the system as StoreError: that the target of a `verb` cannot be written, and why.

    On a full disk DiskFullError, also if a file of the target cannot be read because of that.
    """
    advice = f"run the same {verb} again to continue"
    try:
        yield
    except OSError as error:
        raise cannot_write(error.filename or target, error, advice) from error
    except UnreadableError as error:
        if not Path(error.path).is_relative_to(target) or _free_space(target) >= _FULL_BELOW:
            raise
        raise cannot_write(target, full_disk(), advice) from error


def _free_space(folder: Path) -> int:
    found = os.statvfs(next(each for each in (folder, *folder.parents) if each.exists()))
    return found.f_bavail * found.f_frsize


def check_apart(log: StoreView, sources: Sequence[str], target: Path) -> None:
    """Raises StoreError if the target is in the store or its replicas, or they in an earlier job's target."""
    paths = log.paths
    found = [*map(path_of, sources), paths.node_dir, *paths.data_dirs, *paths.commitlog_dirs]
    found += [paths.root / name for name in _STORE_FOLDERS] if paths.root is not None else []
    for path in found:
        if path is None or is_remote_path(path):
            continue
        real = Path(os.path.realpath(path))
        if target == real or real in target.parents:
            raise StoreError(f"{target}: the target is in the store {real}: name another folder")
        if target in real.parents and any(name in os.listdir(target) for name in (MANIFEST, STATE_FOLDER)):
            raise StoreError(f"{target}: the store {real} is in the target: name another folder")


@contextmanager
def locked_folder(target: Path, verb: str, mode: int = 0o777) -> Iterator[None]:
    """Lock the target, creating it and its parents if needed; new folders that stay empty are removed at the end.

    A new target gets `mode`. Errors are those of `target_errors`.

    Raises StoreError if it is a file, StoreInUseError if another `verb` has it locked.
    """
    with target_errors(target, verb):
        new = [folder for folder in (target, *target.parents) if not folder.exists()]
        if target.exists() and not target.is_dir():
            raise StoreError(f"{target}: expected a new or empty folder, found a file: name a folder")
        make_dir(target.parent)
        make_dir(target, mode)
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreInUseError(
                    f"{target}: another {verb} is writing to this folder: wait for its end, or name another folder"
                ) from None
            try:
                with written_here(target):
                    yield
            finally:
                with suppress(OSError):
                    for folder in new:
                        folder.rmdir()  # fails if it is not empty
        finally:
            os.close(descriptor)


def report_path(number: int) -> str:
    """The path of a part's report, relative to the target."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.json"


def left_path(number: int) -> str:
    """The path of the file that a part leaves for the end of the job."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.left"


def temporary_folder(target: Path) -> Path:
    """The folder of incomplete files. It is emptied at the start of a run, and removed at the end of a job."""
    return target / STATE_FOLDER / _TEMPORARY


def check_running(target: Path) -> None:
    """Raises StoreError unless the job is running: a broker may use the files of a finished one."""
    try:
        state = (read_manifest(target) or {}).get("state", "none")
    except StoreError:
        state = "none"
    if state != RUNNING:
        raise StoreError(
            f"{target}: expected the export of this part in state {RUNNING}, found {state}: the task is too late; it "
            "changed nothing"
        )


@contextmanager
def new_file(target: Path, path: str) -> Iterator[Path]:
    """Gives a unique temporary name for a file, and moves the file to `path` below the target after the block.

    The block must sync and verify the file; if it raises, nothing appears at `path`. New folders get the target's mode.
    Raises OSError, and StoreError if the job ended meanwhile.
    """
    folder = temporary_folder(target)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{uuid.uuid4().hex}{Path(path).suffix}"
    try:
        yield temporary
        final = target / path
        check_running(target)
        make_dir(final.parent, target.stat().st_mode & 0o777)
        temporary.replace(final)
        sync_dir(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def has_file(target: Path, file: FileReport) -> bool:
    """Whether a file exists with its size."""
    try:
        return (target / file.path).stat().st_size == file.size
    except OSError:
        return False
