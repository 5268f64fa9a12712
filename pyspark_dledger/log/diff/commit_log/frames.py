"""The messages of one segment: where each begins and ends, and whether it is intact."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import is_valid
from pyspark_dledger.format.spec import Filters, ScanRequest, Segment
from pyspark_dledger.log.copies.problems import is_damage
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.io.unread_files import READ_COLUMNS, read_error

INTACT, ODD, DAMAGED = 0, 1, 2
"""``ODD``: only a timestamp is outside the years 1 to 9999, which no CRC covers."""

_COLUMNS = ("pos", "size", "problemCode", *READ_COLUMNS)

_Longs = npt.NDArray[np.int64]


class Frames(NamedTuple):
    """Messages and corrupt extents in order; bytes that are in none are the blank at the end of the file."""

    starts: _Longs
    ends: _Longs
    states: npt.NDArray[Any]

    def at(self, pos: int) -> int | None:
        """The number of the frame that contains `pos`; None in a blank."""
        number = int(np.searchsorted(self.starts, pos, "right")) - 1
        return number if number >= 0 and pos < self.ends[number] else None

    def cuts(self, low: int, high: int) -> set[int]:
        """The positions inside ``(low, high)`` at which a frame begins or ends."""
        return {
            int(edge)
            for edges in (self.starts, self.ends)
            for edge in edges[np.searchsorted(edges, low, "right") : np.searchsorted(edges, high, "left")]
        }

    def widened(self, low: int, high: int) -> tuple[int, int]:
        """``[low, high)`` with the whole frames at its edges."""
        first, last = self.at(low), self.at(high - 1)
        low = low if first is None else min(low, int(self.starts[first]))
        return low, high if last is None else max(high, int(self.ends[last]))

    def messages(self, low: int, high: int) -> int:
        """How many messages begin in ``[low, high)`` and are not damaged."""
        first, last = np.searchsorted(self.starts, (low, high), "left")
        return int((self.states[first:last] != DAMAGED).sum())

    def damaged(self, low: int, high: int) -> list[tuple[int, int]]:
        """The extents of the damaged frames that overlap ``[low, high)``."""
        hit = (self.states == DAMAGED) & (self.starts < high) & (self.ends > low)
        return [(int(start), int(end)) for start, end in zip(self.starts[hit], self.ends[hit], strict=True)]


def read_frames(segment: Segment, end: int, engine: str, start: int | None = None) -> Frames:
    """The frames of a segment from `start`, where one begins, to `end`. Raises UnreadableError."""
    request = ScanRequest(segment, segment.base if start is None else start, end, _COLUMNS, Filters())
    starts, sizes, states = [], [], []
    for batch, _ in engine_of(engine, segment).scan(request):
        if error := read_error(segment, batch):
            raise error
        starts.append(batch.column("pos").to_numpy())
        sizes.append(batch.column("size").to_numpy())
        states.append(_states(batch.column("problemCode")))
    if not starts:
        nothing = np.empty(0, np.int64)
        return Frames(nothing, nothing, np.empty(0, np.int8))
    begin = np.concatenate(starts).astype(np.int64)
    return Frames(begin, begin + np.concatenate(sizes), np.concatenate(states))


def _states(codes: pa.Array) -> npt.NDArray[Any]:
    is_odd = is_valid(codes)
    return np.where(is_damage(codes), DAMAGED, np.where(is_odd, ODD, INTACT)).astype(np.int8)
