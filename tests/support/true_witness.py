"""A witness that knows entries of a segment as they were before damage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import DLEDGER, KnownEntries, Segment

HEADER_PARTS = ((0, 32), (44, 48))
"""Of an entry's header: magic, size, index, term and pos; bodySize. Index units do not have the others."""


@dataclass(frozen=True)
class TrueWitness:
    """Knows entries by their true position, size and header."""

    entries: tuple[tuple[int, int, bytes], ...]

    @staticmethod
    def of(extents: Iterable[tuple[int, ...]], data: bytes, base: int) -> TrueWitness:
        """The witness of entries at ``(pos, size, ...)`` in the undamaged bytes of a segment."""
        return TrueWitness(
            tuple((pos, size, data[pos - base : pos - base + ENTRY_HEADER_SIZE]) for pos, size, *_ in extents)
        )

    def known_entries(self, segment: Segment) -> KnownEntries:
        whole = [_agrees(segment, segment.read(pos, ENTRY_HEADER_SIZE), header) for pos, _, header in self.entries]
        pos = np.array([pos for pos, *_ in self.entries], np.int64)
        size = np.array([size for _, size, _ in self.entries], np.int64)
        return KnownEntries(pos, pos + size, np.array(whole, np.bool_))


def _agrees(segment: Segment, found: bytes, header: bytes) -> bool:
    parts = HEADER_PARTS if segment.source == DLEDGER else ((0, 8), (28, 36))
    return all(found[start:end] == header[start:end] for start, end in parts)
