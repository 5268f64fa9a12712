"""The target folder of an export: its lock, its state, and files that get their names once they are complete.

The manifest ``_export.json`` says what is exported, from where, which range, and whether it is finished.
``_export/part-NNNNN.json`` is the report of a part, written when all files of the part are there and verified.
``_export/part-NNNNN.left`` is the file that a part leaves for the end of the export. Spark and Hive ignore names that
begin with an underscore. A finished export to Parquet has none of these, see `parquet_manifest`.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import make_dir, sync_dir, write_all, write_durably
from pyspark_dledger.errors import DiskFullError, StoreError, StoreInUseError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.log.io.files import is_remote_path, path_of, read_start
from pyspark_dledger.log.io.unfinished import MANIFEST, RUNNING, written_here
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.export.forms import FileReport, FinishReport, PartReport
from pyspark_dledger.rocketmq.export.parquet_manifest import read_parquet_manifest

STATE_FOLDER = "_export"
FINISHED = "finished"
"""The ``state`` of a manifest that is not `RUNNING`."""

_PART = "part-{:05d}"
_TEMPORARY = "tmp"
_BLOCK_BYTES = 8 * 1024 * 1024
_MAX_STATE_BYTES = 256 * 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STORE_FOLDERS = ("consumequeue", "batchconsumequeue", "index", "config")

USE_NEW_FOLDER = "export to a new folder"
"""The advice in errors of an export that cannot be continued."""


def report_path(number: int) -> str:
    """The path of a part's report, relative to the target."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.json"


def left_path(number: int) -> str:
    """The path of the file that a part leaves for `Form.finish`."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.left"


def temporary_folder(target: Path) -> Path:
    """The folder of incomplete files. It is emptied at the start of a run, and removed at the end of an export."""
    return target / STATE_FOLDER / _TEMPORARY


def cannot_write(target: Path, error: OSError) -> StoreError:
    """An error of the system, as an error for the user."""
    path = error.filename or target
    advice = "run the same export again to continue"
    if error.errno in _FULL:
        return DiskFullError(f"{path}: no space left ({error.strerror or error}): free some, then {advice}")
    return StoreError(f"{path}: cannot write the export ({error.strerror or error}): fix this, then {advice}")


# Before an export


def check_apart(log: StoreView, sources: Sequence[str], target: Path) -> None:
    """Raises StoreError if the target is in the store or its replicas, or they in an earlier export at the target."""
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
def locked_folder(target: Path, mode: int = 0o777) -> Iterator[None]:
    """Lock the target, creating it and its parents if needed; new folders that stay empty are removed at the end.

    A new target gets `mode`.

    Raises StoreError if it is a file, StoreInUseError if another export has it locked.
    """
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
                f"{target}: another export is writing to this folder: wait for its end, or name another folder"
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


# State


def write_manifest(target: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest, atomically and durably. Raises OSError."""
    temporary = target / f"{MANIFEST}.tmp"
    write_json(temporary, manifest)
    temporary.replace(target / MANIFEST)
    sync_dir(target)


def read_manifest(target: Path) -> dict[str, Any] | None:
    """The manifest of the export in `target`; None without one. Raises StoreError for a damaged one."""
    if (target / MANIFEST).exists():
        return read_json(target / MANIFEST)
    return read_parquet_manifest(target)


def delete_state(target: Path) -> None:
    """Delete the reports of parts, then the manifest. Raises OSError."""
    shutil.rmtree(target / STATE_FOLDER, ignore_errors=True)
    (target / MANIFEST).unlink()
    sync_dir(target)


def check_running(target: Path) -> None:
    """Raises StoreError unless the export is running: a broker may use the files of a finished one."""
    try:
        state = (read_manifest(target) or {}).get("state", "none")
    except StoreError:
        state = "none"
    if state != RUNNING:
        raise StoreError(
            f"{target}: expected the export of this part in state {RUNNING}, found {state}: the task is too late; it "
            "changed nothing"
        )


