"""How each replica of a group has an entry: intact, damaged, not at all, or as a copy that no check judges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log.copies.lost_ends import lost_ends_of
from pyspark_dledger.log.diff.commit_log.group import commit_log_group
from pyspark_dledger.log.diff.copy_ranges import DAMAGED as STATE_DAMAGED
from pyspark_dledger.log.diff.copy_ranges import FILLER, UNREAD, CopyRange
from pyspark_dledger.log.diff.copy_ranges import INTACT as STATE_INTACT
from pyspark_dledger.log.diff.ranges import RangeCounter, Ranges
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared
from pyspark_dledger.log.store_view import StoreView

INTACT, DAMAGED, ABSENT, UNCLEAR = range(4)


class CopyStates:
    """The copies of all entries and old messages of a store and its replicas, numbered in this order.

    ``lost`` are the entries that no replica has intact, ``unclear`` those for which no check tells which copy is
    intact, ``unclear_positions`` those of old messages. Raises OptionError without replicas, StoreError if one cannot
    be opened or read.
    """

    def __init__(self, store: StoreView) -> None:
        found_stores = compared(store)
        self._group = ReplicaGroup(found_stores, store.options.group_size)
        self._ranges = self._group.ranges
        unclear, lost = RangeCounter(), RangeCounter()
        self.unclear_reasons: set[str] = set()
        for found in self._ranges:
            if found.is_lost:
                lost.add(found.first, found.last)
            elif found.is_undecided:
                unclear.add(found.first, found.last, found.size)
                self.unclear_reasons.add(found.why_undecided)
        self.unclear: Ranges = unclear.ranges_found()
        self.lost: Ranges = lost.ranges_found()
        self._old = commit_log_group(found_stores)
        old = self._old.replicas if self._old is not None else []
        self._bytes = self._old.ranges if self._old is not None else []
        positions = RangeCounter()
        for found in self._bytes:
            if found.is_undecided:
                positions.add(found.first, found.last)
                self.unclear_reasons.add(found.why_undecided)
        self.unclear_positions = positions.ranges_found()
        ends_known = all(each.donors for each in lost_ends_of(old))
        self.commit_log_end = max((each.end for each in old), default=0) if old and ends_known else INT64_MAX
        """Where the longest CommitLog ends, 2^63-1 if all may have been longer."""

    @property
    def has_commit_logs(self) -> bool:
        """Whether the CommitLogs of all replicas were compared."""
        return bool(self._bytes)

    @property
    def last_index(self) -> int:
        """The last index of all logs; -1 without entries."""
        return self._ranges[-1].last if self._ranges else -1

    def _at(self, index: int) -> CopyRange | None:
        place = bisect_right(self._ranges, index, key=lambda each: each.first) - 1
        return self._ranges[place] if place >= 0 and index <= self._ranges[place].last else None

    def of_entry(self, number: int, index: int, names: Sequence[str]) -> int:
        """How a replica has the entry `index` of the replicas `names`; one of another history counts as absent."""
        found = self._at(index)
        if found is None:
            return ABSENT
        copy = found.copies[number]
        if copy.history not in {found.copies[self._group.names.index(name)].history for name in names}:
            return ABSENT
        if copy.is_undecided or copy.state == UNREAD:
            return UNCLEAR
        if copy.state in (STATE_DAMAGED, FILLER):
            return DAMAGED
        return INTACT if copy.state == STATE_INTACT else ABSENT

    def history_of(self, number: int, index: int) -> int:
        """The number of the history that a replica's log is of at an index; 0 is the main one."""
        found = self._at(index)
        return found.copies[number].history if found is not None else 0

    def pos_of(self, index: int) -> int:
        """The lowest position at which a replica has an entry, or had it."""
        return min(member.position(index) for member in self._group.members if member.begin <= index)

    def of_bytes(self, number: int, start: int, end: int) -> int:
        """How a replica has the positions ``[start, end)`` of the CommitLog."""
        first = max(bisect_right(self._bytes, start, key=lambda each: each.first) - 1, 0)
        found = takewhile(lambda each: each.first < end, self._bytes[first:])
        copies = [each.copies[number] for each in found if each.last >= start]
        if any(copy.state in (STATE_DAMAGED, FILLER) and not copy.is_undecided for copy in copies):
            return DAMAGED
        if any(copy.is_undecided or copy.state == UNREAD for copy in copies):
            return UNCLEAR
        return INTACT if copies and all(copy.state == STATE_INTACT for copy in copies) else ABSENT

    def silently_damaged(self, number: int) -> Iterator[tuple[int, int]]:
        """Where rows of a replica begin that are damaged, and where the next ones begin; those that look whole too."""
        for found in self._bytes:
            if found.copies[number].state == STATE_DAMAGED:
                yield found.first, found.last + 1
        member = self._group.members[number]
        for found in self._ranges:
            if found.copies[number].is_silent and not found.copies[number].is_undecided:
                yield member.position(found.first), member.position(found.last + 1)
