"""Sparse files of one size, created on the first write; the least recently used ones are closed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.common.durable import PRIVATE_FOLDER, open_own, sync_dir, write_at

_MAX_OPEN_FILES = 256


class SparseFiles:
    """Files of `size` bytes, by path. Raises OSError if the disk fails."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._dirty: set[Path] = set()
        self._changed_dirs: set[Path] = set()

    def write(self, path: Path, offset: int, data: bytes) -> None:
        write_at(self._descriptor(path), data, offset)
        self._dirty.add(path)

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = open_own(path, os.O_RDWR)
        except FileNotFoundError:
            descriptor = self._create(path)
        if os.fstat(descriptor).st_size < self._size:
            os.ftruncate(descriptor, self._size)
        self._open[path] = descriptor
        if len(self._open) > _MAX_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _create(self, path: Path) -> int:
        for folder in _missing_folders(path.parent):
            folder.mkdir(PRIVATE_FOLDER)
            self._changed_dirs.add(folder.parent)
        self._changed_dirs.add(path.parent)
        return open_own(path, os.O_RDWR | os.O_CREAT)

    def truncate(self, path: Path, size: int) -> None:
        """Zero everything after the first `size` bytes; the file keeps its length."""
        descriptor = self._descriptor(path)
        os.ftruncate(descriptor, size)
        os.ftruncate(descriptor, self._size)
        self._dirty.add(path)

    def delete(self, path: Path) -> None:
        self._dirty.discard(path)
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
        path.unlink(missing_ok=True)
        self._changed_dirs.add(path.parent)

    def sync(self) -> None:
        """Make all writes durable, with the folders of new and deleted files."""
        for path in list(self._dirty):
            self._dirty.discard(path)
            try:
                os.fsync(self._descriptor(path))
            except BaseException:
                self._dirty.add(path)
                raise
        while self._changed_dirs:
            folder = self._changed_dirs.pop()
            if folder.is_dir():
                sync_dir(folder)

    def close(self) -> None:
        for descriptor in self._open.values():
            with suppress(OSError):
                os.close(descriptor)
        self._open.clear()


def _missing_folders(folder: Path) -> Iterator[Path]:
    """The folder and its parents that do not exist, the topmost first."""
    if not folder.is_dir():
        yield from _missing_folders(folder.parent)
        yield folder
