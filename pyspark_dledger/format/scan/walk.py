"""Walks over a segment: every byte of a range becomes part of a frame, a blank or a corrupt extent.

The result depends only on the segment's bytes and its witness, so scans of any split of a range see the same extents.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.scan.chains import RECENT_FRAMES, Expectation, LogPosition, WalkHistory, end_before
from pyspark_dledger.format.scan.frames import SPAN_WINDOW, Blank, Frame, Frames
from pyspark_dledger.format.scan.resync import Resync, is_only_index_damaged, is_only_term_damaged, likely_term
from pyspark_dledger.format.spec import DLEDGER, LogEnd

MAX_EXTENT = 2**31 - 1
EXTENT_STEP = 2**30
SEARCH_WINDOW = 8 * 1024 * 1024


class Span(NamedTuple):
    """A frame, or a corrupt extent with the problem at its first byte; the size is in bytes."""

    pos: int
    size: int
    frame: Frame | None
    problem: Fact | None

    @property
    def end(self) -> int:
        return self.pos + self.size


class Walk:
    """Iterates once over the frames and corrupt extents that begin in ``[start, end)``.

    A frame or an extent begins at ``start``. Corrupt extents are cut at ``end``. With ``end_is_boundary``, a frame or
    blank that extends past ``end`` raises StoreError. The bytes between two extents are a blank.
    """

    def __init__(self, frames: Frames, start: int, end: int, end_is_boundary: bool = False) -> None:
        self._frames = frames
        self._resync = Resync(frames)
        self._start = self.pos = start
        self._end = end
        self._end_is_boundary = end_is_boundary
        self.odd_blank: Blank | None = None
        """A blank of a wrong size without a frame after it; it counts as a blank up to ``end``."""
        self._last: Frame | None = None  # since the last gap
        self.history = WalkHistory(end_before(frames.segment) if start == frames.segment.base else None)
        self._is_history_known = start == frames.segment.base or frames.segment.source != DLEDGER

    def __iter__(self) -> Iterator[Span]:
        frames, end = self._frames, self._end
        while self.pos < end:
            pos = self.pos
            found = frames.examine(pos)
            if isinstance(found, Frame) and not self._is_of_log(found):
                assert self._last
                yield from self._damage(pos, None, order_reason(self._last, found))
                continue
            if isinstance(found, Frame):
                if self._end_is_boundary and found.end > end:
                    raise _not_a_boundary(frames, end, frames.name, pos, found.size)
                self.history.add(found)
                self._last = found
                self.pos = found.end
                yield Span(pos, found.size, found, None)
                continue
            blank = frames.blank_at(pos)
            if blank and (frames.is_closing(blank) or frames.is_leading(blank)):
                if self._end_is_boundary and pos + blank.size > end:
                    raise _not_a_boundary(frames, end, "blank", pos, blank.size)
                self._expected(pos)  # starts the history again: a blank can stand for any number of entries
                self._last = None
                self.pos += blank.size
                continue
            yield from self._damage(pos, blank, found)

    def _damage(self, pos: int, blank: Blank | None, reason: Fact) -> Iterator[Span]:
        frames, end = self._frames, self._end
        self._last = None
        # A frame at `end` counts as found. Otherwise a split there would lose the extent after a bad blank.
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

    def _is_of_log(self, frame: Frame) -> bool:
        """Whether a frame on the walk is of the log. Only a known entry can contradict it."""
        last = self._last
        if last is None or self._frames.segment.witness is None or self._frames.follows(last, frame):
            return True
        return self._resync.known.accepts(last, frame)

    def _expected(self, pos: int) -> Expectation:
        if not self._is_history_known:
            self._is_history_known = True
            if len(self.history.recent) < RECENT_FRAMES:
                earlier = Walk(self._frames, self._frames.segment.base, self._start)
                deque(earlier, maxlen=0)
                self.history.prepend(earlier.history)
        return self.history.expected_at(pos)


def odd_blank_reason(frames: Frames, blank: Blank) -> Fact:
    """The problem of a blank that does not extend to the end of the file."""
    return Fact(ProblemCode.BLANK_SIZE, blank.pos, frames.data.end - blank.pos, blank.size)


def order_reason(last: Frame, frame: Frame) -> Fact:
    """The problem of a frame that is not of the log and does not follow ``last``."""
    before, found = last.header, frame.header
    assert before and found
    index = min(before.index + 1, INT64_MAX)
    return Fact(ProblemCode.ORDER, frame.pos, index, found.index, before.term, found.term)


def _corrupt(pos: int, end: int, problem: Fact) -> Iterator[Span]:
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
    """See `engine.Engine.log_end`."""
    file_end = frames.data.end
    resync = Resync(frames)
    first: Frame | None = None
    before: Frame | None = None
    last: Frame | None = None
    resumed = -1
    entries = 0
    pos = start
    while pos < file_end:
        frame = frames.at(pos)
        adjacent = before if last and last.pos != resumed else None
        if frame and (pos == resumed or _continues(frames, resync, adjacent, last, frame)):
            first, before, last = first or frame, last, frame
            entries += 1
            pos = frame.end
            continue
        if frame and last and entries == 1 and _first_is_damaged(frames, resync, last, frame):
            first = last = frame
            pos = frame.end
            continue
        blank = None if frame else frames.blank_at(pos)
        if blank and frames.is_closing(blank):
            break
        if blank and frames.is_leading(blank):
            pos += blank.size
            continue
        limit = file_end if search_all else min(file_end, pos + SEARCH_WINDOW)
        found = resync.next(pos, _expected_after(frames, resync, before, last, pos), limit)
        if found is None:
            break
        pos = resumed = found
    return _log_end(start, entries, first, last)


def _continues(frames: Frames, resync: Resync, before: Frame | None, last: Frame | None, frame: Frame) -> bool:
    """Whether ``frame``, right after ``last``, is the log's next one; ``before`` is the one before ``last``."""
    if last is None or frames.follows(last, frame):
        return True
    return is_only_term_damaged(before, last, frame) and not _is_known_whole(frames, resync, last)


