"""How each replica of a group has an entry: intact, damaged, not at all, or as a copy that no check judges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log.diff.commit_log.lost_ends import commit_log_replicas, lost_ends_of
from pyspark_dledger.log.diff.commit_log.ranges import compare_positions
from pyspark_dledger.log.diff.commit_log.rows import pos_rows
from pyspark_dledger.log.diff.diff_table import (
    damaged_on,
    fillers_on,
    intact_on,
    is_lost,
    plan_parts,
    read_ranges,
    unclear_on,
    unread_on,
)
from pyspark_dledger.log.diff.ranges import RangeCounter, Ranges
from pyspark_dledger.log.diff.replica import Replica
from pyspark_dledger.log.diff.replica_group import group_of
from pyspark_dledger.log.store_view import StoreView

INTACT, DAMAGED, ABSENT, UNCLEAR = range(4)


class _Range(NamedTuple):
    first: int
    last: int
    terms: tuple[int | None, ...]
    log_terms: tuple[int | None, ...]
    damaged: frozenset[int]
    unclear: frozenset[int]
    is_lost: bool
    is_silent: tuple[bool, ...]


class CopyStates:
    """The copies of all entries and old messages of a store and its replicas, numbered in this order.

    ``lost`` are the entries that no replica has intact, ``unclear`` those for which no check tells which copy is
    intact, ``unclear_positions`` those of old messages. Raises OptionError without replicas, StoreError if one cannot
    be opened or read.
    """

    def __init__(self, store: StoreView) -> None:
        stores = [store, *store.replicas]
        self._ranges: list[_Range] = []
        self._replicas: list[Replica] = []
        unclear, lost = RangeCounter(), RangeCounter()
        if any(each.ledger_segments for each in stores):
            group, self._replicas = group_of(store, store.options.group_size)
            parts = plan_parts(group, self._replicas, store.options)
            for found in (found for part in parts for found in read_ranges(part)):
                unclear_copies, unread = unclear_on(found, group), unread_on(found, group)
                unknown = frozenset((*unclear_copies, *unread))
                damaged = frozenset((*damaged_on(found, group), *fillers_on(found))) - unknown
                is_any_lost = is_lost(found, group)
                self._ranges.append(
                    _Range(
                        found.first_index,
                        found.last_index,
                        found.terms,
                        found.log_terms,
                        damaged,
                        unknown,
                        is_any_lost,
                        found.is_silent,
                    )
                )
                if is_any_lost:
                    lost.add(found.first_index, found.last_index)
                elif unclear_copies or (unread and not intact_on(found, group)):
                    unclear.add(found.first_index, found.last_index, max(found.sizes))
        self.unclear: Ranges = unclear.ranges_found()
        self.lost: Ranges = lost.ranges_found()
        old = commit_log_replicas(stores)
        self._names = [each.name for each in old]
        self._rows = list(pos_rows(old, compare_positions(old))) if old else []
        positions = RangeCounter()
        for row in self._rows:
            if row.unclear:
                positions.add(row.first_pos, row.last_pos)
        self.unclear_positions = positions.ranges_found()
        ends_known = all(each.donors for each in lost_ends_of(old))
        self.commit_log_end = max((each.end for each in old), default=0) if old and ends_known else INT64_MAX
        """Where the longest CommitLog ends, 2^63-1 if all may have been longer."""

    @property
    def has_commit_logs(self) -> bool:
        """Whether the CommitLogs of all replicas were compared."""
        return bool(self._rows)

    @property
    def last_index(self) -> int:
        """The last index of all logs; -1 without entries."""
        return self._ranges[-1].last if self._ranges else -1

    def is_replaced(self, index: int) -> bool:
        """Whether the group's log has another entry at this index, of which a replica has a copy."""
        found = self._at(index)
        return found is not None and not found.is_lost and any(term is not None for term in found.terms)

    def _at(self, index: int) -> _Range | None:
        place = bisect_right(self._ranges, index, key=lambda each: each.first) - 1
        return self._ranges[place] if place >= 0 and index <= self._ranges[place].last else None

    def of_entry(self, number: int, index: int, term: int | None) -> int:
        """How a replica has the entry `index`; one of another term counts as absent.

        A `term` that no log has is of a damaged index unit, and counts as unknown.
        """
        found = self._at(index)
        if found is None:
            return ABSENT
        if number in found.damaged:
            return DAMAGED
        if number in found.unclear:
            return UNCLEAR
        is_other = term != found.terms[number] and term in (*found.terms, *found.log_terms) and term is not None
        return ABSENT if found.terms[number] is None or is_other else INTACT

    def pos_of(self, index: int) -> int:
        """The lowest position at which a replica has an entry, or had it."""
        return min(replica.position(index) for replica in self._replicas if replica.begin <= index)

    def of_bytes(self, number: int, start: int, end: int) -> int:
        """How a replica has the positions ``[start, end)`` of the CommitLog."""
        name = self._names[number]
        first = max(bisect_right(self._rows, start, key=lambda row: row.first_pos) - 1, 0)
        rows = [row for row in takewhile(lambda row: row.first_pos < end, self._rows[first:]) if row.last_pos >= start]
        if any(name in row.damaged and name not in row.unclear for row in rows):
            return DAMAGED
        if any(name in row.unclear for row in rows):
            return UNCLEAR
        return INTACT if rows and all(name in row.terms for row in rows) else ABSENT

    def silently_damaged(self, number: int) -> Iterator[tuple[int, int]]:
        """Where rows of a replica begin that are damaged, and where the next ones begin; those that look whole too."""
        for row in self._rows:
            if self._names[number] in row.damaged:
                yield row.first_pos, row.last_pos + 1
        for found in self._ranges:
            if found.is_silent[number]:
                replica = self._replicas[number]
                yield replica.position(found.first), replica.position(found.last + 1)
