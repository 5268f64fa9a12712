"""Whether a process uses a store, or a job that writes it is unfinished: then files of it change, or are missing.

A read takes no lock itself. It asks Linux which locks are taken; on other systems it only sees changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.files import is_remote_path, open_local, path_of, read_start
from pyspark_dledger.log.io.store_paths import ROOT_FOLDERS, StorePaths

_LOCK = "lock"
_LOCKS = Path("/proc/locks")
_END_BYTES = 64
# type, whence, start, size, process: `struct flock` of 64-bit Linux.
_FLOCK = struct.Struct("hhqqi4x")

_Stamp = tuple[int, int, int]


class StoreUse(NamedTuple):
    """A store in use: the lock files that are taken, and the files that changed while they were read."""

    locks: tuple[Path, ...]
    changed: tuple[Path, ...]


class StoreWatch:
    """Notes the files of a store before a read, to tell after it whether a process uses the store."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._locks = set(taken_locks(paths))
        self._stamps = _stamps(paths)
        self._ends: list[tuple[Segment, int, bytes]] = []

    def note_end(self, segment: Segment, pos: int) -> None:
        """Note the bytes where a log ends: a write through mapped memory changes no time of some file systems."""
        self._ends.append((segment, pos, _bytes_at(segment, pos)))

    def use(self) -> StoreUse | None:
        """What shows that the store is in use: locks taken at the begin or now, and changes since the begin.

        None if nothing shows it. Files that were created or deleted count as changed. A remote store has no locks, and
        its reads notice changes themselves.
        """
        locks = self._locks | set(taken_locks(self._paths))
        found = _stamps(self._paths)
        changed = {path for path, _stamp in self._stamps.items() ^ found.items()}
        changed |= {Path(segment.path) for segment, pos, data in self._ends if data != _bytes_at(segment, pos)}
        return StoreUse(tuple(sorted(locks)), tuple(sorted(changed))) if locks or changed else None


def taken_locks(paths: StorePaths) -> tuple[Path, ...]:
    """The lock files of a store that a process has locked: a broker's, a node's, or both.

    A DLedger server of Java without a broker takes no lock. A node in another container can be missed.
    """
    folders = [folder for folder in (paths.root, paths.node_dir) if folder is not None]
    files = (folder / _LOCK for folder in folders if not is_remote_path(folder))
    return tuple(file for file in files if _is_taken(file))


def _is_taken(file: Path) -> bool:
    if not sys.platform.startswith("linux") or not file.is_file():
        return False
    # Only if no lock is listed: closing a file releases all locks that this process has on it.
    return _is_listed(file) or _is_locked_for_others(file)


def _is_listed(file: Path) -> bool:
    """Whether the kernel lists a lock of a file. It does not list those of processes in other containers."""
    try:
        status = file.stat()
        lines = _LOCKS.read_text("utf-8").splitlines()
    except OSError:
        return False
    # Some file systems have a device of their own for each mount, and another one in the list.
    device = None if os.major(status.st_dev) == 0 else (os.major(status.st_dev), os.minor(status.st_dev))
    for line in lines:
        place = next((word for word in line.split() if word.count(":") == 2), "")
        major, _, rest = place.partition(":")
        minor, _, inode = rest.partition(":")
        if inode == str(status.st_ino) and (device or (0, int(minor, 16))) == (int(major, 16), int(minor, 16)):
            return True
    return False


def _is_locked_for_others(file: Path) -> bool:
    """Whether another process has locked the first byte, as Java does. The question takes no lock."""
    try:
        descriptor = open_local(file)
    except OSError:
        return False
    try:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _bytes_at(segment: Segment, pos: int) -> bytes:
    return segment.read(pos, _END_BYTES)


def _stamps(paths: StorePaths) -> dict[Path, _Stamp]:
    """Inode, size and time of change of each file of a local store; of a given segment only."""
    found: dict[Path, _Stamp] = {}
    for file in _files(paths):
        with suppress(OSError):  # deleted meanwhile
            status = file.stat()
            found[file] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


