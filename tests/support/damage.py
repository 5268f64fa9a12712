"""Damages files of stores: bytes at a place of a file, or at a position of a log, and files that nobody may read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_dledger.format.spec import Segment

NOBODY = 65534


def write_at(file: Path | str, at: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    change_at(file, at, len(data), lambda _: data)


def flip(file: Path | str, at: int, bits: int = 1) -> None:
    """Flip bits of one byte of a file."""
    change_at(file, at, 1, lambda found: bytes([found[0] ^ bits]))


def change_at(file: Path | str, at: int, size: int, change: Callable[[bytes], bytes]) -> None:
    """Replace so many bytes of a file by what `change` makes of them."""
    with Path(file).open("r+b") as stream:
        stream.seek(at)
        found = stream.read(size)
        stream.seek(at)
        stream.write(change(found))


def write_log(log: Path | Segment, pos: int, data: bytes) -> None:
    """Overwrite bytes at a position of a log: of one segment, or of the folder of its files."""
    write_at(*place(log, pos), data)


def place(log: Path | Segment, pos: int) -> tuple[Path, int]:
    """The file that has a position of a log, and where in it."""
    if isinstance(log, Segment):
        return Path(log.path), pos - log.base
    file = max(file for file in log.iterdir() if int(file.name) <= pos)
    return file, pos - int(file.name)


@contextmanager
def forbidden(file: Path) -> Iterator[None]:
    """Nobody may read the file or folder, and this process has no rights of root."""
    mode = file.stat().st_mode
    file.chmod(0)
    as_root = os.geteuid() == 0
    try:
        if as_root:
            os.seteuid(NOBODY)
        yield
    finally:
        if as_root:
            os.seteuid(0)
        file.chmod(mode)
