"""How each replica of a group has an entry: intact, damaged, or not at all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from pyspark_dledger.log.diff.diff_table import damaged_on, fillers_on, is_lost, plan_parts, read_ranges, unclear_on
from pyspark_dledger.log.diff.ranges import RangeCounter, Ranges
from pyspark_dledger.log.diff.replica_group import group_of
from pyspark_dledger.log.store_view import StoreView

INTACT, DAMAGED, ABSENT = range(3)


class _Range(NamedTuple):
    first: int
    last: int
    terms: tuple[int | None, ...]
    damaged: frozenset[int]
    is_silent: tuple[bool, ...]


class CopyStates:
    """The copies of all entries of a store and its replicas, numbered in this order; compares them once.

    ``unclear`` are the entries for which no check tells which copy is intact. Raises OptionError without replicas,
    StoreError if one cannot be opened.
    """

    def __init__(self, store: StoreView) -> None:
        group, self._replicas = group_of(store, store.options.group_size)
        self._ranges: list[_Range] = []
        unclear = RangeCounter()
        parts = plan_parts(group, self._replicas, store.options)
        for found in (found for part in parts for found in read_ranges(part)):
            damaged = frozenset((*damaged_on(found, group), *fillers_on(found)))
            self._ranges.append(_Range(found.first_index, found.last_index, found.terms, damaged, found.is_silent))
            if unclear_on(found, group) and not is_lost(found, group):
                unclear.add(found.first_index, found.last_index, max(found.sizes))
        self.unclear: Ranges = unclear.ranges_found()

    def of(self, number: int, index: int, term: int | None) -> int:
        """How a replica has the entry `index`; one of another term counts as absent."""
        place = bisect_right(self._ranges, index, key=lambda each: each.first) - 1
        if place < 0 or self._ranges[place].last < index:
            return ABSENT
        found = self._ranges[place]
        if number in found.damaged:
            return DAMAGED
        return ABSENT if found.terms[number] is None or term not in (None, found.terms[number]) else INTACT

    def silently_damaged(self, number: int) -> Iterator[tuple[int, int]]:
        """Where entries of a replica begin that look whole, but are damaged, and where the next ones begin."""
        replica = self._replicas[number]
        for found in self._ranges:
            if found.is_silent[number]:
                yield replica.position(found.first), replica.position(found.last + 1)