def write_json(file: Path, value: object) -> None:
    """Write JSON and sync it. Raises OSError."""
    write_durably(file, f"{json.dumps(value, indent=1)}\n".encode(), 0o666)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object that an export wrote. Raises StoreError for anything else."""
    try:
        data = read_start(file, _MAX_STATE_BYTES + 1)
        if len(data) > _MAX_STATE_BYTES:
            raise ValueError
        value = json.loads(data)
        if not isinstance(value, dict):
            raise TypeError
    except (OSError, ValueError, TypeError, RecursionError):
        raise not_ours(file) from None
    return value


def not_ours(file: Path) -> StoreError:
    """An error for a manifest or report that no export wrote."""
    return StoreError(f"{file}: not a file that an export wrote, or damaged: {USE_NEW_FOLDER}")


def complete_report(target: Path, number: int) -> PartReport | None:
    """The report of a part that an earlier run finished, if its files have their sizes. Raises StoreError."""
    file = target / report_path(number)
    if not file.exists():
        return None
    report = _read_report(file)
    files = report.files if report.left is None else (*report.files, report.left)
    return report if report.number == number and all(has_file(target, each) for each in files) else None


def _read_report(file: Path) -> PartReport:
    try:
        value = read_json(file)
        files = tuple(FileReport(**each) for each in value.pop("files"))
        left = value.pop("left")
        left = None if left is None else FileReport(**left)
        first_skipped, notes = tuple(value.pop("first_skipped")), tuple(value.pop("notes"))
        report = PartReport(files=files, left=left, first_skipped=first_skipped, notes=notes, **value)
        numbers = [report.number, report.rows, report.problems, report.skipped, report.source_bytes]
        numbers += report.counts.values()
        all_files = (*files, left) if left is not None else files
        numbers += [number for each in all_files for number in (each.size, each.crc32, each.rows)]
        texts = [each.path for each in all_files] + [*first_skipped, *notes]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError
        if not all(type(text) is str for text in texts):
            raise ValueError
        if left is not None and left.path != left_path(report.number):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StoreError(f"{file}: not a report of a part, or damaged: delete it to write the part again") from None
    return report


# Files


@contextmanager
def new_file(target: Path, path: str) -> Iterator[Path]:
    """Gives a unique temporary name for a file, and moves the file to `path` below the target after the block.

    The block must sync and verify the file; if it raises, nothing appears at `path`. Raises OSError, and StoreError if
    the export ended meanwhile.
    """
    folder = temporary_folder(target)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{uuid.uuid4().hex}{Path(path).suffix}"
    try:
        yield temporary
        final = target / path
        check_running(target)
        make_dir(final.parent)
        temporary.replace(final)
        sync_dir(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


class ChecksumFile(io.RawIOBase):
    """A new file that computes the CRC-32 of the bytes written to it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.crc32 = 0
        self._file = file.open("xb", buffering=0)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`. Raises OSError."""
        view = memoryview(data).cast("B")
        self.crc32 = crc32(view, self.crc32)
        write_all(self._file.fileno(), view)
        return len(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def file_report(file: Path, path: str, rows: int) -> FileReport:
    """The report of a file that will be at `path`, by reading all of it. Raises OSError."""
    crc = size = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = crc32(block, crc)
            size += len(block)
    return FileReport(path, size, crc, rows)


def read_back_error(path: str, expected: str, found: str) -> StoreError:
    """An error for a file that differs from what was written to it."""
    return StoreError(
        f"{path}: the file differs when read back: expected {expected}, found {found}: check the disk and the memory "
        "of this machine, and export again"
    )


def has_file(target: Path, file: FileReport) -> bool:
    """Whether a file exists with its size."""
    try:
        return (target / file.path).stat().st_size == file.size
    except OSError:
        return False


def check_files(target: Path, reports: Sequence[PartReport], finish: FinishReport) -> None:
    """Raises StoreError unless every file of all reports exists with its size."""
    for file in (*(file for report in reports for file in report.files), *finish.files):
        if not has_file(target, file):
            raise StoreError(
                f"{target / file.path}: the export wrote a file of {file.size} bytes, which is missing or changed: "
                "check that every executor sees the target, and that nobody else writes there"
            )


def left_file(target: Path, file: FileReport) -> Path:
    """The path of the file that a part left. Raises StoreError if it changed."""
    path = target / file.path
    found = file_report(path, file.path, file.rows)
    if found != file:
        raise StoreError(
            f"{path}: expected {file.size} bytes with CRC-32 {file.crc32:08x}, found {found.size} with "
            f"{found.crc32:08x}: check the disk; delete the file to write its part again"
        )
    return path


def delete_left(target: Path, reports: Sequence[PartReport]) -> None:
    """Delete the files that parts left for the end of the export, as far as possible."""
    for report in reports:
        if report.left is not None:
            with suppress(OSError):
                (target / report.left.path).unlink()
