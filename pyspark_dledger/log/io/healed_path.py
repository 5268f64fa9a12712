"""The path of a segment whose parts come from several replicas."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, final

from pyspark_dledger.format.spec import Segment


class HealedPart(NamedTuple):
    """Positions ``[start, end)`` of a log, which a replica has in ``segment``; None if no replica has the file.

    ``healed_from`` names the replica unless it is the first one. A ``header`` replaces the one of an entry. No replica
    has a part intact that ``is_lost``. ``problem`` says that copies of an entry differ and nothing decides.
    """

    start: int
    end: int
    segment: Segment | None
    healed_from: str | None = None
    header: bytes = b""
    is_lost: bool = False
    problem: str | None = None


@final
class HealedPath(str):
    """A path as text, and the parts of the segment by position; ``base`` is the segment's."""

    base: int
    parts: tuple[HealedPart, ...]

    def __new__(cls, path: str, base: int, parts: tuple[HealedPart, ...]) -> HealedPath:
        made = super().__new__(cls, path)
        made.base, made.parts = base, parts
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return HealedPath, (str.__str__(self), self.base, self.parts)

    def __repr__(self) -> str:
        """The path with a digest of its parts: the plan of an export is compared by it."""
        parts = "\n".join(repr((*part[:2], part.segment and part.segment.path, *part[3:])) for part in self.parts)
        digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
        return f"HealedPath({super().__repr__()}, {digest})"

    def within(self, start: int, end: int) -> Iterator[HealedPart]:
        """The parts with positions in ``[start, end)``."""
        first = max(bisect_right(self.parts, start, key=lambda part: part.start) - 1, 0)
        for part in self.parts[first:]:
            if part.start >= end:
                return
            if part.end > start:
                yield part

    def reads(self, offset: int, size: int) -> Iterator[tuple[str, int, int] | bytes]:
        """The bytes at an offset of the segment, as bytes or as path, offset and size; zeros between the parts."""
        at, end = self.base + offset, self.base + offset + size
        for part in self.within(at, end):
            low, high = max(at, part.start), min(end, part.end)
            yield bytes(low - at)
            header = part.header[low - part.start : high - part.start]
            yield header
            low += len(header)
            if part.segment is None:
                yield bytes(high - low)
            else:
                yield part.segment.path, low - part.segment.base, high - low
            at = high
