"""Reads the bytes of a segment's copies, and finds where two copies differ."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from io import FileIO

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.spec import Segment
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.files import open_file

WINDOW = 256 * 1024
_SECTOR = 512
_LEAST_HOLE = 64
"""Bytes: a body can have some zeros anywhere."""
_LEAST_LOST = 8
"""Bytes in such a hole that another copy has."""

Bytes = bytes | bytearray


class SegmentBytes:
    """The bytes of a segment by position; fewer where the file cannot be read."""

    def __init__(self, segment: Segment, opened: ExitStack) -> None:
        self._base = segment.base
        self._local: FileIO | None = None
        self._remote: OpenFile | None = None
        self._buffer = bytearray(WINDOW)
        with suppress(OSError):
            if segment.file.is_local:
                self._local = opened.enter_context(FileIO(segment.path))
            else:
                self._remote = opened.enter_context(open_file(segment.path))

    def window(self, start: int, end: int) -> Bytes:
        """At most `WINDOW` bytes, valid until the next call: a buffer in use stays in the processor's cache."""
        if self._local is None or end - start != WINDOW:
            return self.read(start, end)
        try:
            self._local.seek(start - self._base)
            count = self._local.readinto(self._buffer) or 0
            return self._buffer if count == WINDOW else bytes(self._buffer[:count])
        except OSError:
            return b""

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``."""
        try:
            if self._local is not None:
                self._local.seek(start - self._base)
                return self._local.read(end - start) or b""
            return self._remote.read(start - self._base, end - start) if self._remote is not None else b""
        except OSError:
            return b""


def is_torn(start: int, data: bytes) -> bool:
    """Whether bytes from position `start` on have a hole of zeros that begins or ends where a sector does.

    A write that was lost leaves such a hole: several replicas can lose it in the same way.
    """
    holes = _holes(start, data)
    return bool((np.diff(holes, axis=1) >= _LEAST_HOLE).any())


def lacks_a_write(start: int, data: bytes, other: bytes) -> bool:
    """Whether all that another copy of the same bytes has in addition is zeros here, up to or from a sector's edge."""
    if len(data) != len(other):
        return False
    is_other = np.frombuffer(data, np.uint8) != np.frombuffer(other, np.uint8)
    count = int(is_other.sum())
    for low, high in _holes(start, data).tolist():
        is_other[low:high] = False
    return count >= _LEAST_LOST and not is_other.any()


def _holes(start: int, data: bytes) -> npt.NDArray[np.int64]:
    """Where zeros begin and end in bytes from position `start` on, of those that do so at the edge of a sector."""
    is_zero = np.frombuffer(data, np.uint8) == 0
    found = np.flatnonzero(np.diff(is_zero.view(np.int8), prepend=0, append=0)).reshape(-1, 2)
    return found[((found + start) % _SECTOR == 0).any(axis=1)]


def unequal_windows(
    first: SegmentBytes, others: Sequence[tuple[SegmentBytes, int]], start: int
) -> list[list[tuple[int, int]]]:
    """For each other copy, the windows ``[low, high)`` from `start` on in which it differs or cannot be read.

    Each is compared up to its own end. Adjacent windows are one. All copies are read once.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in others]
    for low in range(start, max((end for _, end in others), default=start), WINDOW):
        expected = first.window(low, low + WINDOW)
        for windows, (other, end) in zip(found, others, strict=True):
            high = min(low + WINDOW, end)
            if low < high and not _is_equal(expected, other.window(low, high), high - low):
                since = windows.pop()[0] if windows and windows[-1][1] == low else low
                windows.append((since, high))
    return found


def _is_equal(expected: Bytes, data: Bytes, size: int) -> bool:
    return len(data) == size and data == (expected if len(expected) == size else expected[:size])