def _files(paths: StorePaths) -> Iterator[Path]:
    if paths.only is not None:
        yield from () if is_remote_path(paths.only) else (paths.only,)
        return
    root = paths.root
    folders = [*paths.data_dirs, *paths.commitlog_dirs, *([paths.node_dir] if paths.node_dir is not None else [])]
    if root is not None and not is_remote_path(root):
        folders += [root / name for name in ROOT_FOLDERS]
        yield from (path for path in root.iterdir() if path.is_file())
    for folder in folders:
        if not is_remote_path(folder):
            yield from (Path(below, name) for below, _, names in os.walk(folder) for name in names)


MANIFEST = "_export.json"
"""The file in a target that says what is written there, and whether it is finished."""
RUNNING = "running"

_COMMANDS = {"salvage": "salvage", "commitlog": "export", "restore": "restore"}
"""The commands that write a store, by the ``form`` in their manifest."""
# A segment file is in TARGET/dledger-<id>/data.
_MAX_DEPTH = 4
_MAX_MANIFEST = 4 * 1024 * 1024
_being_written: set[Path] = set()


@contextmanager
def written_here(target: Path) -> Iterator[None]:
    """Let this process read a store that it writes to `target`."""
    real = Path(os.path.realpath(target))
    _being_written.add(real)
    try:
        yield
    finally:
        _being_written.discard(real)


def check_finished(path: str) -> None:
    """Raises StoreError if `path` is in the target of an unfinished job. Not for remote paths."""
    given = path_of(path)
    if is_remote_path(given):
        return
    real = Path(os.path.realpath(given))
    for folder in islice((real, *real.parents), _MAX_DEPTH):
        command = _unfinished(folder / MANIFEST) if folder not in _being_written else None
        if command is not None:
            raise StoreError(
                f"{path}: expected a store, found an unfinished {command} in {folder}: run the same dledger {command} "
                "again to finish it"
            )


def _unfinished(manifest: Path) -> str | None:
    """The command whose manifest says that it is running, or was interrupted."""
    found = _read(manifest)
    return _COMMANDS.get(str(found.get("form"))) if found.get("state") == RUNNING else None


@dataclass(frozen=True)
class KnownLoss:
    """What a salvage knew to be lost after the end of the log that it wrote: the last index or position; -1 if none."""

    last_index: int = -1
    last_pos: int = -1


def known_loss(path: str) -> KnownLoss | None:
    """What a salvage lost at the end of the log at `path`, which it wrote, or which was exported from its result.

    None if it lost nothing, and without a salvage.
    """
    report = _manifest_of(path, "salvage", "commitlog").get("report")
    found = report if isinstance(report, dict) else {}
    last_index, end = (found.get(name) for name in ("lost_after", "lost_until"))
    loss = KnownLoss(last_index if isinstance(last_index, int) else -1, end - 1 if isinstance(end, int) else -1)
    return loss if loss != KnownLoss() else None


def losses_of_all(losses: Mapping[str, KnownLoss | None], ends: Mapping[str, KnownLoss]) -> dict[str, KnownLoss]:
    """The known losses of members, by their names, that no other member has; `ends` are the ends of all logs."""
    others = [ends[name] for name, loss in losses.items() if loss is None]
    last_index = max((end.last_index for end in others), default=-1)
    last_pos = max((end.last_pos for end in others), default=-1)
    return {
        name: loss
        for name, loss in losses.items()
        if loss is not None and (loss.last_index > last_index or loss.last_pos > last_pos)
    }


def salvaged_from(path: str) -> tuple[str, ...]:
    """The sources of the salvage that wrote the store at `path`; empty for any other store."""
    sources = _manifest_of(path, "salvage").get("sources")
    return tuple(map(str, sources)) if isinstance(sources, list) else ()


def _manifest_of(path: str, *forms: str) -> dict[str, Any]:
    """The manifest of the job of one of these forms that wrote the store at `path`; empty for any other store."""
    given = path_of(path)
    found = {} if is_remote_path(given) else _read(Path(os.path.realpath(given)) / MANIFEST)
    return found if found.get("form") in forms else {}


def _read(manifest: Path) -> dict[str, Any]:
    """The object in a manifest; empty without one, or if it is damaged."""
    try:
        found = json.loads(read_start(manifest, _MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
