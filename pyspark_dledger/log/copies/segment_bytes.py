"""Reads the bytes of a segment's copies, and finds where two copies differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from io import FileIO

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.uris import RemoteUri
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.files import OpenFile, open_file, path_of

WINDOW = 256 * 1024


class SegmentBytes:
    """The bytes of a segment by position; fewer where the file cannot be read."""

    def __init__(self, segment: Segment, opened: ExitStack) -> None:
        self._base = segment.base
        self._local: FileIO | None = None
        self._remote: OpenFile | None = None
        self._buffer = bytearray(WINDOW)
        with suppress(OSError):
            if isinstance(segment.path, RemoteUri):
                self._remote = opened.enter_context(open_file(segment.path))
            else:
                self._local = opened.enter_context(FileIO(str(path_of(segment.path))))

    def window(self, start: int, end: int) -> bytes | bytearray:
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


def unequal_windows(copies: Sequence[SegmentBytes], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The windows ``[low, high)`` of ``[start, end)`` in which bytes differ or cannot be read, joined if adjacent."""
    windows = (
        (low, high) for low in range(start, end, WINDOW) if not _are_equal(copies, low, high := min(low + WINDOW, end))
    )
    return merge_adjacent(windows, lambda last, window: (last[0], window[1]) if last[1] == window[0] else None)


def _are_equal(copies: Sequence[SegmentBytes], low: int, high: int) -> bool:
    first, *others = (copy.window(low, high) for copy in copies)
    return len(first) == high - low and all(other == first for other in others)
