"""Counts when messages were stored, and how long after they were born. Memory does not grow with the log."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush, heappushpop

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.cli.stores.statistics import BUCKETS_PER_E, BucketCounts

Longs = npt.NDArray[np.int64]

# Widths of bins in milliseconds, each a multiple of the one before: 1 ms to 1000 days, of which the years 1 to 9999
# have fewer than 4000.
_WIDTHS = (
    *(1, 2, 10, 20, 100, 200, 1000, 2000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000),
    *(21_600_000, 86_400_000, 864_000_000, 8_640_000_000, 86_400_000_000),
)
_MAX_BINS = 50_000
_MAX_GAPS = 20
_MAX_TERMS = 1_000

# Rows of the latency map: below 1 ms, then four in each power of ten. The longest latency, 10,000 years, is in row 59.
LATENCY_ROWS = 64
_ROWS_PER_TEN = 4

# A few messages far from all others, perhaps with damaged timestamps, do not stretch an axis.
_OUTLYING = 0.001
_FAR = 20


@dataclass(frozen=True)
class Bins:
    """Counts in bins of equal width. `messages` and `size` (bytes as stored) have the time as their last axis.

    `start`, in milliseconds since 1970, and `width`, in milliseconds, are of the first bin. `outside` counts messages
    too far from all others to be in a bin.
    """

    start: int
    width: int
    messages: Longs
    size: Longs
    outside: int

    @property
    def end(self) -> int:
        """In milliseconds since 1970."""
        return self.start + self.width * self.messages.shape[-1]


class _Grid:
    """Messages and bytes by time and row. Empty bins take no memory, and many bins become wider ones."""

    def __init__(self) -> None:
        self.width = _WIDTHS[0]
        self._keys: Longs = np.empty(0, np.int64)
        self._counts: Longs = np.empty((0, 2), np.int64)

    def add(self, milliseconds: Longs, rows: Longs, sizes: Longs) -> None:
        counts = np.stack([np.ones_like(sizes), sizes], axis=1)
        keys = milliseconds // self.width * LATENCY_ROWS + rows
        self._merge(np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts]))
        while len(self._keys) > _MAX_BINS and self.width < _WIDTHS[-1]:
            self._widen()

    def _merge(self, keys: Longs, counts: Longs) -> None:
        self._keys, places = np.unique(keys, return_inverse=True)
        self._counts = np.zeros((len(self._keys), 2), np.int64)
        np.add.at(self._counts, places, counts)

    def _widen(self) -> None:
        following = _WIDTHS[_WIDTHS.index(self.width) + 1]
        times, rows = np.divmod(self._keys, LATENCY_ROWS)
        self._merge(times // (following // self.width) * LATENCY_ROWS + rows, self._counts)
        self.width = following

    def bins(self, most: int) -> Bins:
        """All counts in at most `most` bins of one width; ``messages`` is by row and time."""
        times, rows = np.divmod(self._keys, LATENCY_ROWS)
        first, last = _shown(times, self._counts[:, 0])
        widths = _WIDTHS[_WIDTHS.index(self.width) :]
        ratios = [width // self.width for width in widths]
        ratio = next((each for each in ratios if last // each - first // each < most), ratios[-1])
        inside = (times >= first) & (times <= last)
        places = times[inside] // ratio - first // ratio
        shape = (LATENCY_ROWS, int(last // ratio - first // ratio) + 1)
        grid = np.zeros((*shape, 2), np.int64)
        np.add.at(grid, (rows[inside], places), self._counts[inside])
        start, width = int(first // ratio * ratio * self.width), self.width * ratio
        return Bins(start, width, grid[..., 0], grid[..., 1], int(self._counts[~inside, 0].sum()))


def _shown(times: Longs, messages: Longs) -> tuple[int, int]:
    """The first and last time to show, without a few that are far from the others. `times` ascend."""
    seen = np.cumsum(messages)
    low = times[np.searchsorted(seen, seen[-1] * _OUTLYING)]
    high = times[np.searchsorted(seen, seen[-1] * (1 - _OUTLYING))]
    room = (high - low + 1) * _FAR
    inside = times[(times >= low - room) & (times <= high + room)]
    return int(inside[0]), int(inside[-1])


@dataclass(frozen=True, order=True)
class Gap:
    """A time without a stored message, between two messages in the order of the log; in milliseconds since 1970."""

    length: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.length


class Timeline:
    """The times in the batches of a log. Rows without a store time are left out."""

    COLUMNS = ("term", "storeTimestamp", "bornTimestamp", "storeSize")
    """The columns that batches need."""

    def __init__(self) -> None:
        self.messages = 0
        self.first: int | None = None
        """When the first message of the log was stored, in milliseconds since 1970."""
        self.timed = 0
        """Messages with both times that were not stored before they were born."""
        self.born_later = 0
        """Messages stored before they were born: the clocks of producer and broker differ."""
        self.terms: dict[int, int] = {}
        """When the first message of each term was stored, in milliseconds since 1970; at most the first 1000 terms."""
        self._stored = _Grid()
        self._latencies = _Grid()
        self._histogram = BucketCounts()
        self._gaps: list[Gap] = []
        self._last: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch; batches come in the order of the log."""
        batch = batch.filter(batch.column("storeTimestamp").is_valid())
        if not batch.num_rows:
            return
        stored = _milliseconds(batch.column("storeTimestamp"))
        sizes = batch.column("storeSize").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        self.messages += len(stored)
        self.first = int(stored[0]) if self.first is None else self.first
        self._stored.add(stored, np.zeros_like(stored), sizes)
        self._add_gaps(stored)
        self._add_terms(batch.column("term"), stored)
        is_born = batch.column("bornTimestamp").is_valid().to_numpy(zero_copy_only=False)
        if is_born.any():
            born = _milliseconds(batch.column("bornTimestamp").fill_null(0))
            self._add_latencies(stored[is_born], (stored - born)[is_born], sizes[is_born])

    def _add_latencies(self, stored: Longs, latencies: Longs, sizes: Longs) -> None:
        is_later = latencies < 0
        self.born_later += int(is_later.sum())
        stored, latencies, sizes = stored[~is_later], latencies[~is_later], sizes[~is_later]
        if not len(stored):
            return
        self.timed += len(stored)
        slowest = int(latencies.max())
        buckets, counts = np.unique(np.round(np.log1p(latencies) * BUCKETS_PER_E).astype(np.int64), return_counts=True)
        for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self._histogram.add(bucket, count, slowest)
        rows = np.floor(np.log10(np.maximum(latencies, 1)) * _ROWS_PER_TEN).astype(np.int64) + 1  # as latency_row
        rows[latencies == 0] = 0
        self._latencies.add(stored, rows, sizes)

    def _add_gaps(self, stored: Longs) -> None:
        before = stored[0] if self._last is None else self._last
        times = np.concatenate([[before], stored])
        lengths = np.diff(times)
        for place in np.argsort(-lengths, kind="stable")[:_MAX_GAPS]:
            gap = Gap(int(lengths[place]), int(times[place]))
            if gap.length <= 0:
                break
            if len(self._gaps) < _MAX_GAPS:
                heappush(self._gaps, gap)
            else:
                heappushpop(self._gaps, gap)
        self._last = int(stored[-1])

    def _add_terms(self, terms: pa.Array, stored: Longs) -> None:
        is_valid = terms.is_valid().to_numpy(zero_copy_only=False)
        values, places = np.unique(terms.drop_null().to_numpy(zero_copy_only=False), return_index=True)
        times = stored[is_valid][places]
        for term, time in zip(values.tolist(), times.tolist(), strict=True):
            if len(self.terms) < _MAX_TERMS:
                self.terms.setdefault(term, time)

    @property
    def gaps(self) -> list[Gap]:
        """The longest gaps, the longest first."""
        return sorted(self._gaps, key=lambda gap: (-gap.length, gap.start))

    def long_gaps(self, fraction: float) -> list[Gap]:
        """The gaps that are at least `fraction` of the time that `counts` shows, the longest first."""
        bins = self.counts()
        shortest = (bins.end - bins.start) * fraction
        return [gap for gap in self.gaps if bins.start <= gap.start and gap.end <= bins.end and gap.length >= shortest]

    def changes(self) -> list[tuple[int, int]]:
        """The terms that begin after the log's first message, with the store time of their first message."""
        return [(term, time) for term, time in sorted(self.terms.items()) if self.first is None or time > self.first]

    def counts(self, most: int = 240) -> Bins:
        """Messages and bytes by time, in at most `most` bins. Needs a message."""
        bins = self._stored.bins(most)
        return Bins(bins.start, bins.width, bins.messages[0], bins.size[0], bins.outside)

    def latencies(self, most: int = 240) -> Bins:
        """Messages by latency and time; `latency_row` gives the row of a latency."""
        return self._latencies.bins(most)

    def latency_percentile(self, fraction: float) -> int:
        """The latency in milliseconds that `fraction` of the messages do not exceed. Needs a message with one."""
        return self._histogram.percentile(fraction) or 0


def latency_row(milliseconds: int) -> float:
    """The row of a latency in `Timeline.latencies`, with a fraction; row 0 is below 1 ms."""
    return 1 + _ROWS_PER_TEN * float(np.log10(milliseconds)) if milliseconds >= 1 else 0.0


def _milliseconds(column: pa.Array) -> Longs:
    values: Longs = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values // 1000
