"""Damages to the files of a store, which can be undone."""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from pathlib import Path
from types import TracebackType
from typing import final

from pyspark_dledger.format import layout
from tests.support.log_writer import Written
from tests.support.witnesses.originals import Original

SECTOR, PAGE = 512, 4096
INDEX_MODES = ("intact", "damaged", "missing", "keys")
"""In the last one IndexFiles are intact, and all other index files are missing."""


@final
class Damage:
    """Changes of files, which are undone at the end of a ``with`` block."""

    def __init__(self) -> None:
        self.changed: list[tuple[Path, int, bytes]] = []
        """Path, offset and former bytes of each change, in order."""
        self._moved: list[tuple[Path, Path]] = []

    def __enter__(self) -> Damage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path, offset, before in reversed(self.changed):
            _write(path, offset, before)
        for away, path in self._moved:
            away.rename(path)

    def write(self, path: Path, offset: int, data: bytes) -> None:
        before = _read(path, offset, len(data))
        data = data[: len(before)]
        if data != before:
            self.changed.append((path, offset, before))
            _write(path, offset, data)

    def move_away(self, folder: Path) -> None:
        away = folder.with_name(f"{folder.name}.away")
        folder.rename(away)
        self._moved.append((away, folder))

    def intact(self, original: Original) -> set[int]:
        """The positions of the entries whose bytes are unchanged."""
        touched: set[int] = set()
        starts = [entry.pos for entry in original.entries]
        files = set(original.data_files)
        for path, offset, before in self.changed:
            if path in files:
                touched |= _differing(original.entries, starts, path, original.base_of(path) + offset, before)
        return {entry.pos for entry in original.entries} - touched


def _differing(entries: list[Written], starts: list[int], path: Path, pos: int, before: bytes) -> set[int]:
    """The entries with bytes at `pos` that are not `before`. A later change can have restored some."""
    after = _read(path, pos - int(path.name), len(before))
    found = set()
    number = max(bisect_right(starts, pos) - 1, 0)
    while number < len(entries) and entries[number].pos < pos + len(before):
        entry = entries[number]
        low, high = max(entry.pos - pos, 0), max(entry.pos + entry.size - pos, 0)
        if before[low:high] != after[low:high]:
            found.add(entry.pos)
        number += 1
    return found


def damage_store(rng: random.Random, original: Original, damage: Damage, index_mode: str) -> None:
    """One to five damages to data files; by `index_mode` also to index files, or these are moved away."""
    for _ in range(rng.randint(1, 5)):
        path = rng.choice(original.data_files)
        base = original.base_of(path)
        inside = [entry for entry in original.entries if base <= entry.pos < base + path.stat().st_size]
        _damage_file(rng, damage, path, _used(rng, inside, base), [entry.pos - base for entry in inside])
    if index_mode in ("missing", "keys"):
        for folder in original.index_folders + (original.key_folders if index_mode == "missing" else []):
            damage.move_away(folder)
    elif index_mode == "damaged":
        for _ in range(rng.randint(1, 5)):
            path = rng.choice(original.index_files)
            _damage_file(rng, damage, path, *_units(original, path))


def _used(rng: random.Random, inside: list[Written], base: int) -> int:
    """The written bytes of a file; sometimes also what follows them."""
    end = inside[-1].pos + inside[-1].size - base
    return end if rng.random() < 0.9 else end + PAGE


def _units(original: Original, path: Path) -> tuple[int, list[int]]:
    """The written bytes of a file of units, and the offsets of its units."""
    is_queue = path.parent.name != "index"
    size = layout.CONSUME_QUEUE_UNIT_SIZE if is_queue else layout.INDEX_UNIT_SIZE
    if is_queue:
        used = max(len(path.read_bytes().rstrip(b"\0")), size)
    else:
        units = max(entry.index for entry in original.entries) + 1 - int(path.name) // size
        used = min(max(units, 1) * size, path.stat().st_size)
    return used, list(range(0, used, size))


def _damage_file(rng: random.Random, damage: Damage, path: Path, used: int, starts: list[int]) -> None:
    size = path.stat().st_size
    used = min(max(used, 1), size)
    at = rng.randrange(used)
    kind = rng.randrange(8)
    if kind == 0:
        _flip(rng, damage, path, at)
    elif kind == 1:  # a header's bit
        _flip(rng, damage, path, min(rng.choice(starts) + rng.randrange(layout.INDEX_UNIT_SIZE), size - 1))
    elif kind == 2:
        unit = rng.choice([SECTOR, PAGE])
        damage.write(path, at // unit * unit, bytes(unit))
    elif kind == 3:  # a header
        damage.write(path, rng.choice(starts), bytes(layout.ENTRY_HEADER_SIZE))
    elif kind == 4:
        _swap(rng, damage, path, used)
    elif kind == 5:
        damage.write(path, at, rng.randbytes(rng.choice([16, 64, 512, 3000])))
    elif kind == 6:  # a part of a header
        start = rng.choice(starts)
        damage.write(path, start + rng.choice([0, 4, 8, 16, 24, 44]), rng.randbytes(rng.choice([1, 2, 4])))
    else:
        _tear(rng, damage, path, at)


def _flip(rng: random.Random, damage: Damage, path: Path, offset: int) -> None:
    (value,) = _read(path, offset, 1)
    damage.write(path, offset, bytes([value ^ 1 << rng.randrange(8)]))


def _swap(rng: random.Random, damage: Damage, path: Path, used: int) -> None:
    unit = rng.choice([SECTOR, PAGE])
    first, second = (rng.randrange(-(-used // unit)) * unit for _ in range(2))
    one, other = _read(path, first, unit), _read(path, second, unit)
    if len(one) == len(other):
        damage.write(path, first, other)
        damage.write(path, second, one)


def _tear(rng: random.Random, damage: Damage, path: Path, at: int) -> None:
    """Of some adjacent sectors, those that a power loss kept from the disk are zeros."""
    first = at // SECTOR
    for sector in range(first, first + rng.randint(2, 8)):
        if rng.random() < 0.5:
            damage.write(path, sector * SECTOR, bytes(SECTOR))


def _read(path: Path, offset: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def _write(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)
