"""How each replica has each entry: the decided histories of a group, side by side."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.copies.segment_copy import Damage, Damages
from pyspark_dledger.log.io.salvage_fillers import UNCONFIRMED
from pyspark_dledger.log.salvage.histories import Histories, History
from pyspark_dledger.log.salvage.lost_entries import LostEntry, Repair
from pyspark_dledger.log.salvage.pieces import ELSEWHERE, FAIL_ALIKE, Piece, Undecided
from pyspark_dledger.log.salvage.restored_log import Extent, end_of, indexes_of, start_of

INTACT, DAMAGED, FILLER, UNREAD, BEFORE, AFTER = "intact", "damaged", "filler", "unread", "before", "after"
"""How a replica has an entry: intact; lost or damaged within its log; replaced by a filler of a salvage; in a file that
cannot be read; before the begin of its log; after the end.
"""


_BLANK = "blank"


DIFFER, ONLY_COPY, ALIKE = "differ", "onlyCopy", "failAlike"
"""Why nothing decides about an entry: its intact copies differ; or only one is left, and no checksum covers it; or
equal copies fail their checksum. Else `UNREAD`: a file that can have it cannot be read.
"""


class Copy(NamedTuple):
    """How one replica has the entries of a range.

    ``history`` is the number of the history that its log is of, -1 for none. Intact copies with the same ``version``
    have the same bytes. ``is_undecided``: nothing shows that this copy is right. ``is_silent``: it looks whole, and is
    damaged.
    """

    state: str
    history: int = -1
    version: int = -1
    is_undecided: bool = False
    is_silent: bool = False


class CopyRange(NamedTuple):
    """Adjacent entries that each replica has alike: the indexes ``[first, last]``, of a CommitLog the positions.

    ``terms`` are those of the histories, -1 for none. ``is_lost``: no replica has the entries of the main history;
    ``is_restorable``: but a salvage writes their headers again. ``is_undecided``: nothing decides about the main
    history. ``size`` is in bytes.
    """

    first: int
    last: int
    copies: tuple[Copy, ...]
    terms: tuple[int, ...]
    size: int
    is_lost: bool
    is_restorable: bool
    is_undecided: bool

    @property
    def holders(self) -> list[int]:
        """The replicas with an intact copy."""
        return [number for number, copy in enumerate(self.copies) if copy.state == INTACT]

    def term_of(self, number: int) -> int:
        """The term of the entries in the history of a replica."""
        return self.terms[self.copies[number].history]

    def having(self, *states: str) -> list[int]:
        """The replicas that have the entries so."""
        return [number for number, copy in enumerate(self.copies) if copy.state in states]

    @property
    def why_undecided(self) -> str:
        """Why nothing decides about the entries of the main history."""
        copies = [copy for copy in self.copies if copy.is_undecided and copy.history == 0]
        if any(copy.state == DAMAGED for copy in copies):
            return ALIKE
        if len({copy.version for copy in copies}) > 1:
            return DIFFER
        return ONLY_COPY if copies else UNREAD

    @property
    def undecided(self) -> list[int]:
        """The replicas with copies that nothing judges."""
        return [number for number, copy in enumerate(self.copies) if copy.is_undecided]


@dataclass(frozen=True)
class LogBounds:
    """The first and last index of a replica's log (position, for a CommitLog); -1 without entries.

    ``unread`` are the ranges, inclusive, that files which cannot be read can have.
    """

    begin: int
    end: int
    unread: tuple[tuple[int, int], ...] = ()


class CopyRanges:
    """The copies of all entries of a group, by index; of CommitLogs by position."""

    def __init__(
        self,
        found: Histories,
        bounds: Sequence[LogBounds],
        cuts: Iterable[int] = (),
        has_blank: Callable[[int, int, int], bool] = lambda *_: True,
    ) -> None:
        """`cuts` are further positions at which ranges begin.

        `has_blank` says whether a replica has a blank from a position to another one, the end of a CommitLog's file.
        """
        self._found, self._bounds, self._more_cuts = found, bounds, frozenset(cuts)
        self._has_blank = has_blank
        self._is_indexed = found.source == DLEDGER
        self._paths = [found.of_replica(number) for number in range(len(bounds))]
        self._logs = [_Extents(each, self._is_indexed) for each in found.found]
        damages = found.found[0].log.damages if found.found else ()
        self._damages = [Damages(each for each in damages if each.source == n) for n in range(len(bounds))]
        self._by_index: list[dict[int, Damage]] = [{} for _ in bounds]
        for damage in damages:
            if damage.index is not None:
                self._by_index[damage.source][damage.index] = damage

    def __iter__(self) -> Iterator[CopyRange]:
        """The ranges that together cover every entry of every replica once, in order."""
        cuts = sorted(self._cuts())
        ranges = (self._range(first, following - 1) for first, following in pairwise(cuts))
        return merge_adjacent((each for each in ranges if each is not None), self._joined)

    def messages(self, found: CopyRange, count: Callable[[int, int, int], int]) -> int:
        """The messages of a range on the replica that has most; `count` counts those of a replica in a part of one."""
        most = 0
        for number in {
            copy.history: number for number, copy in enumerate(found.copies) if copy.state == INTACT
        }.values():
            here = 0
            for extent in self._logs[found.copies[number].history].within(found.first, found.last):
                start, end = max(start_of(extent), found.first), min(end_of(extent), found.last + 1)
                is_whole = isinstance(extent, Piece) and (start, end) == (extent.start, extent.end)
                here += extent.messages if is_whole and isinstance(extent, Piece) else count(number, start, end)
            most = max(most, here)
        return most

    def at(self, key: int) -> CopyRange | None:
        """The state of the entry with an index, or of the byte at a position; None where no log is."""
        return self._range(key, key)

    def history_of(self, number: int, key: int) -> int:
        """The number of the history that a replica's log is of at an index (position); -1 for none.

        Where nothing is intact, nothing shows that logs diverged.
        """
        if not self._logs:
            return 0
        path = self._paths[number]
        place = bisect_right(path, key, key=lambda each: each[1]) - 1
        return path[place][0] if place >= 0 else -1

    def parts(self, history: int, first: int, last: int) -> list[Extent]:
        """The parts of a history that overlap ``[first, last]``."""
        return self._logs[history].within(first, last)

    def damaged_blanks(self, number: int) -> Iterator[int]:
        """Where a replica of DLedger has damage after the last entry of a file: the next entry is in the next file."""
        for damage in self._damages[number]:
            for history, _ in self._paths[number]:
                after = self._logs[history].after_hole(damage.start)
                if after is None or damage.end > start_of(after) or damage.is_filler:
                    continue
                if self.history_of(number, indexes_of(after)[0]) == history:
                    yield damage.start

    def term_at(self, history: int, index: int) -> int:
        """The term of an entry in a history; -1 where it is unknown."""
        extent = self._logs[history].at(index) if 0 <= history < len(self._logs) else None
        return extent.term if extent is not None else -1

    def _cuts(self) -> set[int]:
        cuts = {edge for log in self._logs for edge in log.edges}
        for number, own in enumerate(self._bounds):
            if own.end >= 0:
                cuts |= {own.begin, own.end + 1}
            cuts |= {edge for low, high in own.unread for edge in (low, high + 1) if edge < INT64_MAX}
            if self._is_indexed:
                cuts |= {edge for index in self._by_index[number] for edge in (index, index + 1)}
            else:
                fillers = [each for each in self._damages[number] if each.is_filler]
                cuts |= {edge for each in fillers for edge in (each.start, each.end)}
        ends = [own for own in self._bounds if own.end >= 0]
        known = [(own.begin, own.end + 1) for own in ends]
        # What a replica without an intact entry had is before the begin, or after the end, of the others.
        logs = (each.log for each in self._found.found[:1])
        known += [(log.first_index, log.last_index + 1) if self._is_indexed else (log.base, log.end) for log in logs]
        low, high = min((each[0] for each in known), default=0), max((each[1] for each in known), default=0)
        cuts |= {since for path in self._paths for _, since in path} | self._more_cuts
        return {cut for cut in cuts if low <= cut <= high} | {low, high}

    def _range(self, first: int, last: int) -> CopyRange | None:
        copies = tuple(self._copy(number, first) for number in range(len(self._bounds)))
        extents = [log.at(first) for log in self._logs]
        main = extents[0] if extents else None
        if all(copy.state in (BEFORE, AFTER) for copy in copies) and main is None:
            return None
        is_unread = any(copy.state == UNREAD for copy in copies)
        is_undecided = any(copy.is_undecided and copy.history == 0 for copy in copies)
        is_in_main = any(copy.history == 0 and copy.state in (DAMAGED, FILLER) for copy in copies)
        is_intact = any(copy.history == 0 and copy.state == INTACT for copy in copies)
        is_gone = is_in_main or not (main is None or isinstance(main, Piece))
        is_lost = is_gone and not (is_intact or is_undecided or is_unread)
        sizes = [_part_size(each, first, last) for each in extents if each is not None and self._is_indexed]
        size = max(sizes, default=0 if self._is_indexed else last - first + 1)
        is_restorable = is_lost and main is not None and not isinstance(main, (Piece, LostEntry))
        is_unclear = is_undecided or (is_unread and not is_intact)
        terms = tuple(each.term if each is not None else -1 for each in extents)
        return CopyRange(first, last, copies, terms, size, is_lost, is_restorable, is_unclear)

    def _copy(self, number: int, key: int) -> Copy:
        bounds = self._bounds[number]
        history = self.history_of(number, key)
        is_inside = bounds.begin <= key <= bounds.end and bounds.end >= 0
        is_unread = any(low <= key <= high for low, high in bounds.unread)
        extent = self._logs[history].at(key) if 0 <= history < len(self._logs) and is_inside else None
        is_own = isinstance(extent, Piece) and number in extent.sources
        if is_own and isinstance(extent, Piece) and (extent.why != _BLANK or self._has_blank(number, *extent[:2])):
            return Copy(INTACT, history, extent.donor, extent.why == UNCONFIRMED)
        undecided = self._logs[history].undecided_at(extent) if extent is not None else None
        group = next((each for each in undecided.variants if number in each), None) if undecided is not None else None
        if undecided is not None and group is not None:
            if undecided.why == FAIL_ALIKE:
                return Copy(DAMAGED, history, group[0], is_undecided=True, is_silent=True)
            return Copy(INTACT, history, group[0], is_undecided=True, is_silent=undecided.why == ELSEWHERE)
        if is_unread:
            return Copy(UNREAD, history)
        if not is_inside and not self._is_repairable(number, history, key):
            return Copy(BEFORE if bounds.end >= 0 and key < bounds.begin else AFTER, history)
        problem = self._damage_at(number, key, extent)
        if problem is not None and problem.is_filler:
            return Copy(FILLER, history)
        is_contradicted = isinstance(extent, Piece) and number in extent.unequal
        return Copy(DAMAGED, history, is_silent=is_contradicted or (problem is not None and problem.index is not None))

    def _is_repairable(self, number: int, history: int, key: int) -> bool:
        """Whether a replica has an entry of which only the header is damaged, also after the end of its log."""
        extent = self._logs[history].at(key) if 0 <= history < len(self._logs) else None
        return isinstance(extent, Repair) and number in extent.sources

    def _damage_at(self, number: int, key: int, extent: Extent | None) -> Damage | None:
        """The damage of a replica at an index (position); of an entry only if it has its header in the log."""
        if not self._is_indexed:
            return self._damages[number].first_within(key, key + 1)
        found = self._by_index[number].get(key)
        is_there = found is not None and extent is not None and start_of(extent) <= found.start < end_of(extent)
        return found if is_there else None

    def _joined(self, last: CopyRange, following: CopyRange) -> CopyRange | None:
        if (
            last.last + 1 != following.first
            or following.first in self._more_cuts
            or last[2:4] + last[5:] != following[2:4] + following[5:]
        ):
            return None
        return last._replace(last=following.last, size=last.size + following.size)


class _Extents:
    """The parts of a history by index (position)."""

    def __init__(self, history: History, is_indexed: bool) -> None:
        log = history.log
        self._undecided = {each.pos: each for each in log.undecided}
        self._parts = log.extents
        if not is_indexed:
            self._parts = sorted(
                [*self._parts, *_blanks(self._parts, log.file_size, tuple(sorted(history.since)))], key=start_of
            )
        keys = [indexes_of(each) if is_indexed else (start_of(each), end_of(each) - 1) for each in self._parts]
        self._firsts, self._lasts = [first for first, _ in keys], [last for _, last in keys]

    @property
    def edges(self) -> list[int]:
        return [*self._firsts, *(last + 1 for last in self._lasts)]

    def at(self, key: int) -> Extent | None:
        place = bisect_right(self._firsts, key) - 1
        return self._parts[place] if place >= 0 and key <= self._lasts[place] else None

    def within(self, first: int, last: int) -> list[Extent]:
        """The parts that overlap ``[first, last]``."""
        start, stop = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        return self._parts[start:stop]

    def after_hole(self, pos: int) -> Extent | None:
        """The part after a position that is between two parts; None for another one."""
        place = bisect_right(self._parts, pos, key=start_of)
        is_between = 0 < place < len(self._parts) and end_of(self._parts[place - 1]) <= pos
        return self._parts[place] if is_between else None

    def undecided_at(self, extent: Extent) -> Undecided | None:
        return self._undecided.get(extent.pos) if isinstance(extent, LostEntry) else None


def _blanks(parts: Sequence[Extent], file_size: int, sources: tuple[int, ...]) -> Iterator[Piece]:
    """The blanks at the ends of a CommitLog's files, which any of its replicas can have."""
    for before, after in pairwise([*parts, None]):
        assert before is not None
        file = start_of(before) // file_size
        start, end = end_of(before), start_of(after) if after is not None else (file + 1) * file_size
        if start < end:
            yield Piece(start, end, start, -1, -1, -1, sources[0], sources, _BLANK)


def _part_size(extent: Extent, first: int, last: int) -> int:
    """About how many bytes the entries ``[first, last]`` of a part of the log have."""
    low, high = indexes_of(extent)
    return (end_of(extent) - start_of(extent)) * (last - first + 1) // (high - low + 1)


# Listed rows and ranges; further ones are counted.
MAX_LISTED = 1_000


@dataclass(frozen=True)
class Ranges:
    """Ranges of indexes, inclusive: the first `MAX_LISTED`, and the entries and bytes of all."""

    ranges: tuple[tuple[int, int], ...] = ()
    entries: int = 0
    bytes: int = 0


NO_RANGES = Ranges()


class RangeCounter:
    """Collects `Ranges`."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.entries = self.bytes = 0
        self.last: int | None = None

    def add(self, first: int, last: int, size: int = 0) -> None:
        self.entries += last - first + 1
        self.bytes += size
        if self.ranges and self.last == first - 1 == self.ranges[-1][1]:
            self.ranges[-1] = self.ranges[-1][0], last
        elif len(self.ranges) < MAX_LISTED:
            self.ranges.append((first, last))
        self.last = last

    def ranges_found(self) -> Ranges:
        return Ranges(tuple(self.ranges), self.entries, self.bytes)
