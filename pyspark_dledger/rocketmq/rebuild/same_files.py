"""Compares a new folder with the one that it would replace, byte by byte."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_BLOCK = 1 << 20


def has_same_files(new: Path, old: Path, has_fixed_names: bool) -> bool:
    """Whether two folders have the same files. False if one does not exist or cannot be read.

    Files without fixed names are compared in the order of their names. Other things than files, such as links, differ.
    """
    try:
        new_paths, old_paths = _below(new), _below(old)
        if len(new_paths) != len(old_paths) or (has_fixed_names and list(new_paths) != list(old_paths)):
            return False
        pairs = list(zip(new_paths.values(), old_paths.values(), strict=True))
        return all(_kind_and_size(one) == _kind_and_size(two) for one, two in pairs) and all(
            _has_same_bytes(one, two) for one, two in pairs if not one.is_dir()
        )
    except OSError:
        return False


def copy_times(new: Path, old: Path) -> int:
    """Give the files of `old` the modification times of the same files in `new`. Returns how many changed.

    Raises OSError.
    """
    old_paths = _below(old)
    count = 0
    for name, file in _below(new).items():
        time = file.stat().st_mtime_ns
        if file.is_file() and old_paths[name].stat().st_mtime_ns != time:
            os.utime(old_paths[name], ns=(time, time))
            count += 1
    return count


def _below(folder: Path) -> dict[Path, Path]:
    """Everything in a folder by its relative path, in order."""
    if not folder.is_dir():
        raise NotADirectoryError(folder)
    return {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}


def _kind_and_size(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return stat.S_IFMT(status.st_mode), 0 if stat.S_ISDIR(status.st_mode) else status.st_size


def _has_same_bytes(one: Path, two: Path) -> bool:
    with one.open("rb") as first, two.open("rb") as second:
        while True:
            data = first.read(_BLOCK)
            if data != second.read(_BLOCK):
                return False
            if not data:
                return True
