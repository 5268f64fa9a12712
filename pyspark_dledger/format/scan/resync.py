"""Resynchronisation: decides at which frame a log continues after corrupt bytes.

Bytes that look like a frame can also be part of a body that an application wrote. So continuity decides. Known entries
of the segment's witness come before:

1. A whole known entry is the log's next one.
2. A known entry with a damaged header is lost. The log continues at its end.
3. Continuity decides in the bytes between known entries. A chain there must lead to the next known entry.

The result depends only on the segment's bytes, its witness and its neighbours. Continuity, by the bytes alone:

1. The sizes in the damaged header come first. They count if they lead to a frame that fits or to the end of the log.
2. Else every frame after the gap begins a chain. The last frames before the gap, and what is left of the damaged
   header, give the indexes and terms that can follow. A chain that fits them is preferred to one that does not.
3. A chain that ends where no entry can follow is in a body: an entry begins in the header of the next one, or the
   segment's end or the next segment does not fit. So is one that begins before the lost entry can end.
4. Chains that can follow each other, by index, term and room for the entries between them, make a way. Of several
   ways, the one wins that reaches a chain longer than any body, then one that ends where a log can end, then the one
   with the most entries. But what follows a chain of later terms and has higher indexes is stale.
5. An expected chain wins at once if all chains found after it continue it, with enough entries.

The work is linear: a chain is walked once, and a bounded number of candidates is compared. Those after the first
expected chain that begin in another body are not compared with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format import layout
from pyspark_dledger.format.scan.chains import (
    RECENT_FRAMES,
    Chain,
    Chains,
    Expectation,
    KnownFrame,
    KnownFrames,
    WalkedChains,
)
from pyspark_dledger.format.scan.frames import DamagedFrame, Frame, Frames

MAX_CANDIDATES = 32
"""So many frames are compared."""
CANDIDATE_WINDOW = layout.MAX_ENTRY_SIZE
"""And those within so many bytes: all that can be in one body."""
ENOUGH_ENTRIES = RECENT_FRAMES
"""So many entries that continue a chain confirm it, if nothing else is found before them."""
UINT64_MAX = 2**64 - 1
MIN_WRONG_RISE = 2**16
"""No election raises a term by so much."""


def is_likely_rise(term: int, raised: int) -> bool:
    """Whether an entry's term can rise from ``term`` to ``raised`` by elections."""
    return term <= raised < term + MIN_WRONG_RISE


@dataclass
class Candidate:
    """A chain, and the best way through the chains from it on: how it ends, its entries, first frame and end."""

    chain: Chain
    allowed: bool
    reach: int = 0
    length: int = 0
    begin: Frame | None = None
    end: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        return self.reach, self.length


class Way:
    """An expected chain, and the chains that continue it, until one is found that does not."""

    def __init__(self, chain: Chain, is_alone: bool) -> None:
        self.first = chain.first
        self._last = chain
        self._is_alone = is_alone
        self._entries = 0

    def is_confirmed_by(self, chain: Chain) -> bool:
        """Whether the next chain that was found, and those before it, are enough."""
        self._is_alone = self._is_alone and self._last.leads_to(chain.first)
        if not chain.damaged:
            self._last = chain
            self._entries += chain.length
        return self._is_alone and self._entries >= ENOUGH_ENTRIES


class OtherRun:
    """The latest consecutive frames of a search that cannot follow the gap, because another log has them.

    Eight of them prove it, or one whose index is too high for the room since the gap.
    """

    def __init__(self, frames: Frames, expected: Expectation) -> None:
        self._frames = frames
        self._expected = expected
        self._last: Frame | None = None
        self._length = 0

    def allows(self, frame: Frame) -> bool:
        """Whether a frame can follow the gap: it is expected, and continues no such run."""
        allowed, last = self._expected.allows(frame), self._last
        if not frame.header or (last and frame.pos < last.end):
            return allowed
        if last and frame.pos == last.end and self._frames.follows(last, frame):
            allowed = allowed and self._length < RECENT_FRAMES
        else:
            self._length = 0
        self._last = None if allowed else frame
        is_too_high = not allowed and not self._expected.has_room_before(frame)
        self._length += RECENT_FRAMES if is_too_high else 1
        return allowed


