"""Replaces a folder by a new one, so that after a crash one of the two is in place.

The new folder is built as ``NAME.rebuilding/NAME``, next to the old one. Once it is verified, its inode is written to
``NAME.rebuilding/built``. Then both are exchanged atomically, and the old one is kept as ``NAME.before-TIME``.
"""

from __future__ import annotations

import ctypes
import errno
import filecmp
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir, write_durably
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.files import MAX_STATE_SIZE, read_start

_BUILT = "built"
_AT_CWD = -100
_EXCHANGE = 2
# The file system or the kernel cannot exchange two names.
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def building_folder(root: Path, name: str) -> Path:
    """The folder in which the folder `name` is built."""
    return root / f"{name}.rebuilding"


def finish_interrupted(root: Path, name: str, kept_name: str) -> str | None:
    """Clean up after an interrupted run. Returns a note on what was done; None if there was nothing. Raises OSError.

    If the run ended between its two renames, the verified new folder is put in place; the old one is kept. What is
    named `kept_name` stays for the next run, if the new folder was not complete.
    """
    building = building_folder(root, name)
    if not building.is_dir():
        return None
    target, left = root / name, building / name
    built = _inode_in(building / _BUILT)
    text = f"an earlier run was interrupted before its {name} was in place: its files are removed"
    if built is not None and built == _inode(target):
        kept = f": the one before it is kept as {_keep(root, name, left)}" if left.is_dir() else ""
        text = f"an earlier run was interrupted after its {name} was in place{kept}"
    elif built is not None and built == _inode(left) and not target.exists():
        left.rename(target)
        text = f"an earlier run was interrupted while it put its {name} in place: this is done"
    sync_dir(root)
    for path in building.iterdir():
        if path.name != kept_name or built is not None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError):
        building.rmdir()  # fails if it is not empty
    sync_dir(root)
    return text


def swap_in(root: Path, name: str) -> str | None:
    """Put the verified new folder in place. Returns the new name of the old one, None without one. Raises OSError.

    On a file system that cannot exchange two names there is neither between two renames: a crash there leaves the old
    one as ``NAME.before-TIME``, and `finish_interrupted` puts the new one in place.
    """
    building = building_folder(root, name)
    new, target = building / name, root / name
    write_durably(building / _BUILT, str(new.stat().st_ino).encode())
    sync_dir(building)
    kept = None
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        sync_dir(root)
        sync_dir(building)
        kept = _keep(root, name, new)
    else:
        kept = _keep(root, name, target)
        new.rename(target)
    sync_dir(root)
    shutil.rmtree(building)
    sync_dir(root)
    return kept


def drop_built(root: Path, name: str) -> None:
    """Remove the new folder; the old one stays in place. Raises OSError."""
    shutil.rmtree(building_folder(root, name))
    sync_dir(root)


def _keep(root: Path, name: str, old: Path) -> str:
    """Rename the old folder to ``NAME.before-TIME``. Returns the name."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = root / f"{name}.before-{moment}"
    number = 1
    while kept.exists():
        number += 1
        kept = root / f"{name}.before-{moment}-{number}"
    old.rename(kept)
    sync_dir(root)
    return kept.name


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically; False if that is not possible (only Linux can, and not each file system)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if not rename(_AT_CWD, os.fsencode(first), _AT_CWD, os.fsencode(second), _EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _inode_in(path: Path) -> int | None:
    try:
        text = read_start(path, MAX_STATE_SIZE).decode("ascii", "replace")
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < 20 else None


def check_replaceable(root: Path, name: str) -> None:
    """Raises StoreError for a folder that cannot be replaced: a link, a mounted file system, or a file."""
    target = root / name
    if target.is_symlink() or target.is_mount():
        raise StoreError(
            f"{target}: expected a folder, found a link or a mounted file system, which cannot be replaced: build "
            "elsewhere (out, --out), and move it there while no broker runs"
        )
    if target.exists() and not target.is_dir():
        raise StoreError(f"{target}: expected a folder, found a file: move it away")


def has_same_files(new: Path, old: Path, has_fixed_names: bool) -> bool:
    """Whether two folders have the same files. False if one does not exist or cannot be read.

    Files without fixed names are compared in the order of their names. Other things than files, such as links, differ.
    """
    try:
        new_paths, old_paths = _below(new), _below(old)
        if len(new_paths) != len(old_paths) or (has_fixed_names and list(new_paths) != list(old_paths)):
            return False
        pairs = list(zip(new_paths.values(), old_paths.values(), strict=True))
        filecmp.clear_cache()  # it goes by the times of files, which are those of messages
        return all(_kind_and_size(one) == _kind_and_size(two) for one, two in pairs) and all(
            filecmp.cmp(one, two, shallow=False) for one, two in pairs if not one.is_dir()
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
