"""Behind damage: which frame continues the log. Continuity decides, so that frames inside bodies do not come out.

A frame that stands somewhere may be real, or part of what an application wrote. So the frames before the damage say
which indexes and terms can follow, and of several frames that could, the one whose own chain of frames goes on best is
taken. All of it depends on the segment's bytes alone. The work stays linear: a chain is walked once, and behind a
choice only a bounded number of rivals is looked at.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.scan.frames import Frame, Frames
from pyspark_dledger.format.spec import Segment

# A blank ends a file where an entry of the largest size did not fit any more, hence a little more than one entry.
SPAN_WINDOW = layout.MAX_ENTRY_SIZE + 4096
RIVALS = 32
RIVAL_WINDOW = layout.MAX_ENTRY_SIZE
VOTERS = 8


class LogPosition(NamedTuple):
    """Where a log may have ended: index of the last entry, the least term of what follows, and where damage begins."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    gap: int

    def allows(self, frame: Frame) -> bool:
        """Whether `frame` can be the next one behind the damage, which cost at least one entry."""
        assert frame.header
        lost = frame.header.index - self.index - 1
        most = (frame.pos - self.gap) // layout.ENTRY_HEADER_SIZE
        return 1 <= lost <= most and frame.header.term >= self.term


def place_before(segment: Segment) -> LogPosition | None:
    """Where the log ended before the segment, if that is known."""
    if segment.before is None:
        return None
    index, term, end = segment.before
    # DLedger 0.4.0 may begin a file with a blank, and no entry is lost with that.
    if segment.check_pos:
        return LogPosition(index, term, end)
    return LogPosition(index - 1, term, end - layout.ENTRY_HEADER_SIZE)


class Expectation(NamedTuple):
    """What is known at damage: the places from which the log may go on (none: anything may follow).

    ``run`` is how many frames agree on them. ``strict`` forbids what no place allows; ``store_timestamp`` is the least
    of a message that may follow, in milliseconds.
    """

    places: tuple[LogPosition, ...]
    run: int
    strict: bool = False
    store_timestamp: int | None = None

    def allows(self, frame: Frame) -> bool:
        if frame.message:
            return self.store_timestamp is None or frame.message.store_timestamp >= self.store_timestamp
        return not self.places or any(place.allows(frame) for place in self.places)


class Course:
    """What a walk has passed: index and term of the last frames that it stepped over without a gap."""

    def __init__(self, before: LogPosition | None = None) -> None:
        self.recent: deque[tuple[int, int]] = deque(maxlen=VOTERS)
        self._known = Expectation((before,), VOTERS) if before else Expectation((), 0)

    def step(self, frame: Frame) -> None:
        if frame.header:
            self.recent.append((frame.header.index, frame.header.term))

    def precede(self, earlier: Course) -> None:
        """Take over what a walk passed that ended where this one began."""
        self.recent = deque([*earlier.recent, *self.recent], maxlen=VOTERS)
        self._known = earlier._known

    def at_gap(self, pos: int) -> Expectation:
        """What may follow the damage at ``pos``; from there on the next frames count."""
        if not self.recent:
            return self._known
        votes = [min(index + number, INT64_MAX) for number, (index, _) in enumerate(reversed(self.recent))]
        counts = Counter(votes)
        run = max(counts.values())
        # One frame alone proves little: neither its term, nor what was known before it less.
        is_alone = len(self.recent) == 1
        term = -1 if is_alone else min(term for _, term in self.recent)
        places = tuple(LogPosition(index, term, pos) for index in dict.fromkeys(votes) if counts[index] == run)
        expected = Expectation(places + (self._known.places if is_alone else ()), run)
        self.recent.clear()
        self._known = Expectation(places, run)
        return expected


