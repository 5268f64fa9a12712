"""The disk under a store that can lose power: of its unsynced blocks, any subset is lost.

A block that was written several times since the last sync comes back with any of these contents. Small files, which are
replaced as a whole, come back as they are or as they were when their folder was last synced; without a sync of its own
such a file is empty then. Files are created and deleted in order, as in journaling file systems.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark_dledger.store.files import mapped_files

_PWRITE, _FSYNC, _CREATE = os.pwrite, os.fsync, mapped_files.MappedFile.create
_SECTOR = 512


class Disk:
    """The disk of a folder. `on_event` is called at every moment of a possible power loss."""

    def __init__(self, root: Path, block: int, draw: random.Random) -> None:
        self.on_event: Callable[[], None] = lambda: None
        self.room: int | None = None
        # The next sync of a log fails; what it should have written is then on the disk only when it is written again.
        self.is_failing = False
        self._clean: dict[Path, set[int]] = {}
        self._root = root
        self._block = block
        self._draw = draw
        found = [path for path in root.rglob("*") if path.is_file()]
        self._durable = {path: path.read_bytes() for path in found if _is_of_log(path)}
        self._versions: dict[Path, dict[int, list[bytes]]] = {}
        # The small files that are synced, and those that each folder has after a power loss.
        self._synced = {_stamp(path) for path in found}
        self._named = {path: self._small_files(path) for path in (root, *filter(Path.is_dir, root.rglob("*")))}

    def pwrite(self, descriptor: int, path: Path, data: Any, offset: int) -> int:
        """As ``os.pwrite``, with little room or none if `room` says so."""
        if self.room is not None and bytes(data).strip(b"\0"):
            # File systems allocate whole sectors.
            end = (offset + self.room) // _SECTOR * _SECTOR
            data = memoryview(data)[: max(end - offset, 0)]
            self.room -= len(data)
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wrote = _PWRITE(descriptor, data, offset)
        if _is_of_log(path):
            versions = self._versions.setdefault(path, {})
            with path.open("rb", buffering=0) as file:  # the descriptor may be for writing only
                for number in range(offset // self._block, (offset + wrote - 1) // self._block + 1):
                    block = os.pread(file.fileno(), self._block, number * self._block)
                    versions.setdefault(number, []).append(block)
                    self._clean.get(path, set()).discard(number)
        self.on_event()
        return wrote

    def sync(self, path: Path) -> None:
        """Record the sync of a file or folder; nothing is synced to the real disk, to save time."""
        self.on_event()
        if _is_of_log(path) and self.is_failing and self._versions.get(path):
            self.is_failing = False
            self._clean.setdefault(path, set()).update(self._versions[path])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if _is_of_log(path):
            self._sync_log(path)
        elif path.is_dir():
            self._named[path] = self._small_files(path)
        else:
            self._synced.add(_stamp(path))

    def _sync_log(self, path: Path) -> None:
        clean = self._clean.get(path, set())
        kept, data = self._durable.get(path, bytes(path.stat().st_size)), bytearray(path.read_bytes())
        for number in clean:
            part = slice(number * self._block, (number + 1) * self._block)
            data[part] = kept[part]
        self._durable[path] = bytes(data)
        versions = self._versions.pop(path, {})
        if clean:
            self._versions[path] = {number: versions[number] for number in clean if number in versions}

    def create(self, file: mapped_files.MappedFile) -> None:
        self._durable.pop(file.path, None)
        self._versions.pop(file.path, None)
        _CREATE(file)

    def after_loss(self, target: Path) -> None:
        """Write the disk's content after the power loss to `target`."""
        target.mkdir()
        share = self._draw.choice((0.1, 0.5, 0.9))
        for path in (self._root, *sorted(self._root.rglob("*"))):
            there = target / path.relative_to(self._root)
            if path.is_dir():
                there.mkdir(exist_ok=True)
                is_old = self._draw.random() < 0.5
                for name, data in (self._named.get(path, {}) if is_old else self._small_files(path)).items():
                    (there / name).write_bytes(data)
            elif _is_of_log(path):
                there.write_bytes(self._kept(path, share))

    def _kept(self, path: Path, share: float) -> bytes:
        kept = bytearray(self._durable.get(path, bytes(path.stat().st_size)))
        for number, versions in self._versions.get(path, {}).items():
            if self._draw.random() < share:
                block = self._draw.choice([versions[-1], self._draw.choice(versions)])
                kept[number * self._block : number * self._block + len(block)] = block
        return bytes(kept)

    def _small_files(self, folder: Path) -> dict[str, bytes]:
        return {
            path.name: path.read_bytes() if _stamp(path) in self._synced else b""
            for path in sorted(folder.iterdir())
            if path.is_file() and not _is_of_log(path)
        }


@contextmanager
def connected(find: Callable[[Path], Disk | None]) -> Iterator[None]:
    """Let disks record all writes and syncs. `find` gives the disk of a path, None for other files."""

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        path = _path_of(descriptor)
        disk = find(path)
        return _PWRITE(descriptor, data, offset) if disk is None else disk.pwrite(descriptor, path, data, offset)

    def sync(descriptor: int) -> None:
        path = _path_of(descriptor)
        disk = find(path)
        _FSYNC(descriptor) if disk is None else disk.sync(path)

    def create(file: mapped_files.MappedFile) -> None:
        disk = find(file.path)
        _CREATE(file) if disk is None else disk.create(file)

    with (
        mock.patch.object(os, "pwrite", pwrite),
        mock.patch.object(os, "fsync", sync),
        mock.patch.object(mapped_files, "_sync_data", sync),
        mock.patch.object(mapped_files.MappedFile, "create", create),
    ):
        yield


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _is_of_log(path: Path) -> bool:
    return path.parent.name in ("data", "index") and path.name.isdigit()


def _stamp(path: Path) -> tuple[int, int, int]:
    """The same for the same content of a file, also after it was renamed."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
