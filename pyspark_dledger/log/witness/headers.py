"""Reads many headers of a segment at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS
from pyspark_dledger.format.scan.frames import HEADER_DTYPE, entry_candidates
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.files import open_file

Longs = npt.NDArray[np.int64]

_gather: Callable[[str, Longs, int], bytearray] | None = None
try:
    import pyspark_dledger._native as _native
except ImportError:
    pass
else:
    # A mapped file costs less than reading all of it for some bytes of each page.
    _gather = _native.gather

_BLOCK = 4 * 1024 * 1024
# With fewer headers in a block, each is read by itself.
_MIN_IN_BLOCK = 16


def read_headers(segment: Segment, pos: Longs, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The records of `dtype` at the positions `pos` of the log, in any order; zeros where none can be read."""
    size = dtype.itemsize
    offsets = pos - segment.base
    if _gather is not None and segment.file.is_local:
        offsets = np.where(offsets + size <= segment.size, offsets, -1)
        try:
            return np.frombuffer(_gather(segment.path, np.ascontiguousarray(offsets), size), dtype)
        except StoreError:
            return np.zeros(len(pos), dtype)
    found = np.zeros((len(pos), size), np.uint8)
    order = np.argsort(offsets, kind="stable")
    try:
        with open_file(segment.path) as file:
            end = min(file.size(), segment.size)
            order = order[(offsets[order] >= 0) & (offsets[order] <= end - size)]
            for numbers in np.split(order, np.flatnonzero(np.diff(offsets[order] // _BLOCK)) + 1) if len(order) else ():
                _read_block(file, offsets[numbers], found, numbers)
    except OSError:
        pass
    return found.reshape(-1).view(dtype)


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


def frames_between(segment: Segment, start: int, stop: int) -> tuple[Longs, npt.NDArray[Any]]:
    """The positions in ``[start, stop)`` at which bytes look like an entry, and their headers."""
    positions, found = [np.empty(0, np.int64)], [np.empty(0, HEADER_DTYPE)]
    try:
        with open_file(segment.path) as file:
            for at in range(start, stop, _BLOCK):
                data = file.read(at - segment.base, min(_BLOCK, stop - at) + HEADER_DTYPE.itemsize - 1)
                offsets, headers = entry_candidates(np.frombuffer(data, np.uint8), _BLOCK)
                pos = offsets + at
                chosen = is_frame(headers, pos, segment)
                positions.append(pos[chosen])
                found.append(headers[chosen])
    except OSError:
        pass
    return np.concatenate(positions), np.concatenate(found)


def places_of(segment: Segment, start: int, stop: int, values: tuple[int, ...]) -> Longs:
    """The positions in ``[start, stop)`` at which one of the 4-byte integers stands."""
    found = [np.empty(0, np.int64)]
    try:
        with open_file(segment.path) as file:
            for at in range(start, stop, _BLOCK):
                data = np.frombuffer(file.read(at - segment.base, min(_BLOCK, stop - at) + 3), np.uint8)
                found += [at + _offsets_of(data, value) for value in values if len(data) > 3]
    except OSError:
        pass
    return np.sort(np.concatenate(found))


def _offsets_of(data: npt.NDArray[np.uint8], value: int) -> Longs:
    first, *rest = value.to_bytes(4, "big", signed=True)
    offsets = np.flatnonzero(data[:-3] == first)
    for number, byte in enumerate(rest, 1):
        offsets = offsets[data[offsets + number] == byte]
    return offsets


def is_frame(headers: npt.NDArray[Any], pos: Longs, segment: Segment) -> npt.NDArray[np.bool_]:
    """Which headers are those of an intact entry at `pos`."""
    size = headers["size"].astype(np.int64)
    found = np.isin(headers["magic"], ENTRY_MAGICS) & (size == headers["bodySize"].astype(np.int64) + ENTRY_HEADER_SIZE)
    found &= (size >= ENTRY_HEADER_SIZE) & (pos + size <= segment.end)
    found &= (headers["index"] >= 0) & (headers["term"] >= -1)
    return np.asarray(found & (headers["pos"] == pos)) if segment.check_pos else np.asarray(found)
