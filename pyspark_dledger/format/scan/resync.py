"""Resynchronisation: decides at which frame a log continues after corrupt bytes.

Bytes that look like a frame can also be part of a body that an application wrote. So continuity decides:

1. The sizes in the damaged header come first. They count if they lead to a frame that fits or to the end of the log.
2. Else every frame after the gap is a candidate. The last frames before the gap give the indexes and terms that can
   follow. A candidate that fits them is preferred to one that does not.
3. Of several candidates, the one that begins the best chain of frames wins: a chain longer than any body, then one that
   ends where a log can end, then the longest. But what follows a chain of later terms and has higher indexes is stale.
4. A short chain before the winner that leads to it is taken first.

Known entries of the segment's witness come before all this:

1. A whole known entry is the log's next one.
2. A known entry with a damaged header is lost. The log continues at its end.
3. The rules above apply to the bytes between known entries. A chain there must lead to the next known entry.

The result depends only on the segment's bytes and its witness. The work is linear: a chain is walked once, and after
the first choice only a bounded number of candidates is compared with it.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import cached_property
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.scan.frames import SPAN_WINDOW, Frame, Frames
from pyspark_dledger.format.scan.known_frames import KnownFrame, KnownFrames
from pyspark_dledger.format.spec import Segment

MAX_CANDIDATES = 32
"""So many frames after the best candidate are compared with it."""
CANDIDATE_WINDOW = layout.MAX_ENTRY_SIZE
"""And those within so many bytes after its chain."""
RECENT_FRAMES = 8
"""So many frames before a gap decide what can follow it."""
UINT64_MAX = 2**64 - 1
MIN_WRONG_RISE = 2**16
"""No election raises a term by so much."""


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
    index, term, end = segment.before
    # DLedger 0.4.0 can begin a file with a blank, in which no entry is lost.
    if segment.check_pos:
        return LogPosition(index, term, end)
    return LogPosition(index - 1, term, end - layout.ENTRY_HEADER_SIZE)


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


class Chain(NamedTuple):
    """Consecutive frames in order, ``length`` of them.

    A `strong` chain is longer than any body. A `closed` one ends where a log can end: at the end of the file, at a
    blank up to there, or at bytes that were never written.
    """

    first: Frame
    last: Frame
    length: int
    strong: bool
    closed: bool

    @property
    def end(self) -> int:
        return self.last.end

    def outranks(self, other: Chain) -> bool:
        """Whether this chain is more likely to be the log. ``other`` begins before it."""
        if self.is_stale_after(other):
            return False
        return (self.strong, self.closed, self.length) > (other.strong, other.closed, other.length)

    def is_stale_after(self, other: Chain) -> bool:
        """Whether an earlier log left this chain after the end of ``other``, whose last terms are later."""
        if not self.first.header or not other.first.header or not other.last.header:
            return False
        return other.first.header.index < self.first.header.index and self.first.header.term < other.last.header.term

    def leads_to(self, frame: Frame) -> bool:
        """Whether `frame` can be the next one of the log, directly after the chain or after damage at its end."""
        if frame.pos < self.end:
            return False
        if not self.first.header or not self.last.header or not frame.header:
            return not self.contradicts(frame)
        # A wrong term may have ended the chain.
        position = LogPosition(self.last.header.index, self.first.header.term, self.end)
        return position.allows(frame) or (frame.pos == self.end and frame.header.index == position.index + 1)

    def contradicts(self, frame: Frame) -> bool:
        """Whether `frame` cannot be of the chain's log, even if entries between are lost: by its index or position."""
        if not self.last.header or not frame.header:
            # The bytes between are too few for a lost message: the chain is in the body of one that ends here.
            return 0 < frame.pos - self.end < layout.MIN_MESSAGE_SIZE
        lost = frame.header.index - self.last.header.index - 1
        return lost < 0 or frame.pos < self.end or lost > (frame.pos - self.end) // layout.ENTRY_HEADER_SIZE


