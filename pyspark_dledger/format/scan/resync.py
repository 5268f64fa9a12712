"""Resynchronisation: decides at which frame a log continues after corrupt bytes.

Bytes that look like a frame can also be part of a body that an application wrote. So continuity decides, see
`gap_search`. Known entries of the segment's witness come before:

1. A whole known entry is the log's next one.
2. A known entry with a damaged header is lost. The log continues at its end.
3. Continuity decides in the bytes between known entries. A chain there must lead to the next known entry.

The result depends only on the segment's bytes, its witness and its neighbours.
"""

from __future__ import annotations

from functools import cached_property

from pyspark_dledger.format import layout
from pyspark_dledger.format.scan.chains import WalkedChains
from pyspark_dledger.format.scan.expectation import Expectation, KnownFrame, KnownFrames
from pyspark_dledger.format.scan.frames import Frame, Frames
from pyspark_dledger.format.scan.gap_search import MIN_WRONG_RISE, UINT64_MAX, GapSearch

MIN_FLIPPED_RISE = 16
"""A term that a flipped bit raises by so much is damaged, where nothing else decides."""


def is_only_term_damaged(before: Frame | None, last: Frame, frame: Frame) -> bool:
    """Whether ``frame`` continues the log after ``last``, whose term a flipped bit or other damage has raised.

    One entry of a new term, before an entry that an earlier log left, looks alike. But elections raise terms in small
    steps, and the new entry has exactly the size of the one that it overwrote.
    """
    if not last.header or not frame.header or frame.header.index != last.header.index + 1:
        return False
    terms, sizes = {frame.header.term}, {frame.size}
    if before and before.header:
        if before.header.index + 1 != last.header.index or before.header.term > frame.header.term:
            return False
        terms.add(before.header.term)
        sizes.add(before.size)
    rise = last.header.term - frame.header.term
    # As an unsigned number: -1 has 64 bits.
    is_one_bit = any(((last.header.term ^ term) & UINT64_MAX).bit_count() == 1 for term in terms)
    is_odd_size = before is not None and last.size not in sizes
    return rise >= MIN_WRONG_RISE or (rise > 0 and is_one_bit and (rise > 1 or is_odd_size))


def likely_term(before: Frame | None, last: Frame) -> int:
    """The term of ``last``, or a lower one if a flipped bit or other damage has raised it much over ``before``."""
    assert last.header
    if not before or not before.header:
        return last.header.term
    low, term = before.header.term, last.header.term
    if term - low >= MIN_WRONG_RISE:
        return low
    # Without one of its bits, the term is that of the entry before, or a little later.
    likely = (term & ~(1 << bit) for bit in range(MIN_FLIPPED_RISE.bit_length() - 1, 63) if term & 1 << bit)
    flipped = (one for one in likely if low <= one < low + MIN_FLIPPED_RISE)
    return min(flipped, default=term) if term - low >= MIN_FLIPPED_RISE else term


def is_only_index_damaged(frames: Frames, last: Frame, frame: Frame) -> bool:
    """Whether the log continues with ``frame`` after ``last``, the first of all, whose index is damaged.

    The frame after both then follows ``frame``, and not ``last``. What an earlier log left has a lower term.
    """
    if not last.header or not frame.header or frame.header.term < last.header.term:
        return False
    following = frames.at(frame.end)
    if following is None or not following.header or not frames.follows(frame, following):
        return False
    return following.header.index != last.header.index + 2


class Resync:
    """Finds the next frame in one segment."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._walked = WalkedChains()

    @cached_property
    def known(self) -> KnownFrames:
        """What the segment's witness knows. Only for damage, because the first lookup asks it."""
        return KnownFrames(self._frames)

    def next(self, gap: int, expected: Expectation, limit: int) -> int | None:
        """Where the log continues after the gap: at a frame, or where it was closed. None without one before ``limit``.

        Bytes from ``limit`` on are read only if they decide about frames before it.
        """
        frames = self._frames
        if frames.segment.witness is None:
            return self._search(expected, None, limit).find(gap, gap)
        if gap >= frames.data.end:
            return None
        is_zero = not any(frames.data[gap : min(gap + layout.ENTRY_HEADER_SIZE, frames.data.end)])
        # The end of a log, and no damage.
        if is_zero and frames.is_closed_at(gap) and self._search(expected, None, limit).find(gap, gap) is None:
            return None
        return self._next_known(gap, expected, limit)

    def _next_known(self, gap: int, expected: Expectation, limit: int) -> int | None:
        at = gap
        while at < self._frames.data.end:
            known = self.known.at(at)
            if known and known.frame and known.pos == at:
                return at
            if known:
                at = known.end
                continue
            following = self.known.after(at)
            found = self._search(expected, following, limit).find(gap, at)
            if found is not None or following is None:
                return found
            at = following.pos
        return None

    def _search(self, expected: Expectation, following: KnownFrame | None, limit: int) -> GapSearch:
        return GapSearch(self._frames, expected, following, limit, self._walked)
