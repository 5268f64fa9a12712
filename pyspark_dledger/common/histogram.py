"""Counts of durations, for metrics. One thread observes, others may read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds in seconds."""
DISK_LATENCIES = (0.0001, 0.0002, 0.0005, *LATENCIES)


class Histogram:
    """``counts[n]`` are the durations up to ``bounds[n]`` and above the bound before; ``total`` is their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCIES) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count `count` events that took so long each."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.total += seconds * count
