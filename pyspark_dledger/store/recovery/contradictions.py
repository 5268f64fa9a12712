"""Finds entries that their index units contradict."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.codec import IndexUnit, record_dtype, record_struct
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT
from pyspark_dledger.store.files.mapped_files import MappedFile

_UNIT = record_dtype(INDEX_UNIT)
_HEADER = record_struct(ENTRY_HEADER[:5])
_SECTOR = 512


class Contradiction(NamedTuple):
    """An entry whose header does not agree with its index unit."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    file: MappedFile
    pos: int
    unit: IndexUnit


def other_term(stored: bytes, units: bytes | bytearray, min_term: int) -> int | None:
    """The number of the first entry that has another term in its stored unit, if that term is possible too.

    `units` are those of the headers. A stored unit with another extent is damaged itself: adjacent entries prove each
    other's extents. So is one with a term that does not fit the terms before (`min_term` before the first) and after.
    """
    old, new = np.frombuffer(stored, _UNIT), np.frombuffer(units, _UNIT)
    terms = new["term"]
    lowest, highest = np.append(min_term, terms[:-1]), np.append(terms[1:], INT64_MAX)
    differs = (old["term"] != terms) & (lowest <= old["term"]) & (old["term"] <= highest)
    for name in ("magic", "pos", "size", "index"):
        differs &= old[name] == new[name]
    rows = np.flatnonzero(differs)
    return int(rows[0]) if len(rows) else None


def is_unwritten(header: bytes, offset: int, unit: IndexUnit) -> bool:
    """Whether a sector of a header at this offset of its file is zeros, which its unit says it should not be."""
    expected = _HEADER.pack(unit.magic, unit.size, unit.index, unit.term, unit.pos).ljust(ENTRY_HEADER_SIZE, b"\1")
    return lacks_sector(header, offset, expected)


def lacks_sector(found: bytes, offset: int, expected: bytes) -> bool:
    """Whether a sector of the bytes at this offset of a file is zeros, and should not be."""
    cut = -offset % _SECTOR
    return any(
        expected[part].strip(b"\0") and not found[part].strip(b"\0") for part in (slice(0, cut), slice(cut, None))
    )
