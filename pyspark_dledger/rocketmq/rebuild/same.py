"""Whether a folder that was built anew is, byte for byte, the one that it would take the place of."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_BLOCK = 1 << 20


def is_same(new: Path, old: Path, has_fixed_names: bool) -> bool:
    """Whether two folders have the same files. False where one is not there, or cannot be read.

    Files whose names are not fixed are those of the same rank. What is no file, such as a link, is never the same.
    """
    try:
        ours, theirs = _below(new), _below(old)
        if len(ours) != len(theirs) or (has_fixed_names and list(ours) != list(theirs)):
            return False
        pairs = list(zip(ours.values(), theirs.values(), strict=True))
        return all(_kind_and_size(one) == _kind_and_size(two) for one, two in pairs) and all(
            _has_same_bytes(one, two) for one, two in pairs if not one.is_dir()
        )
    except OSError:
        return False


def take_times(new: Path, old: Path) -> int:
    """Give the files of `old` the times of those of `new`, which are the same; how many had others. Raises OSError."""
    theirs = _below(old)
    count = 0
    for name, file in _below(new).items():
        time = file.stat().st_mtime_ns
        if file.is_file() and theirs[name].stat().st_mtime_ns != time:
            os.utime(theirs[name], ns=(time, time))
            count += 1
    return count


def _below(folder: Path) -> dict[Path, Path]:
    """All that is in a folder, by its path from there, in order."""
    if not folder.is_dir():
        raise NotADirectoryError(folder)
    return {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}


def _kind_and_size(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return stat.S_IFMT(status.st_mode), 0 if stat.S_ISDIR(status.st_mode) else status.st_size


def _has_same_bytes(one: Path, two: Path) -> bool:
    with one.open("rb") as ours, two.open("rb") as theirs:
        while True:
            data = ours.read(_BLOCK)
            if data != theirs.read(_BLOCK):
                return False
            if not data:
                return True
