"""Finds where messages begin that a broker's IndexFiles know: a unit has the offset of its message, not the size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.distinct_numbers import distinct
from pyspark_dledger.log.io.files import map_reads
from pyspark_dledger.log.io.key_files import (
    hash_slots,
    index_capacity,
    index_files,
    read_header,
    read_units,
)
from pyspark_dledger.log.io.store_paths import file_size

Longs = npt.NDArray[np.int64]

_PROBE = 1024
"""Units of one probe, 20 KiB: a damaged page of 4 KiB does not decide it."""


def message_starts(start: int, end: int, root: Path) -> Longs:
    """The offsets in ``[start, end)`` that units of any IndexFile have, ascending, each once."""
    try:
        files = index_files(root)
    except UnreadableError:
        return np.empty(0, np.int64)
    found = map_reads(lambda file: list(_starts_in(file, start, end)), files, str(root))
    return distinct(np.concatenate([np.empty(0, np.int64), *(part for parts in found for part in parts)]))


def _starts_in(file: Path, start: int, end: int) -> Iterator[Longs]:
    """The offsets of one file; units are in the order of the log. What cannot be read is left out."""
    try:
        header, slots = read_header(file), hash_slots(file)
        if header is None or slots is None:
            return
        stop = index_capacity(file_size(file) or 0, slots)
        if 1 <= header.index_count < stop:
            stop = header.index_count
        low, high = 0, -(-stop // _PROBE)
        while low < high:
            middle = (low + high) // 2
            offsets = _offsets(file, slots, middle * _PROBE, stop)
            if not len(offsets) or np.median(offsets) < start:
                low = middle + 1
            else:
                high = middle
        first = max(low - 1, 0)
        for probe in range(first, -(-stop // _PROBE)):
            offsets = _offsets(file, slots, probe * _PROBE, stop)
            is_inside = (offsets >= start) & (offsets < end)
            if probe > first + 1 and not is_inside.any():
                return
            yield offsets[is_inside]
    except UnreadableError:
        return


def _offsets(file: Path, slots: int, number: int, stop: int) -> Longs:
    # The unit with number 0 is never used.
    units = read_units(file, slots, max(number, 1), min(number + _PROBE, stop))
    return np.asarray(units["commitLogOffset"].astype(np.int64))
