"""What can follow a gap in a log, and chains of consecutive frames: whether they can be of the log."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.scan.frames import MIN_BODY_START, SPAN_WINDOW, Blank, DamagedFrame, Frame, Frames
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
        is_after = frame.header.index > self.index + 1
        return is_after and self.has_room_before(frame) and frame.header.term >= self.min_term

    def has_room_before(self, frame: Frame) -> bool:
        """Whether all entries between the position and `frame` have room in the gap."""
        assert frame.header
        return frame.header.index - self.index - 1 <= (frame.pos - self.gap) // layout.ENTRY_HEADER_SIZE


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

    def has_room_before(self, frame: Frame) -> bool:
        """Whether all entries before `frame` have room in the gap, by one of the positions."""
        if not frame.header or not self.positions:
            return True
        return any(position.has_room_before(frame) for position in self.positions)


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


MAX_WALKED = 64
WALKED_INTERVAL = 64
"""Walks remember one of so many frames."""


class Chain(NamedTuple):
    """Consecutive frames in order, ``length`` of them. Single damaged ones between them do not count.

    A `strong` chain is longer than any body. A `closed` one ends where a log can end: at the end of the file, at a
    blank up to there, or at bytes that were never written. A `cut` one ends where no frame can follow. A `damaged` one
    is a single header that has its own position, but is no frame.
    """

    first: Frame
    last: Frame
    length: int
    strong: bool = False
    closed: bool = False
    cut: bool = False
    damaged: bool = False

    @property
    def end(self) -> int:
        return self.last.end

    def is_stale_after(self, other: Chain) -> bool:
        """Whether an earlier log left this chain after the end of ``other``, whose last terms are later."""
        if not self.first.header or not other.first.header or not other.last.header:
            return False
        # A lone term can be damaged.
        is_later = other.first.header.index <= self.first.header.index or other.length > 1
        return is_later and self.first.header.term < other.last.header.term

    def has_later_term(self, other: Chain) -> bool:
        first, last = self.first.header, other.last.header
        return first is not None and last is not None and first.term > last.term

    def leads_to(self, frame: Frame) -> bool:
        """Whether `frame` can be the next one of the log, directly after the chain or after damage at its end."""
        if frame.pos < self.end:
            return False
        if not self.first.header or not self.last.header or not frame.header:
            # Fewer bytes than a message has: the chain is in the body of one that ends here.
            return frame.pos == self.end or frame.pos - self.end >= layout.MIN_MESSAGE_SIZE
        if self.damaged:
            # The end of a damaged entry is unknown.
            return LogPosition(self.first.header.index - 1, self.first.header.term, self.first.pos).allows(frame)
        # A wrong term may have ended the chain.
        position = LogPosition(self.last.header.index, self.first.header.term, self.end)
        return position.allows(frame) or (frame.pos == self.end and frame.header.index == position.index + 1)


class WalkedChains:
    """Chains that a search walked after the one that it chose, for the next search. They change no result.

    A walk that comes to a frame of a walked chain need not walk the rest again.
    """

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}
        self._rests: dict[int, tuple[Frame, int]] = {}

    def get(self, pos: int) -> Chain | None:
        return self._chains.get(pos)

    def keep(self, chain: Chain) -> None:
        self._chains[chain.first.pos] = chain
        while len(self._chains) > MAX_WALKED:
            del self._chains[next(iter(self._chains))]

    def rest(self, frame: Frame) -> tuple[Frame, int] | None:
        """The last frame of a walked chain, and its frames from this one on."""
        return self._rests.get(frame.pos)

    def keep_rests(self, passed: list[tuple[Frame, int]], chain: Chain) -> None:
        """Remember the frames that the walk of a chain passed, with their numbers in it."""
        for frame, number in passed:
            length = chain.length - number + 1
            if length >= WALKED_INTERVAL:
                self._rests[frame.pos] = (chain.last, length)


class Chains:
    """The chains of one search, before the known entry that follows. Each frame is walked once."""

    def __init__(
        self, frames: Frames, expected: Expectation, following: KnownFrame | None, walked: WalkedChains
    ) -> None:
        self._frames = frames
        self._expected = expected
        self._following = following
        self._walked = walked
        # The rest of each walked chain after its first frame, by the position where the rest begins.
        self._rests: dict[int, Chain] = {}
        # Whether the chain that was walked last does not depend on what this search expects.
        self._is_reusable = True

    def at(self, first: Frame, is_kept: bool) -> Chain:
        """The chain from a frame on. With ``is_kept`` later searches can need it."""
        chain = self._rests.pop(first.pos, None)
        if chain is None and self._following is None:
            chain = self._walked.get(first.pos)
        if chain is None:
            chain = self.walk(first)
            if is_kept and self._following is None and self._is_reusable:
                self._walked.keep(chain)
        if chain.length > 1 and not chain.strong:
            second = self._next(first)
            assert second
            self._rests[second.pos] = chain._replace(first=second, length=chain.length - 1)
        return chain

    def walk(self, first: Frame) -> Chain:
        self._is_reusable = True
        passed: list[tuple[Frame, int]] = []
        chain = self._walk(first, passed)
        self._walked.keep_rests(passed, chain)
        return chain

    def _walk(self, first: Frame, passed: list[tuple[Frame, int]]) -> Chain:
        frames, following = self._frames, self._following
        last, length, steps = first, 1, 0
        while last.end - first.pos < SPAN_WINDOW:
            rest = self._walked_rest(first, last)
            if rest:
                last, length, steps = rest[0], length + rest[1] - 1, 0
                continue
            if steps % WALKED_INTERVAL == 0:
                passed.append((last, length))
            steps += 1
            if following and last.end == following.pos:
                return Chain(first, last, length, closed=True)
            frame = frames.at(last.end)
            if frame and following and frame.end > following.pos:
                return Chain(first, last, length)
            if frame is None or not frames.follows(last, frame):
                beyond = self._beyond_damaged(last)
                if beyond:
                    last, length = beyond, length + 1
                    continue
                is_closed = frame is None and following is None and frames.is_closed_at(last.end)
                chain = Chain(first, last, length, closed=is_closed)
                return chain._replace(cut=self._is_cut_by_segment(chain) if is_closed else self._is_cut(chain))
            last, length = frame, length + 1
        return Chain(first, last, length, strong=True)

    def _walked_rest(self, first: Frame, last: Frame) -> tuple[Frame, int] | None:
        """The rest of a walked chain from ``last`` on, unless it ends too late."""
        rest = self._walked.rest(last)
        if rest is None or rest[0].end - first.pos >= SPAN_WINDOW:
            return None
        return None if self._following and rest[0].end > self._following.pos else rest

    def _next(self, last: Frame) -> Frame | None:
        """The next frame of a chain."""
        frame = self._frames.at(last.end)
        return frame if frame and self._frames.follows(last, frame) else self._beyond_damaged(last)

    def _beyond_damaged(self, last: Frame) -> Frame | None:
        """The frame after a single damaged one, if both sizes in its header lead to it."""
        frames, following = self._frames, self._following
        sizes = frames.sizes_at(last.end) if last.header else ()
        if len(sizes) < 2 or sizes[0] != sizes[1] or not frames.min_size <= sizes[0] <= layout.MAX_ENTRY_SIZE:
            return None
        frame = frames.at(last.end + sizes[0])
        if frame is None or (following and frame.end > following.pos):
            return None
        assert last.header and frame.header
        is_next = frame.header.index - 2 == last.header.index and frame.header.term >= last.header.term
        return frame if is_next and frame.shift == last.shift else None

    def _is_cut(self, chain: Chain) -> bool:
        """Whether an entry or the closing blank begins where the header of the chain's next entry would be."""
        frames, following = self._frames, self._following
        stop = chain.end + (layout.ENTRY_HEADER_SIZE if chain.last.header else MIN_BODY_START)
        stop = stop if following is None else min(stop, following.pos)
        searches: list[Iterator[Frame | DamagedFrame | Blank]] = [
            frames.search_headers(chain.end, stop),
            frames.search_blanks(chain.end + 1, stop),
        ]
        for found in heapq.merge(*searches, key=lambda found: found.pos):
            if frames.is_closing(found) if isinstance(found, Blank) else self._is_cut_by(chain, found):
                return True
        return self._is_closed_in_header(chain.end)

    def _is_cut_by(self, chain: Chain, found: Frame | DamagedFrame) -> bool:
        is_at_end, last = found.pos == chain.end, chain.last.header
        if last is None:
            return not is_at_end
        frame = found.frame if isinstance(found, DamagedFrame) else found
        assert frame and frame.header
        if is_at_end and isinstance(found, DamagedFrame):
            return frame.header.term == last.term and frame.header.index - 1 != last.index
        # An earlier log left it, or it was moved.
        if frame.header.term < last.term or frame.shift != chain.last.shift:
            return False
        # A leader that was alone left it: its entries were overwritten by those of an earlier term.
        if frame.header.term > last.term:
            return False
        if not is_at_end:
            return True
        # It does not follow: its index is damaged, unless that is the expected one, or another entry follows it.
        following = self._frames.at(frame.end)
        if following is None:
            self._is_reusable = False
            return bool(self._expected.positions) and self._expected.allows(frame)
        assert following.header
        return following.header.index - 2 != last.index and self._frames.follows(frame, following)

    def _is_closed_in_header(self, end: int) -> bool:
        """Whether the log is closed inside the fixed fields of the message after the chain, whose size is lost."""
        data, stop = self._frames.data, end + layout.MIN_MESSAGE_SIZE
        if self._frames.min_size != layout.MIN_MESSAGE_SIZE or stop >= data.end:
            return False
        rest = data[end:stop]
        size = int.from_bytes(rest[:4], "big", signed=True)
        if has_message_magic(rest, 0, len(rest)):
            return False  # the next message, with a damaged size
        if layout.MIN_MESSAGE_SIZE <= size <= layout.MAX_ENTRY_SIZE or rest[-1] or not any(rest):
            return False
        return self._frames.is_closed_at(stop)

    def _is_cut_by_segment(self, chain: Chain) -> bool:
        """Whether the closing blank follows, but not the next segment's first entry.

        That entry's index can be damaged: it must be possible, and a long chain proves more.
        """
        after, last = self._frames.segment.after, chain.last.header
        if after is None or last is None or chain.length >= RECENT_FRAMES:
            return False
        blank = self._frames.blank_at(chain.end)
        if blank is None or not self._frames.is_closing(blank):
            return False
        self._is_reusable = False
        end = self._frames.segment.end
        is_possible = any(
            1 <= after.index - 1 - position.index <= (end - position.gap) // layout.ENTRY_HEADER_SIZE
            for position in self._expected.positions
        )
        return is_possible and (last.index + 1 != after.index or last.term > after.term)
