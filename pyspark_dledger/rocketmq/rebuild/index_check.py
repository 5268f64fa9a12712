"""Checks that the hash slots of an IndexFile lead to all its units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.layout import INDEX_FILE_HEADER_SIZE, INDEX_FILE_SLOT_SIZE
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.store_paths import file_size
from pyspark_dledger.rocketmq.index_file.index_file import index_capacity, read_units

_UNITS_PER_READ = 256 * 1024


def units_in(path: Path, slots: int, stop: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The units of a file before number `stop`, in chunks, each with the number of its first unit."""
    stop = _limited(path, slots, stop)
    for first in range(1, stop, _UNITS_PER_READ):
        yield first, read_units(path, slots, first, min(first + _UNITS_PER_READ, stop))


def _limited(path: Path, slots: int, stop: int) -> int:
    """`stop`, which comes from a header and may be wrong, limited to the units that the file can have."""
    return max(min(stop, index_capacity(file_size(path) or 0, slots)), 1)


def unlinked_units(path: Path, slots: int, stop: int) -> int:
    """The number of units before number `stop` that no slot and no later unit points to.

    A slot has the number of its newest unit, and each unit that of the previous one in its slot. Units before an
    unlinked one may not be found either.
    """
    stop = _limited(path, slots, stop)
    table = np.frombuffer(read_at(str(path), INDEX_FILE_HEADER_SIZE, slots * INDEX_FILE_SLOT_SIZE), ">i4")
    slot_of = np.full(stop, -1, np.int32)
    linked = np.zeros(stop, bool)
    for first, units in units_in(path, slots, stop):
        numbers = np.arange(first, first + len(units))
        slot_of[numbers] = units["keyHash"].astype(np.int64) % slots
        previous = units["previous"].astype(np.int64)
        is_before = (previous > 0) & (previous < numbers)
        numbers, previous = numbers[is_before], previous[is_before]
        linked[previous[slot_of[previous] == slot_of[numbers]]] = True
    heads = np.flatnonzero((table > 0) & (table < stop))
    newest = table[heads].astype(np.int64)
    linked[newest[slot_of[newest] == heads]] = True
    return int(np.count_nonzero(slot_of >= 0) - np.count_nonzero(linked & (slot_of >= 0)))
