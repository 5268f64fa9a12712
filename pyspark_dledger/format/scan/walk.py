"""The walk over a segment: every byte of a range becomes part of a frame, a blank or a corrupt extent.

It depends on the segment's bytes alone, so scans of any split of a range see the same extents.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.scan.frames import Blank, Frame, Frames
from pyspark_dledger.format.scan.resync import (
    SPAN_WINDOW,
    VOTERS,
    Course,
    Expectation,
    LogPosition,
    Resync,
    place_before,
)
from pyspark_dledger.format.spec import DLEDGER, LogEnd

MAX_EXTENT = 2**31 - 1
EXTENT_STEP = 2**30
SEARCH_WINDOW = 8 * 1024 * 1024


class Span(NamedTuple):
    """A frame, or a corrupt extent with what is wrong at its first byte. Its size is in bytes."""

    pos: int
    size: int
    frame: Frame | None
    problem: str | None

    @property
    def end(self) -> int:
        return self.pos + self.size


class Walk:
    """The frames and corrupt extents that begin in ``[start, end)``, in order, for iterating over once.

    ``start`` is where a frame or an extent begins; corrupt extents are clipped at ``end``. With ``end_is_boundary`` a
    frame or blank that reaches over ``end`` raises StoreError. What lies between two extents is a blank.
    """

    def __init__(self, frames: Frames, start: int, end: int, end_is_boundary: bool = False) -> None:
        self._frames = frames
        self._resync = Resync(frames)
        self._start = self.pos = start
        self._end = end
        self._end_is_boundary = end_is_boundary
        self.odd_blank: Blank | None = None
        """A blank of a wrong size that nothing stands behind; it counts as one up to the end."""
        self.course = Course(place_before(frames.segment) if start == frames.segment.base else None)
        self._knows_course = start == frames.segment.base or frames.segment.source != DLEDGER

    def __iter__(self) -> Iterator[Span]:
        frames, end = self._frames, self._end
        while self.pos < end:
            pos = self.pos
            there = frames.examine(pos)
            if isinstance(there, Frame):
                if self._end_is_boundary and there.end > end:
                    raise _not_a_boundary(frames, end, frames.name, pos, there.size)
                self.course.step(there)
                self.pos = there.end
                yield Span(pos, there.size, there, None)
                continue
            blank = frames.blank_at(pos)
            if blank and (frames.is_closing(blank) or frames.is_skipping(blank)):
                if self._end_is_boundary and pos + blank.size > end:
                    raise _not_a_boundary(frames, end, "blank", pos, blank.size)
                self._expected(pos)  # not used, but nothing tells how many entries it stands for
                self.pos += blank.size
                continue
            yield from self._damage(pos, blank, there)

    def _damage(self, pos: int, blank: Blank | None, reason: str) -> Iterator[Span]:
        frames, end = self._frames, self._end
        # A frame at `end` counts as found, else a split there would lose the extent behind a bad blank.
        found = self._resync.next(pos, self._expected(pos), end + 1)
        if found is None or found > end:
            self.pos = end
            if frames.data.end < end:
                yield from _corrupt(pos, end, frames.data.shortage)
            elif blank is None:
                yield from _corrupt(pos, end, reason)
            else:
                self.odd_blank = blank
            return
        self.pos = found
        if blank:
            reason = odd_blank_reason(frames, blank)
        yield from _corrupt(pos, found, reason)

    def _expected(self, pos: int) -> Expectation:
        if not self._knows_course:
            self._knows_course = True
            if len(self.course.recent) < VOTERS:
                earlier = Walk(self._frames, self._frames.segment.base, self._start)
                deque(earlier, maxlen=0)
                self.course.precede(earlier.course)
        return self.course.at_gap(pos)


def odd_blank_reason(frames: Frames, blank: Blank) -> str:
    """What is wrong with a blank that does not reach to the end of the file."""
    return f"expected a blank of {frames.data.end - blank.pos} bytes at {blank.pos}, found {blank.size}"


def _corrupt(pos: int, end: int, problem: str) -> Iterator[Span]:
    step = end - pos if end - pos <= MAX_EXTENT else EXTENT_STEP
    while pos < end:
        size = min(step, end - pos)
        yield Span(pos, size, None, problem)
        pos += size


def _not_a_boundary(frames: Frames, end: int, what: str, pos: int, size: int) -> StoreError:
    path = frames.segment.path
    return StoreError(
        f"{path}: a split at {end} is not on an entry boundary: the {what} at {pos} ends at {pos + size}; "
        "was the file changed after it was planned?"
    )


def find_log_end(frames: Frames, start: int, search_all: bool) -> LogEnd:
    """Where the log ends, see `python_engine.log_end`."""
    file_end = frames.data.end
    resync = Resync(frames)
    first = last = None
    taken = -1
    entries = 0
    pos = start
    while pos < file_end:
        frame = frames.at(pos)
        if frame and (pos == taken or last is None or frames.follows(last, frame)):
            first, last = first or frame, frame
            entries += 1
            pos = frame.end
            continue
        blank = None if frame else frames.blank_at(pos)
        if blank and frames.is_closing(blank):
            break
        if blank and frames.is_skipping(blank):
            pos += blank.size
            continue
        limit = file_end if search_all else min(file_end, pos + SEARCH_WINDOW)
        found = resync.next(pos, _expected_behind(frames, last, pos), limit)
        if found is None:
            break
        pos = taken = found
    return _log_end(start, entries, first, last)


def _expected_behind(frames: Frames, last: Frame | None, gap: int) -> Expectation:
    """What may continue a log that ended with `last`: never anything else, or stale bytes would become part of it."""
    if last is None:
        before = place_before(frames.segment) if gap == frames.segment.base else None
        return Expectation((before,) if before else (), 1, strict=True)
    if last.header:
        return Expectation((LogPosition(last.header.index, last.header.term, gap),), 1, strict=True)
    assert last.message
    return Expectation((), 1, strict=True, store_timestamp=last.message.store_timestamp)


def _log_end(start: int, entries: int, first: Frame | None, last: Frame | None) -> LogEnd:
    if first is None or last is None:
        return LogEnd(start, 0, -1, -1, -1, -1, -1, -1)
    if first.header and last.header:
        ends = first.header.index, first.header.term, last.header.index, last.header.term
        return LogEnd(last.end, entries, *ends, last.pos, -1)
    assert last.message
    return LogEnd(last.end, entries, -1, -1, -1, -1, last.pos, last.message.store_timestamp)


def find_splits(frames: Frames, start: int, end: int, target_bytes: int) -> list[int]:
    """Positions inside ``(start, end)``, ascending and about ``target_bytes`` apart, that every walk visits."""
    if target_bytes <= 2 * SPAN_WINDOW:
        return _walked_splits(frames, start, end, target_bytes)
    boundaries: list[int] = []
    known = start
    while known + target_bytes < end:
        boundary = find_boundary(frames, known + target_bytes, end)
        if boundary is None or end - boundary < target_bytes // 4:
            break
        boundaries.append(boundary)
        known = boundary
    return boundaries


def _walked_splits(frames: Frames, start: int, end: int, target_bytes: int) -> list[int]:
    boundaries: list[int] = []
    known = start
    for span in Walk(frames, start, end):
        if span.frame and span.pos >= known + target_bytes:
            if end - span.pos < target_bytes // 4:
                break
            boundaries.append(span.pos)
            known = span.pos
    return boundaries


def find_boundary(frames: Frames, target: int, end: int) -> int | None:
    """The first frame in ``[target, end)`` that is proven to be visited by every walk from before.

    What proves it is an anchor: a frame that nothing before it reaches over, and behind which its own chain of frames
    is all that can be seen, for longer than any body. So a walk arrives at the anchor or in its chain, damaged as the
    bytes before may be.
    """
    leading = frames.blank_at(frames.segment.base)
    reach = leading.pos + leading.size if leading and frames.is_skipping(leading) else frames.segment.base
    anchor = -1
    last: Frame | None = None
    begin = target - 2 * SPAN_WINDOW
    places: list[Iterator[Frame | Blank]] = [frames.search(begin, end), frames.search_blanks(begin, end)]
    for place in heapq.merge(*places, key=lambda place: place.pos):
        if isinstance(place, Blank):
            if frames.is_closing(place):
                last = None
        elif last and place.pos == last.end and frames.follows(last, place):
            last = place
            if place.pos >= max(target, anchor + SPAN_WINDOW):
                return place.pos
        else:
            is_free = place.pos >= max(target - SPAN_WINDOW, reach)
            anchor, last = (place.pos, place) if is_free else (-1, None)
        reach = max(reach, place.pos + place.size)
    return None
