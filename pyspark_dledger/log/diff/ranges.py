"""Ranges of indexes, and their collection in the order of the log."""

from __future__ import annotations

from dataclasses import dataclass

# Listed rows and ranges; further ones are counted.
MAX_LISTED = 1_000


@dataclass(frozen=True)
class Ranges:
    """Ranges of indexes, inclusive: the first `MAX_LISTED`, and the entries and bytes of all."""

    ranges: tuple[tuple[int, int], ...] = ()
    entries: int = 0
    bytes: int = 0


class RangeCounter:
    """Collects `Ranges`."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.entries = self.bytes = 0
        self.last: int | None = None

    def add(self, first: int, last: int, size: int = 0) -> None:
        self.entries += last - first + 1
        self.bytes += size
        if self.ranges and self.last == first - 1 == self.ranges[-1][1]:
            self.ranges[-1] = self.ranges[-1][0], last
        elif len(self.ranges) < MAX_LISTED:
            self.ranges.append((first, last))
        self.last = last

    def ranges_found(self) -> Ranges:
        return Ranges(tuple(self.ranges), self.entries, self.bytes)