def _first_is_damaged(frames: Frames, resync: Resync, first: Frame, frame: Frame) -> bool:
    """Whether ``frame``, right after the search's first one, is of the log, and the first one has a wrong index."""
    return is_only_index_damaged(frames, first, frame) and not _is_known_whole(frames, resync, first)


def _is_known_whole(frames: Frames, resync: Resync, frame: Frame) -> bool:
    known = resync.known.at(frame.pos) if frames.segment.witness else None
    return known is not None and known.frame is not None


def _expected_after(frames: Frames, resync: Resync, before: Frame | None, last: Frame | None, gap: int) -> Expectation:
    """What can continue a log after `last`. It is strict, because stale bytes must not become part of the log."""
    if last is None:
        known = end_before(frames.segment) if gap == frames.segment.base else None
        return Expectation((known,) if known else (), 1, strict=True)
    if last.header:
        term = likely_term(before, last)
        if term != last.header.term and _is_known_whole(frames, resync, last):
            term = last.header.term
        position = LogPosition(last.header.index, term, gap)
        return Expectation((position,), 1, strict=True, shift=last.shift)
    assert last.message
    return Expectation((), 1, strict=True, min_store_timestamp=last.message.store_timestamp)


def _log_end(start: int, entries: int, first: Frame | None, last: Frame | None) -> LogEnd:
    if first is None or last is None:
        return LogEnd(start, 0, -1, -1, -1, -1, -1, -1)
    if first.header and last.header:
        ends = first.header.index, first.header.term, last.header.index, last.header.term
        return LogEnd(last.end, entries, *ends, last.pos, -1)
    assert last.message
    return LogEnd(last.end, entries, -1, -1, -1, -1, last.pos, last.message.store_timestamp)


def find_splits(frames: Frames, start: int, end: int, target_bytes: int) -> list[int]:
    """See `engine.Engine.split`."""
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
    """The first frame in ``[target, end)`` that every walk from before it is proven to visit.

    The proof is an anchor: a frame that no earlier frame or blank extends over. After it only its own chain of frames
    is found, for longer than any body. A walk arrives at the anchor or in its chain, even after damage.
    """
    leading = frames.blank_at(frames.segment.base)
    reach = leading.pos + leading.size if leading and frames.is_leading(leading) else frames.segment.base
    anchor = -1
    last: Frame | None = None
    begin = target - 2 * SPAN_WINDOW
    searches: list[Iterator[Frame | Blank]] = [frames.search(begin, end), frames.search_blanks(begin, end)]
    for found in heapq.merge(*searches, key=lambda found: found.pos):
        if isinstance(found, Blank):
            if frames.is_closing(found):
                last = None
        elif last and found.pos == last.end and frames.follows(last, found):
            last = found
            if found.pos >= max(target, anchor + SPAN_WINDOW):
                return found.pos
        else:
            is_free = found.pos >= max(target - SPAN_WINDOW, reach)
            anchor, last = (found.pos, found) if is_free else (-1, None)
        reach = max(reach, found.pos + found.size)
    return None
