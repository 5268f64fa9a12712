"""The walk over a segment: every byte of a range becomes part of a frame, a blank or a corrupt extent.

It depends on the segment's bytes alone, so scans of any split of a range see the same extents.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.frames import Blank, Frame, Frames
from pyspark_dledger.format.spec import LogEnd

MAX_EXTENT = 2**31 - 1
EXTENT_STEP = 2**30
SEARCH_WINDOW = 8 * 1024 * 1024
# A blank ends a file where an entry of the largest size did not fit any more, hence a little more than one entry.
SPAN_WINDOW = layout.MAX_ENTRY_SIZE + 4096


class Span(NamedTuple):
    """A frame, or a corrupt extent with what is wrong at its first byte. Its size is in bytes."""

    pos: int
    size: int
    frame: Frame | None
    problem: str | None

    @property
    def end(self) -> int:
        return self.pos + self.size


def walk(frames: Frames, start: int, end: int, end_is_boundary: bool = False) -> Iterator[Span]:
    """The frames and corrupt extents that begin in ``[start, end)``; ``start`` is where a frame or an extent begins.

    Corrupt extents are clipped at ``end``. With ``end_is_boundary`` a frame or blank that reaches over ``end`` raises
    StoreError.
    """
    pos = start
    while pos < end:
        there = frames.examine(pos)
        if isinstance(there, Frame):
            if end_is_boundary and there.end > end:
                raise _not_a_boundary(frames, end, frames.name, pos, there.size)
            yield Span(pos, there.size, there, None)
            pos = there.end
            continue

        blank = frames.blank_at(pos)
        skipped = _skipped(frames, blank) if blank else 0
        if skipped:
            if end_is_boundary and pos + skipped > end:
                raise _not_a_boundary(frames, end, "blank", pos, skipped)
            pos += skipped
            continue

        # A frame at `end` counts as found, else a split there would lose the extent behind a bad blank.
        found = next(frames.search(pos + 1, end + 1), None)
        if found is None and frames.data.end < end:
            yield from _corrupt(pos, end, frames.data.shortage)
            return
        if blank is None:
            yield from _corrupt(pos, found.pos if found else end, there)
        elif found:
            left = frames.data.end - pos
            yield from _corrupt(pos, found.pos, f"expected a blank of {left} bytes at {pos}, found {blank.size}")
        pos = found.pos if found else end


def _skipped(frames: Frames, blank: Blank) -> int:
    """How many bytes a blank passes over; 0 if its size makes no sense."""
    end = blank.pos + blank.size
    if end in (frames.segment.end, frames.data.end) or frames.is_skipping(blank):
        return blank.size
    return 0


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
    first = last = taken = None
    entries = 0
    pos = start
    while pos < file_end:
        frame = taken or frames.at(pos)
        if frame and (frame is taken or last is None or frames.follows(last, frame)):
            first, last, taken = first or frame, frame, None
            entries += 1
            pos = frame.end
            continue
        blank = frames.blank_at(pos)
        if blank and blank.pos + blank.size in (frames.segment.end, file_end):
            break
        if blank and frames.is_skipping(blank):
            pos += blank.size
            continue
        limit = file_end if search_all else min(file_end, pos + SEARCH_WINDOW)
        later = frames.search(pos + 1, limit)
        taken = next((frame for frame in later if last is None or frames.continues(last, frame, pos)), None)
        if taken is None:
            break
        pos = taken.pos
    return _log_end(start, entries, first, last)


def _log_end(start: int, entries: int, first: Frame | None, last: Frame | None) -> LogEnd:
    if first is None or last is None:
        return LogEnd(start, 0, -1, -1, -1, -1, -1, -1)
    if first.header and last.header:
        ends = first.header.index, first.header.term, last.header.index, last.header.term
        return LogEnd(last.end, entries, *ends, last.pos, -1)
    assert last.message
    return LogEnd(last.end, entries, -1, -1, -1, -1, last.pos, last.message.store_timestamp)


def find_boundary(frames: Frames, known: int, target: int, end: int) -> int | None:
    """The first frame in ``[target, end)`` that every walk visits; ``known`` is an earlier position on the walk.

    No frame is longer than `SPAN_WINDOW`. So a frame that nothing within that distance before it spans, entry or blank
    or what merely looks so, stands on the walk.
    """
    start = max(known, frames.segment.base, target - SPAN_WINDOW)
    reach = start
    leading = frames.blank_at(frames.segment.base)
    if leading and frames.is_skipping(leading):
        reach = max(reach, leading.pos + leading.size)
    for pos, size, is_frame in heapq.merge(
        ((frame.pos, frame.size, True) for frame in frames.search(start, end)),
        ((blank.pos, blank.size, False) for blank in frames.search_blanks(start, end)),
    ):
        if is_frame and pos >= target and pos >= reach:
            return pos
        reach = max(reach, pos + size)
    return None
