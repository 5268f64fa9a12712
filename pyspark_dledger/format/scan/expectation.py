"""What can follow a gap in a log: indexes, terms and positions, from the frames before it."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.scan.frames import Frame, Frames
from pyspark_dledger.format.spec import Segment

RECENT_FRAMES = 8
"""So many frames before a gap decide what can follow it."""


class LogPosition(NamedTuple):
    """A possible end of the log: the last entry's index, the minimum term of the next one, and where the gap begins."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    min_term: int
    gap: int

    def allows(self, frame: Frame) -> bool:
        """Whether `frame` can be the next one after the gap, in which at least one entry is lost."""
        assert frame.header
        lost = frame.header.index - self.index - 1
        max_lost = (frame.pos - self.gap) // layout.ENTRY_HEADER_SIZE
        return 1 <= lost <= max_lost and frame.header.term >= self.min_term


def end_before(segment: Segment) -> LogPosition | None:
    """Where the log ended before the segment, if that is known."""
    if segment.before is None:
        return None
    index, term, end, _ = segment.before
    # DLedger 0.4.0 can begin a file with a blank, in which no entry is lost.
    if segment.check_pos:
        return LogPosition(index, term, end)
    return LogPosition(index - 1, term, end - layout.ENTRY_HEADER_SIZE)


class Expectation(NamedTuple):
    """What can follow a gap: a frame that one of the positions allows, or any frame if there are no positions.

    ``agreement`` is how many of the last frames agree on the positions. ``strict`` forbids all other frames.
    ``min_store_timestamp`` (ms) is that of an old CommitLog's next message. ``shift`` is that of the last frame, which
    the next one probably has too.
    """

    positions: tuple[LogPosition, ...]
    agreement: int
    strict: bool = False
    min_store_timestamp: int | None = None
    shift: int | None = None

    def allows(self, frame: Frame) -> bool:
        if frame.message:
            return self.min_store_timestamp is None or frame.message.store_timestamp >= self.min_store_timestamp
        return not self.positions or any(position.allows(frame) for position in self.positions)


class WalkHistory:
    """Index, term and shift of the last frames that a walk passed without a gap."""

    def __init__(self, before: LogPosition | None = None) -> None:
        self.recent: deque[tuple[int, int, int]] = deque(maxlen=RECENT_FRAMES)
        self._known = Expectation((before,), RECENT_FRAMES) if before else Expectation((), 0)

    def add(self, frame: Frame) -> None:
        if frame.header:
            self.recent.append((frame.header.index, frame.header.term, frame.shift))

    def prepend(self, earlier: WalkHistory) -> None:
        """Put the history of a walk that ended where this one began before it."""
        self.recent = deque([*earlier.recent, *self.recent], maxlen=RECENT_FRAMES)
        self._known = earlier._known

    def expected_at(self, gap: int) -> Expectation:
        """What can follow the gap at this position. The history starts again after it."""
        if not self.recent:
            return self._known
        # Each recent frame gives the index that the last of them should have; most may be right.
        indexes = [min(index + number, INT64_MAX) for number, (index, _, _) in enumerate(reversed(self.recent))]
        counts = Counter(indexes)
        agreement = max(counts.values())
        # A single frame proves little: its term is not used, and what was known before it stays possible.
        is_alone = len(self.recent) == 1
        min_term = -1 if is_alone else min(term for _, term, _ in self.recent)
        positions = tuple(
            LogPosition(index, min_term, gap) for index in dict.fromkeys(indexes) if counts[index] == agreement
        )
        shift = self.recent[-1][2]
        expected = Expectation(positions + (self._known.positions if is_alone else ()), agreement, shift=shift)
        self.recent.clear()
        self._known = Expectation(positions, agreement, shift=shift)
        return expected


class KnownFrame(NamedTuple):
    """An entry of the log in ``[pos, end)``; without ``frame`` its header is damaged."""

    pos: int
    end: int
    frame: Frame | None


class KnownFrames:
    """Looks up known entries. The first lookup asks the witness, and later ones of the same file do not."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def at(self, pos: int) -> KnownFrame | None:
        """The known entry with the byte at ``pos``."""
        known = self._frames.data.known_entries
        number = int(np.searchsorted(known.pos, pos, "right")) - 1
        return self._get(number) if number >= 0 and pos < known.end[number] else None

    def after(self, pos: int) -> KnownFrame | None:
        """The first known entry that begins after ``pos``, in the bytes that the file has."""
        known = self._frames.data.known_entries
        stop = int(np.searchsorted(known.pos, self._frames.data.end))
        for number in range(int(np.searchsorted(known.pos, pos, "right")), stop):
            if found := self._get(number):
                return found
        return None

    def accepts(self, last: Frame, frame: Frame) -> bool:
        """Whether a frame that does not follow ``last`` is of the log: known, or not contradicted by known ones."""
        known = self.at(frame.pos)
        if known is None:
            following = self.after(frame.pos)
            return following is None or following.pos >= frame.end
        if (known.pos, known.end) != (frame.pos, frame.end):
            return False
        # Only the index is damaged. A lower term is that of an entry which an earlier log left at this position.
        is_later = not last.header or not frame.header or frame.header.term >= last.header.term
        return known.frame is not None or is_later

    def _get(self, number: int) -> KnownFrame | None:
        """A known entry; None if it should be whole and is not, so that its end is doubtful."""
        known = self._frames.data.known_entries
        pos, end = int(known.pos[number]), int(known.end[number])
        if not known.is_whole[number]:
            return KnownFrame(pos, end, None)
        frame = self._frames.at(pos)
        return KnownFrame(pos, end, frame) if frame and frame.end == end else None
