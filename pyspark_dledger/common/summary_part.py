"""A part of an application's summary: the state that its log alone no longer tells."""

from __future__ import annotations

from typing import NamedTuple

MAX_SUMMARY_PART = 1 << 20
"""Bytes of a part, at most."""


class SummaryPart(NamedTuple):
    """``data`` begins at ``offset`` of a snapshot of ``size`` bytes; ``snapshot`` is the sender's number of it."""

    snapshot: int
    offset: int
    size: int
    data: bytes | bytearray | memoryview

    @property
    def end(self) -> int:
        return self.offset + len(self.data)