class Resync:
    """Finds the next frame in one segment."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        # The rest of each walked chain after its first frame, by the position where the rest begins.
        self._walked: dict[int, Chain] = {}

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
            return self._search(gap, gap, expected, limit, None)
        if gap >= frames.data.end:
            return None
        if not any(frames.data[gap : min(gap + layout.ENTRY_HEADER_SIZE, frames.data.end)]):
            found = self._search(gap, gap, expected, limit, None)
            # The end of a log, and no damage.
            if found is None and frames.is_closed_at(gap):
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
            found = self._search(gap, at, expected, limit, following)
            if found is not None or following is None:
                return found
            at = following.pos
        return None

    def _search(self, gap: int, at: int, expected: Expectation, limit: int, following: KnownFrame | None) -> int | None:
        """Where the log continues at or after ``at``, before the known entry that follows, by the bytes alone.

        The bytes from ``gap`` to ``at`` are lost.
        """
        self._walked.clear()
        frame = self._frames.at(at) if at > gap else None
        if frame and expected.allows(frame) and self._is_before(frame, following):
            return at
        if frame is None:
            if at > gap and following is None and self._frames.is_closed_at(at):
                return at
            found = self._follow_sizes(at, expected, following)
            if found is not None:
                return found
        chosen = None
        # Where an entry may have any position, one with an unexpected position counts only if nothing else is there.
        for shift in (expected.shift or 0, None) if not self._frames.segment.check_pos else (None,):
            chosen = chosen or self._choose(at if frame else at + 1, expected, limit, following, shift)
        return chosen.first.pos if chosen else None

    def _is_before(self, frame: Frame, following: KnownFrame | None) -> bool:
        """Whether a frame can be of the log before the known entry."""
        if following is None:
            return True
        if frame.end > following.pos:
            return False
        return following.frame is None or self._walk_chain(frame, following).leads_to(following.frame)

    def _follow_sizes(self, gap: int, expected: Expectation, following: KnownFrame | None) -> int | None:
        """Where the sizes in the damaged header lead, if a frame or the closing blank confirms it."""
        sizes = self._frames.sizes_at(gap)
        end = self._frames.data.end if following is None else following.pos
        if following and following.pos - gap >= self._frames.min_size and following.pos - gap in sizes:
            return following.pos
        agree = len(set(sizes)) == 1
        # If the two sizes differ, one is wrong. The rest of the header must then confirm the other.
        if not agree and not self._frames.has_own_pos(gap, expected.shift or 0):
            return None
        for size in dict.fromkeys(sizes):
            pos = gap + size
            if not self._frames.min_size <= size <= layout.MAX_ENTRY_SIZE or pos > end:
                continue
            frame = self._frames.at(pos)
            if frame is None:
                is_confirmed = agree and len(sizes) > 1
                is_end = following is None and (is_confirmed or self._ends_at(pos, sizes))
                if is_end and self._frames.is_closed_at(pos):
                    return pos
                continue
            is_next = expected.allows(frame) if agree else self._is_only_one_lost(gap, frame, expected)
            if is_next and self._is_before(frame, following):
                return pos
        return None

    def _ends_at(self, pos: int, sizes: tuple[int, ...]) -> bool:
        """Whether the size that leads to ``pos``, where the log is closed, is the right one.

        If the other one is possible too, or there is none, a size that leads past the written bytes is wrong.
        """
        is_sure = min(sizes) < self._frames.min_size or max(sizes) > layout.MAX_ENTRY_SIZE
        is_written = self._frames.data[pos - 1 : pos] != b"\0" or self._frames.blank_at(pos) is not None
        return is_sure or is_written

    def _is_only_one_lost(self, gap: int, frame: Frame, expected: Expectation) -> bool:
        """Whether `frame` has the index after the damaged entry's, by that entry's header or by the entries before."""
        if frame.header is None or not expected.allows(frame):
            return False
        before = self._frames.index_at(gap)
        return frame.header.index in (before + 1, *(position.index + 2 for position in expected.positions))

    def _choose(
        self, start: int, expected: Expectation, limit: int, following: KnownFrame | None, shift: int | None
    ) -> Chain | None:
        """The best chain of those that begin at ``start`` or later; with a `shift`, of those that begin with it."""
        compared: deque[tuple[Chain, bool]] = deque(maxlen=MAX_CANDIDATES)
        best: Chain | None = None
        is_expected = False
        most = INT64_MAX if following is None else following.pos
        seen, window = 0, min(limit, most)
        candidates = self._frames.search(start, window)
        while (frame := next(candidates, None)) is not None:
            seen += 1
            if best and seen > MAX_CANDIDATES:
                break
            if frame.end > most or (shift is not None and frame.shift != shift):
                continue
            allowed = expected.allows(frame)
            if best and best.leads_to(frame) and (is_expected or expected.agreement <= 1 or not allowed):
                break
            if not allowed and (is_expected or expected.strict):
                continue
            if best and is_expected and not best.contradicts(frame):
                continue
            chain = self._chain(frame, following)
            if following and following.frame and not chain.leads_to(following.frame):
                continue
            compared.append((chain, allowed))
            if not allowed and not chain.strong and (chain.length == 1 or expected.agreement > 1):
                # It may lead to the frame that is chosen, even past the limit: every split must see the same.
                reach = min(chain.end + CANDIDATE_WINDOW, most)
                if best is None and reach > window:
                    window = reach
                    candidates = self._frames.search(frame.pos + 1, window)
                continue
            if best and is_expected == allowed and not self._is_better(chain, best, expected):
                seen += chain.length - 1
            else:
                best, is_expected, seen = chain, allowed, 0
                if best.strong:
                    break
                window = min(best.end + CANDIDATE_WINDOW, most)
            # A frame can contain others, which are compared with it: the search continues inside the last one.
            candidates = self._frames.search(chain.last.pos + 1, window)
        if best is None:
            return None
        # A chain that is too weak by itself but leads to the best one comes first.
        for chain, allowed in compared:
            is_near = best.first.pos - chain.end <= CANDIDATE_WINDOW
            if is_near and allowed >= is_expected and chain.leads_to(best.first):
                return chain
        return best

    @staticmethod
    def _is_better(chain: Chain, best: Chain, expected: Expectation) -> bool:
        if chain.end <= best.end:
            return False  # it lies inside
        # Without positions, a single frame at the end may have a wrong index.
        is_doubtful = not expected.positions and chain.length == 1 < best.length
        return chain.outranks(best) and not is_doubtful

    def _chain(self, first: Frame, following: KnownFrame | None) -> Chain:
        known = self._walked.pop(first.pos, None)
        chain = known or self._walk_chain(first, following)
        if chain.length > 1 and not chain.strong:
            second = self._frames.at(first.end)
            assert second
            self._walked[second.pos] = chain._replace(first=second, length=chain.length - 1)
        return chain

    def _walk_chain(self, first: Frame, following: KnownFrame | None) -> Chain:
        """The chain that begins with ``first``, up to the known entry that follows."""
        last, length = first, 1
        while last.end - first.pos < SPAN_WINDOW:
            if following and last.end == following.pos:
                return Chain(first, last, length, False, True)
            frame = self._frames.at(last.end)
            if frame and following and frame.end > following.pos:
                return Chain(first, last, length, False, False)
            if frame is None or not self._frames.follows(last, frame):
                is_closed = frame is None and following is None and self._frames.is_closed_at(last.end)
                return Chain(first, last, length, False, is_closed)
            last, length = frame, length + 1
        return Chain(first, last, length, True, False)
