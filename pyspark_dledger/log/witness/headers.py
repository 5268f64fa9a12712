"""Reads many headers of a segment at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import entry_at
from pyspark_dledger.log.io.files import OpenFile, open_file

Longs = npt.NDArray[np.int64]

_BLOCK = 4 * 1024 * 1024
# With fewer headers in a block, each is read by itself.
_MIN_IN_BLOCK = 16
_MAX_WALKED = 100_000


def read_headers(segment: Segment, pos: Longs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The records of `dtype` at the positions `pos` of the log, in any order; zeros where none can be read."""
    size = dtype.itemsize
    found = np.zeros((len(pos), size), np.uint8)
    offsets = pos - segment.base
    order = np.argsort(offsets, kind="stable")
    try:
        with open_file(segment.path) as file:
            end = min(file.size(), segment.size)
            order = order[(offsets[order] >= 0) & (offsets[order] <= end - size)]
            for numbers in _blocks(offsets, order):
                _read_block(file, offsets[numbers], found, numbers)
    except OSError:
        pass
    return found.reshape(-1).view(dtype)


def _blocks(offsets: Longs, order: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
    """The numbers in `order`, split where a block ends."""
    if len(order):
        yield from np.split(order, np.flatnonzero(np.diff(offsets[order] // _BLOCK)) + 1)


def _read_block(file: OpenFile, offsets: Longs, found: npt.NDArray[np.uint8], numbers: npt.NDArray[np.intp]) -> None:
    size = found.shape[1]
    if len(numbers) < _MIN_IN_BLOCK:
        for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
            data = file.read(offset, size)
            found[number, : len(data)] = np.frombuffer(data, np.uint8)
        return
    start = int(offsets[0])
    data = file.read(start, int(offsets[-1]) + size - start)
    is_read = offsets - start <= len(data) - size
    if is_read.any():
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), size)
        found[numbers[is_read]] = windows[offsets[is_read] - start]


def last_walked_term(segment: Segment, before: tuple[int, int] | None, stop: int) -> int:
    """The term of the last entry below index `stop` in an unbroken walk over the data; -2 without one.

    The walk begins after the entry with this end and index, else at the segment's beginning.
    """
    pos, index = before if before is not None else (segment.base, None)
    term = -2
    for _ in range(_MAX_WALKED):
        header = entry_at(segment, pos) if index is None or index + 1 < stop else None
        if header is None or header.index >= stop or header.term < term:
            break
        if index is not None and header.index != index + 1:
            break
        pos, index, term = pos + header.size, header.index, header.term
    return term
