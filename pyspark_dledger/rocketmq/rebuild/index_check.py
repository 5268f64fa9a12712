"""Whether every unit of an index file is found from its hash slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import (
    INDEX_FILE_HEADER_SIZE,
    INDEX_FILE_SLOT_SIZE,
    INDEX_FILE_UNIT,
    INDEX_FILE_UNIT_SIZE,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.store_paths import file_size

_UNITS_AT_ONCE = 256 * 1024


def units_in(path: Path, slots: int, stop: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The units of a file before the one with number `stop`, in chunks, each with the number of its first."""
    begin, stop = INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE, _there(path, slots, stop)
    for first in range(1, stop, _UNITS_AT_ONCE):
        size = min(_UNITS_AT_ONCE, stop - first) * INDEX_FILE_UNIT_SIZE
        yield first, decode_records(read_at(str(path), begin + first * INDEX_FILE_UNIT_SIZE, size), INDEX_FILE_UNIT)


def _there(path: Path, slots: int, stop: int) -> int:
    """How many units a file has room for, up to `stop`, which a header may say as it likes; 1 at least."""
    begin = INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE
    return max(min(stop, ((file_size(path) or 0) - begin) // INDEX_FILE_UNIT_SIZE), 1)


def unlinked_units(path: Path, slots: int, stop: int) -> int:
    """How many units nothing leads to, of those before the one with number `stop`.

    A slot has the number of its newest unit, and each unit that of the one before it in the same slot. Behind one that
    nothing leads to there may be more that are not found.
    """
    stop = _there(path, slots, stop)
    table = np.frombuffer(read_at(str(path), INDEX_FILE_HEADER_SIZE, slots * INDEX_FILE_SLOT_SIZE), ">i4")
    slot_of = np.full(stop, -1, np.int32)
    named = np.zeros(stop, bool)
    for first, units in units_in(path, slots, stop):
        numbers = np.arange(first, first + len(units))
        slot_of[numbers] = units["keyHash"].astype(np.int64) % slots
        previous = units["previous"].astype(np.int64)
        is_before = (previous > 0) & (previous < numbers)
        numbers, previous = numbers[is_before], previous[is_before]
        named[previous[slot_of[previous] == slot_of[numbers]]] = True
    heads = np.flatnonzero((table > 0) & (table < stop))
    newest = table[heads].astype(np.int64)
    named[newest[slot_of[newest] == heads]] = True
    return int(np.count_nonzero(slot_of >= 0) - np.count_nonzero(named & (slot_of >= 0)))
