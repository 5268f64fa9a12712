"""Finds the files of a store that cannot be opened: what is not read is never clean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark_dledger.common.uris import RemoteUri
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.epoch_file import FILES as EPOCH_FILES
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.files import is_there, map_reads, path_of
from pyspark_dledger.log.io.queue_files import FOLDER, folder_entries
from pyspark_dledger.log.io.store_paths import StorePaths, not_files

# The folders of a storePathRootDir, and how deep their files are.
_FOLDERS = {
    FOLDER: 3,
    "batchconsumequeue": 3,
    "consumequeue_ext": 3,
    "index": 1,
    "config": 1,
    "timerlog": 1,
    "compaction": 1,
}
_FILES = ("checkpoint", "abort", "lock", *EPOCH_FILES, "timerwheel")
# Names that are only given to files; and those of files with digits, where files are expected.
_FILE_NAME = re.compile(
    r"(checkpoint|currterm|position-checkpoint|epochFileCheckpoint|.+\.json)(\.bak|\.tmp)?|abort|lock|timerwheel|"
    r"snapshot_meta"
)
_NUMBERED = re.compile(r"\d{17}|\d{20}")
_MAX_DEPTH = 8


def unreadable_files(paths: StorePaths) -> Iterator[UnreadableError]:
    """Open each file of a store that is no segment, and read its first byte; gives the failures.

    Of segments, it gives those that are no files. Raises StoreError for a remote folder that cannot be listed.
    """
    errors: list[UnreadableError] = []
    files = [str(file) for file in _files(paths, errors)]
    yield from errors
    for error in map_reads(_first_byte, files, paths.path):
        if error is not None:
            yield error


def unreadable_segments(segments: Sequence[Segment], path: str) -> dict[int, UnreadableError]:
    """The segments of a store at `path` whose first byte cannot be read, by their base."""
    errors = map_reads(_first_byte, [segment.path for segment in segments], path)
    return {segment.base: error for segment, error in zip(segments, errors, strict=True) if error is not None}


def unread_file(error: StoreError, segments: Sequence[Segment], path: str) -> UnreadableError:
    """What could not be read, if that is the reason for an error; else raises the error."""
    if isinstance(error, UnreadableError):
        return error
    for found in unreadable_segments(segments, path).values():
        return found
    raise error


def unreadable_witnesses(paths: StorePaths) -> tuple[str, ...]:
    """What cannot be read of the files that know messages, each with the reason. In a remote store a read fails."""
    if isinstance(paths.path, RemoteUri):
        return ()
    root = paths.root or paths.node_dir or path_of(paths.path)
    found = ((path_of(error.path), error.reason) for error in unreadable_files(paths))
    named = ((file.relative_to(root) if file.is_relative_to(root) else file, reason) for file, reason in found)
    return tuple(f"{file} cannot be read ({reason})" for file, reason in named if file.parts[0] != "config")


def _first_byte(file: str) -> UnreadableError | None:
    try:
        read_existing(file, 0, 1)
    except UnreadableError as error:
        return UnreadableError(error.path, error.reason)
    return None


def _files(paths: StorePaths, errors: list[UnreadableError]) -> Iterator[Path]:
    if paths.only is None:
        dirs = (*paths.data_dirs, *paths.commitlog_dirs)
        errors.extend(UnreadableError(str(path), "not a file") for path in not_files(dirs))
    if paths.node_dir is not None:
        yield from _below(paths.node_dir / "index", 1, errors)
        if paths.only is None:
            for entry in folder_entries(paths.node_dir, errors.append):
                if entry.name not in ("data", "index"):
                    yield from _at(paths.node_dir / entry.name, _MAX_DEPTH, errors)
    root = paths.root
    if root is None or not (paths.commitlog_dirs or is_there(root / FOLDER)) or _has_other_nodes(paths, root):
        return
    for name, depth in _FOLDERS.items() if paths.only is None else [(FOLDER, 3)]:
        if is_there(root / name) and not (root / name).is_dir():
            errors.append(UnreadableError(str(root / name), "not a folder"))
        else:
            yield from _below(root / name, depth, errors)
    for name in _FILES if paths.only is None else ():
        if is_there(root / name):
            yield from _at(root / name, 0, errors)


def _has_other_nodes(paths: StorePaths, root: Path) -> bool:
    """Whether the queues of a root may belong to another node's log."""
    nodes = [path for path in root.glob("dledger-*") if path.is_dir()]
    return len(nodes) > (paths.node_dir is not None)


def _below(folder: Path, depth: int, errors: list[UnreadableError]) -> Iterator[Path]:
    for entry in folder_entries(folder, errors.append):
        yield from _at(path_of(entry.path), depth - 1, errors)


def _at(path: Path, depth: int, errors: list[UnreadableError]) -> Iterator[Path]:
    """The files at or below a path; `depth` is 0 where files are expected."""
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        errors.append(UnreadableError(str(path), error.strerror or str(error)))
        return
    if is_file:
        yield path
    elif is_folder and not _is_of_file(path.name, depth) and depth > -_MAX_DEPTH:
        yield from _below(path, depth, errors)
    elif is_there(path):
        errors.append(UnreadableError(str(path), "not a file"))


def _is_of_file(name: str, depth: int) -> bool:
    return bool(_FILE_NAME.fullmatch(name) or (not depth and _NUMBERED.fullmatch(name)))