class Chain(NamedTuple):
    """Frames in order that stand one behind the other.

    ``length`` is how many they are. A `strong` chain is longer than any body, a `closed` one ends where a log does: at
    the end of the file, at a blank up to there, or at bytes that were never written.
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
        """Whether more speaks for this chain."""
        return (self.strong, self.closed, self.length) > (other.strong, other.closed, other.length)

    def continues(self, frame: Frame) -> bool:
        """Whether `frame` can continue the log, right there or behind damage that begins where the chain ends."""
        if frame.pos < self.end:
            return False
        if not self.first.header or not self.last.header or not frame.header:
            return True
        # A wrong term may be what ended the chain.
        place = LogPosition(self.last.header.index, self.first.header.term, self.end)
        return place.allows(frame) or (frame.pos == self.end and frame.header.index == place.index + 1)

    def contradicts(self, frame: Frame) -> bool:
        """Whether by its index `frame`, behind the chain, cannot be of the same log, whatever was lost in between."""
        if not self.last.header or not frame.header:
            return False
        lost = frame.header.index - self.last.header.index - 1
        return lost < 0 or frame.pos < self.end or lost > (frame.pos - self.end) // layout.ENTRY_HEADER_SIZE


class Resync:
    """Finds the next frame in one segment."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        # By where a frame stands, the rest of a chain that was walked and begins with it.
        self._walked: dict[int, Chain] = {}

    def next(self, gap: int, expected: Expectation, limit: int) -> int | None:
        """Where the log goes on behind damage at ``gap``: at a frame, or where it was closed; None up to ``limit``.

        Of what lies at or behind ``limit``, only what decides about frames before it is looked at.
        """
        found = self._hinted(gap, expected)
        if found is not None:
            return found
        self._walked.clear()
        chosen = self._choose(gap, expected, limit)
        return chosen.first.pos if chosen else None

    def _hinted(self, gap: int, expected: Expectation) -> int | None:
        """What the sizes of a damaged header still tell: where the next frame or the closing blank stands."""
        sizes = self._frames.sizes_at(gap)
        agree = len(set(sizes)) == 1
        # Of two sizes one is wrong: then the rest of the header has to speak for the other.
        if not agree and not self._frames.names_itself(gap):
            return None
        for size in dict.fromkeys(sizes):
            pos = gap + size
            if not self._frames.least_size <= size <= layout.MAX_ENTRY_SIZE or pos > self._frames.data.end:
                continue
            frame = self._frames.at(pos)
            if frame is None:
                if (agree or self._ends_at(pos, sizes)) and self._frames.is_closed_at(pos):
                    return pos
            elif expected.allows(frame) if agree else self._is_only_one_lost(gap, frame, expected):
                return pos
        return None

    def _ends_at(self, pos: int, sizes: tuple[int, ...]) -> bool:
        """Whether of a damaged header's two sizes the one that leads to ``pos`` is right, where the log is closed.

        Of two that are possible, one that leads behind what was written is the wrong one.
        """
        is_sure = min(sizes) < self._frames.least_size or max(sizes) > layout.MAX_ENTRY_SIZE
        is_written = self._frames.data[pos - 1 : pos] != b"\0" or self._frames.blank_at(pos) is not None
        return is_sure or is_written

    def _is_only_one_lost(self, gap: int, frame: Frame, expected: Expectation) -> bool:
        """Whether `frame` has the index right behind the damaged entry's, by the entries before it or by its own."""
        if frame.header is None or not expected.allows(frame):
            return False
        before = self._frames.index_at(gap)
        return frame.header.index in (before + 1, *(place.index + 2 for place in expected.places))

    def _choose(self, gap: int, expected: Expectation, limit: int) -> Chain | None:
        weighed: deque[tuple[Chain, bool]] = deque(maxlen=RIVALS)
        best: Chain | None = None
        is_expected = False
        looked, window = 0, limit
        candidates = self._frames.search(gap + 1, window)
        while (frame := next(candidates, None)) is not None:
            looked += 1
            if best and looked > RIVALS:
                break
            allowed = expected.allows(frame)
            if best and best.continues(frame) and (is_expected or expected.run <= 1 or not allowed):
                break
            if not allowed and (is_expected or expected.strict):
                continue
            if best and is_expected and not best.contradicts(frame):
                continue
            chain = self._chain(frame)
            weighed.append((chain, allowed))
            if not allowed and not chain.strong and (chain.length == 1 or expected.run > 1):
                # It may lead to what is taken, also where that stands behind the limit: a range sees what a whole scan
                # sees.
                if best is None and chain.end + RIVAL_WINDOW > window:
                    window = chain.end + RIVAL_WINDOW
                    candidates = self._frames.search(frame.pos + 1, window)
                continue
            if best and is_expected == allowed and not self._is_better(chain, best, expected):
                looked += chain.length - 1
            else:
                best, is_expected, looked = chain, allowed, 0
                if best.strong:
                    break
                window = best.end + RIVAL_WINDOW
            # A frame that spans others is weighed against them, hence from inside the last one on.
            candidates = self._frames.search(chain.last.pos + 1, window)
        if best is None:
            return None
        # What was too weak by itself, but leads to the best, comes first.
        for chain, allowed in weighed:
            is_near = best.first.pos - chain.end <= RIVAL_WINDOW
            if is_near and allowed >= is_expected and chain.continues(best.first):
                return chain
        return best

    @staticmethod
    def _is_better(chain: Chain, best: Chain, expected: Expectation) -> bool:
        if chain.end <= best.end:
            return False  # it lies inside
        # Where nothing is known, a single frame at the end may have a wrong index.
        is_doubtful = not expected.places and chain.length == 1 < best.length
        return chain.outranks(best) and not is_doubtful

    def _chain(self, first: Frame) -> Chain:
        known = self._walked.pop(first.pos, None)
        chain = known or self._walk_chain(first)
        if chain.length > 1 and not chain.strong:
            second = self._frames.at(first.end)
            assert second
            self._walked[second.pos] = chain._replace(first=second, length=chain.length - 1)
        return chain

    def _walk_chain(self, first: Frame) -> Chain:
        last, length = first, 1
        while last.end - first.pos < SPAN_WINDOW:
            frame = self._frames.at(last.end)
            if frame is None or not self._frames.follows(last, frame):
                return Chain(first, last, length, False, frame is None and self._frames.is_closed_at(last.end))
            last, length = frame, length + 1
        return Chain(first, last, length, True, False)
