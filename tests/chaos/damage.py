"""Flips bits in the files of a store, and tells whether they were repaired."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyspark_dledger as dl
from pyspark_dledger.format.codec import IndexUnit, decode_index_unit
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.log.verify.findings import INFO, Finding

KINDS = ("body", "header", "unit", "checkpoint")


class Unit(NamedTuple):
    """An index unit, and where it is."""

    path: Path
    offset: int
    fields: IndexUnit


@dataclass
class Damage:
    """A byte that was changed. ``unit``: of the entry that it belongs to, None for a checkpoint."""

    node: str
    kind: str
    path: Path
    offset: int
    found: int
    inode: int
    unit: IndexUnit | None

    @property
    def is_repaired(self) -> bool:
        """Whether the file was replaced, or the byte."""
        try:
            with self.path.open("rb") as file:
                is_there = os.fstat(file.fileno()).st_ino == self.inode
                return not is_there or os.pread(file.fileno(), 1, self.offset) != bytes([self.found])
        except FileNotFoundError:
            return True

    def is_named(self, finding: Finding) -> bool:
        """Whether a finding is about this damage.

        A wrong index contradicts the unit of that index; a term that is too high the next entry and currterm.
        """
        if self.unit is None:
            return finding.file.endswith("checkpoint")
        pos, size = self.unit.pos, self.unit.size
        is_near = finding.index in (self.unit.index, self.unit.index + 1) or pos <= (finding.pos or -1) <= pos + size
        is_at = self.kind == "unit" and finding.offset == self.offset // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE
        is_elsewhere = finding.code == "indexUnit" and f"pos {pos}," in f"{finding.expected},"
        return is_near or is_at or is_elsewhere or finding.code == "currtermBelowLog"

    def __str__(self) -> str:
        where = "" if self.unit is None else f" of entry {self.unit.index}"
        return f"{self.kind}{where}, byte {self.offset} of {self.path}"


def flip(node: str, store: Path, kind: str, last: int, rng: random.Random) -> Damage | None:
    """Flip a bit of that kind, of one of the entries up to index `last`; None if there is none."""
    if kind == "checkpoint":
        path = store / "checkpoint"
        return _flip(node, kind, path, 0, path.stat().st_size if path.exists() else 0, None, rng)
    found = [unit for unit in units(store) if unit.fields.index <= last]
    if not found:
        return None
    # Recovery trusts the end of a log less than the rest.
    return flip_entry(node, store, kind, rng.choice(rng.choice((found, found[-100:], found[-1:]))), rng)


def flip_entry(node: str, store: Path, kind: str, unit: Unit, rng: random.Random) -> Damage | None:
    """Flip a bit of an entry's body, header or index unit; None without a body."""
    return _flip(node, kind, *_span(store, kind, unit), unit.fields, rng)


def _flip(
    node: str, kind: str, path: Path, start: int, size: int, unit: IndexUnit | None, rng: random.Random
) -> Damage | None:
    """Flip one of the bits of `size` bytes of a file."""
    if not size:
        return None
    offset = start + rng.randrange(size)
    with path.open("r+b") as file:
        value = os.pread(file.fileno(), 1, offset)[0] ^ 1 << rng.randrange(8)
        os.pwrite(file.fileno(), bytes([value]), offset)
        return Damage(node, kind, path, offset, value, os.fstat(file.fileno()).st_ino, unit)


def _span(store: Path, kind: str, unit: Unit) -> tuple[Path, int, int]:
    """The file, the first byte and the size of an entry's body, header or index unit."""
    if kind == "unit":
        return unit.path, unit.offset, INDEX_UNIT_SIZE
    pos, size = unit.fields.pos, unit.fields.size
    data = max(path for path in (store / "data").iterdir() if int(path.name) <= pos)
    start = pos - int(data.name)
    if kind == "header":
        return data, start, ENTRY_HEADER_SIZE
    return data, start + ENTRY_HEADER_SIZE, size - ENTRY_HEADER_SIZE


def units(store: Path) -> list[Unit]:
    """All index units of a store."""
    found = []
    for path in sorted((store / "index").glob("*")):
        data = path.read_bytes()
        for offset in range(0, len(data), INDEX_UNIT_SIZE):
            fields = decode_index_unit(data[offset : offset + INDEX_UNIT_SIZE])
            if fields.size > 0:
                found.append(Unit(path, offset, fields))
    return found


def problems(root: Path) -> list[Finding]:
    """The warnings and errors of `dledger verify` in a store that is not in use."""
    return [finding for finding in dl.open_log(root).findings() if finding.severity != INFO]
