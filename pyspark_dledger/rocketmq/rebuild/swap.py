"""Putting a folder that was built anew in the place of the old one, so that a crash leaves one of the two there.

A folder is built as ``NAME.rebuilding/NAME`` beside the old one. Once it is verified, ``NAME.rebuilding/built`` says
which folder it is (its inode); then the two change places at once, and the old one is kept as ``NAME.before-TIME``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError

_BUILT = "built"
_AT_CWD = -100
_EXCHANGE = 2
# What says that the file system, or the kernel, cannot exchange two names.
_CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def building_folder(root: Path, name: str) -> Path:
    """The folder in which a folder of that name is built."""
    return root / f"{name}.rebuilding"


def clear_leftover(root: Path, name: str) -> str | None:
    """Clear away what a run that was broken off has left, and say what; None where there is nothing. Raises OSError.

    A folder that was verified and has no other in its place goes there; the one before it is kept.
    """
    building = building_folder(root, name)
    if not building.is_dir():
        return None
    place, left = root / name, building / name
    built = _inode_in(building / _BUILT)
    text = f"an earlier run was broken off before its {name} was in place: what it had built is removed"
    if built is not None and built == _inode(place):
        kept = f": the one before it is kept as {_keep(root, name, left)}" if left.is_dir() else ""
        text = f"an earlier run was broken off when its {name} was in place{kept}"
    elif built is not None and built == _inode(left) and not place.exists():
        left.rename(place)
        text = f"an earlier run was broken off while it put its {name} in place: that is done"
    sync_dir(root)
    shutil.rmtree(building)
    sync_dir(root)
    return text


def swap_in(root: Path, name: str) -> str | None:
    """Put what was built and verified in its place; the name under which the old one is kept, None without one.

    Where the file system cannot exchange two names at once, there is neither between two renamings: a crash there
    leaves the old one as ``NAME.before-TIME``, and `clear_leftover` puts the new one in place. Raises OSError.
    """
    building = building_folder(root, name)
    new, place = building / name, root / name
    _write_durably(building / _BUILT, str(new.stat().st_ino))
    kept = None
    if not place.exists():
        new.rename(place)
    elif _exchange(new, place):
        sync_dir(root)
        sync_dir(building)
        kept = _keep(root, name, new)
    else:
        kept = _keep(root, name, place)
        new.rename(place)
    sync_dir(root)
    shutil.rmtree(building)
    sync_dir(root)
    return kept


def drop_built(root: Path, name: str) -> None:
    """Remove what was built: what stands in its place stays. Raises OSError."""
    shutil.rmtree(building_folder(root, name))
    sync_dir(root)


def _keep(root: Path, name: str, old: Path) -> str:
    """Give the old folder a name of its own beside the new one."""
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
    """Let two names change places at once; False where that is not possible (only Linux can, and not on each disk)."""
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
        text = path.read_text("ascii", "replace")
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_dir(path.parent)


def check_place(root: Path, name: str) -> None:
    """Raises StoreError where a folder cannot be put in its place: it is a link, or a file system of its own."""
    place = root / name
    if place.is_symlink() or place.is_mount():
        raise StoreError(
            f"{place}: expected a folder of the store itself, found a link or a mounted file system: build elsewhere "
            "(out, --out), and move it there while no broker runs"
        )
    if place.exists() and not place.is_dir():
        raise StoreError(f"{place}: expected a folder, found a file: move it away")