class GapSearch:
    """Searches the bytes before the known entry that follows.

    Bytes from ``limit`` on are read only if they decide about frames before it. ``walked`` has chains of earlier
    searches.
    """

    def __init__(
        self, frames: Frames, expected: Expectation, following: KnownFrame | None, limit: int, walked: WalkedChains
    ) -> None:
        self._frames = frames
        self._expected = expected
        self._following = following
        self._limit = limit
        self._walked = walked
        # No candidate ends after it.
        self._most = INT64_MAX if following is None else following.pos

    def find(self, gap: int, at: int) -> int | None:
        """Where the log continues at or after ``at``. The bytes from ``gap`` to ``at`` are lost."""
        frames, expected = self._frames, self._expected
        if at == gap:
            self._use_damaged_header(gap)
        frame = frames.at(at) if at > gap else None
        if frame and expected.allows(frame) and self._is_before_following(frame):
            return at
        if frame is None:
            if at > gap and self._following is None and frames.is_closed_at(at):
                return at
            found = self._follow_sizes(at)
            if found is not None:
                return found
        # At least one entry is lost; only a blank of 0.4.0 at the begin of a file can be smaller.
        can_be_blank = at == frames.segment.base and not frames.segment.check_pos
        start = at if frame else at + 1
        min_pos = start if frame or can_be_blank else at + frames.min_size
        # Where an entry may have any position, one with an unexpected position counts only if nothing else is there.
        for is_same_shift in (False,) if frames.segment.check_pos else (True, False):
            chosen = self._choose(start, min_pos, is_same_shift)
            if chosen is not None:
                return chosen.pos
        return None

    def _use_damaged_header(self, gap: int) -> None:
        """The next frame has at least the damaged header's term, if the rest of that header is the expected one."""
        found = self._frames.damaged_at(gap)
        if found is None or found.frame is None or found.frame.header is None:
            return
        header = found.frame.header
        positions = tuple(
            position._replace(min_term=header.term)
            if header.index - 1 == position.index and is_likely_rise(position.min_term, header.term)
            else position
            for position in self._expected.positions
        )
        self._expected = self._expected._replace(positions=positions)

    def _is_before_following(self, frame: Frame) -> bool:
        """Whether a frame can be of the log before the known entry."""
        following = self._following
        if following is None:
            return True
        if frame.end > following.pos:
            return False
        if following.frame is None:
            return True
        return Chains(self._frames, self._expected, following, self._walked).walk(frame).leads_to(following.frame)

    def _follow_sizes(self, gap: int) -> int | None:
        """Where the sizes in the damaged header lead, if a frame or the closing blank confirms it."""
        frames, following = self._frames, self._following
        sizes = frames.sizes_at(gap)
        end = frames.data.end if following is None else following.pos
        if following and following.pos - gap >= frames.min_size and following.pos - gap in sizes:
            return following.pos
        agree = len(set(sizes)) == 1
        # If the two sizes differ, one is wrong. The rest of the header must then confirm the other.
        if not agree and not frames.has_own_pos(gap, self._expected.shift or 0):
            return None
        for size in dict.fromkeys(sizes):
            pos = gap + size
            if not frames.min_size <= size <= layout.MAX_ENTRY_SIZE or pos > end:
                continue
            frame = frames.at(pos)
            if frame is None:
                is_confirmed = agree and len(sizes) > 1
                is_end = following is None and (is_confirmed or self._ends_at(pos, sizes))
                if is_end and frames.is_closed_at(pos):
                    return pos
                continue
            is_next = self._expected.allows(frame) if agree else self._is_only_one_lost(gap, frame)
            if is_next and self._is_before_following(frame):
                return pos
        return None

    def _ends_at(self, pos: int, sizes: tuple[int, ...]) -> bool:
        """Whether the size that leads to ``pos``, where the log is closed, is the right one.

        If the other one is possible too, or there is none, a size that leads past the written bytes is wrong.
        """
        is_sure = min(sizes) < self._frames.min_size or max(sizes) > layout.MAX_ENTRY_SIZE
        is_written = self._frames.data[pos - 1 : pos] != b"\0" or self._frames.blank_at(pos) is not None
        return is_sure or is_written

    def _is_only_one_lost(self, gap: int, frame: Frame) -> bool:
        """Whether `frame` has the index after the damaged entry's, by that entry's header or by the entries before."""
        if frame.header is None or not self._expected.allows(frame):
            return False
        before = self._frames.index_at(gap)
        return frame.header.index in (before + 1, *(position.index + 2 for position in self._expected.positions))

    def _may_have_shift(self, frame: Frame, is_same_shift: bool) -> bool:
        """Whether an entry of 0.4.0 can have its position. Sectors that were moved have entries with another shift."""
        if self._frames.segment.check_pos:
            return True
        if is_same_shift:
            expected = self._expected.shift
            return frame.shift == (self._frames.usual_shift if expected is None else expected)
        # An entry of another log that is in a body has any position, and so has the next one there.
        following = self._frames.at(frame.end)
        is_lone = following is None or following.shift != frame.shift
        return not is_lone and not self._frames.is_moved(frame.shift, self._expected.shift)

    def _choose(self, start: int, min_pos: int, is_same_shift: bool) -> Frame | None:
        """The first frame of the best way that begins at ``start`` or later."""
        collected: deque[Candidate] = deque(maxlen=MAX_CANDIDATES)
        confirmed = self._collect(collected, start, min_pos, is_same_shift)
        if confirmed:
            return confirmed
        candidates = list(collected)
        _find_ways(candidates)
        any_expected = any(one.allowed and one.begin for one in candidates)
        best: Candidate | None = None
        for one in candidates:
            if one.begin is None or (any_expected and not one.allowed):
                continue
            if not one.allowed and one.reach < 2 and (one.length == 1 or self._expected.agreement > 1):
                continue
            if best is None or self._is_better(one, best):
                best = one
        return best.begin if best else None

    def _collect(self, candidates: deque[Candidate], start: int, min_pos: int, is_same_shift: bool) -> Frame | None:
        """Collect the candidates. Returns the first frame of an expected chain that those after it confirm."""
        frames, following, most = self._frames, self._following, self._most
        chains = Chains(frames, self._expected, following, self._walked)
        has_best, way, seen, window = False, None, 0, min(self._limit, most)
        run = OtherRun(frames, self._expected)
        found = frames.search_headers(start, window)
        while (one := next(found, None)) is not None:
            damaged = one if isinstance(one, DamagedFrame) else None
            frame = damaged.frame if damaged else one
            if not isinstance(frame, Frame):
                # What is in its body is not of the log.
                found = frames.search_headers(one.end, window)
                continue
            seen += has_best
            if seen >= MAX_CANDIDATES:
                break
            if frame.end > most or not self._may_have_shift(frame, is_same_shift):
                continue
            if frame.pos < min_pos and frame.header:
                continue
            allowed = run.allows(frame)
            if not allowed and (damaged or way or self._expected.strict):
                continue
            chain = Chain(frame, frame, 1, damaged=True) if damaged else chains.at(frame, is_kept=has_best)
            if frame.pos < min_pos:
                # In the body of a lost message, with all messages that follow it.
                found = frames.search_headers(chain.last.pos + 1, window)
                continue
            if chain.cut or (following and following.frame and not chain.leads_to(following.frame)):
                continue
            candidates.append(Candidate(chain, allowed))
            if chain.strong:
                break
            if way:
                if way.is_confirmed_by(chain):
                    return way.first
            elif allowed and not damaged:
                way = Way(chain, all(one.chain.leads_to(frame) for one in candidates if one.chain.damaged))
            at, reach = frame.pos, window
            if allowed and not damaged:
                # A frame can contain others, which are compared with it: the search continues inside the last one.
                at = chain.last.pos
            # What decides can be after the limit: every split must see the same.
            is_best = way is not None and way.first == frame
            if is_best or (not has_best and chain.length > 1 and self._expected.agreement <= 1):
                has_best, seen = True, 0
                reach = min(frame.pos + CANDIDATE_WINDOW, most)
            elif not has_best:
                reach = max(window, min(chain.end + CANDIDATE_WINDOW, most))
            if reach != window or at > frame.pos:
                window = reach
                found = frames.search_headers(at + 1, window)
        return None

    def _is_better(self, one: Candidate, best: Candidate) -> bool:
        """Whether a way is more likely to be the log than the best one before it."""
        if one.chain.end <= best.chain.end or one.chain.is_stale_after(best.chain):
            return False
        # Without positions, a single frame at the end may have a wrong index.
        if not self._expected.positions and one.length == 1 < best.length:
            return False
        # A leader that was alone can have left later terms after the log's end.
        is_long = best.length >= RECENT_FRAMES and best.end <= one.chain.first.pos
        is_likely = is_long or (self._is_next(best.chain) and not self._is_next(one.chain))
        if one.reach < 2 and is_likely and one.chain.has_later_term(best.chain):
            return False
        # Entries in the last body can end where the log ends.
        if one.reach < 2 and one.length < best.length and best.length >= RECENT_FRAMES:
            return False
        return one.rank > best.rank

    def _is_next(self, chain: Chain) -> bool:
        """Whether only one entry is lost before the chain."""
        header = chain.first.header
        return header is not None and any(position.index + 2 == header.index for position in self._expected.positions)


def _find_ways(candidates: list[Candidate]) -> None:
    """Finds the best way through the chains from each one on."""
    for number in range(len(candidates) - 1, -1, -1):
        one = candidates[number]
        chain = one.chain
        one.reach = 2 if chain.strong else int(chain.closed)
        one.begin, one.end = None if chain.damaged else chain.first, chain.end
        for other in reversed(candidates[number + 1 :]):
            is_near = other.chain.first.pos < chain.end + CANDIDATE_WINDOW
            if other.rank <= one.rank or not is_near or not chain.leads_to(other.chain.first):
                continue
            (one.reach, one.length), one.end = other.rank, other.end
            if chain.damaged:
                one.begin = other.begin
        one.length += chain.length


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
            # An index that is too high for the room before it is damaged.
            if following and following.frame and not expected.has_room_before(following.frame):
                following = following._replace(frame=None)
            found = self._search(expected, following, limit).find(gap, at)
            if found is not None or following is None:
                return found
            at = following.pos
        return None

    def _search(self, expected: Expectation, following: KnownFrame | None, limit: int) -> GapSearch:
        return GapSearch(self._frames, expected, following, limit, self._walked)
