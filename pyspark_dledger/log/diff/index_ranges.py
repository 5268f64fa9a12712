"""Compares the entries of replicas: which replicas have an index intact, with what term, and which have the same bytes.

Memory is bounded. Replicas mostly have identical bytes, so files are compared first, byte by byte. Only where bytes
differ, entries are compared, by all their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.copies.damaged_copies import Copies, confirmed_entries, damaged_copies
from pyspark_dledger.log.copies.entry_slices import (
    HEADER,
    POSITION_COLUMNS,
    Array,
    Cursor,
    EntrySlice,
    ReplicaShare,
    terms_of,
)
from pyspark_dledger.log.copies.first_difference import Difference, first_difference
from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP
from pyspark_dledger.log.copies.segment_bytes import is_torn
from pyspark_dledger.log.diff.equal_bytes import FileRange, clipped, split_by_equality
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.entry_reads import segment_at

# Ranges whose first difference is found.
MAX_EXPLAINED = 1_000
_UNKNOWN = -2


class IndexRange(NamedTuple):
    """Consecutive indexes with the same result of the comparison. Tuples have a value for each replica.

    ``terms`` and ``same_as`` are None if a replica does not have these entries intact. ``same_as`` is a number that
    replicas with the same bytes share. ``pos`` is the position of the first entry on the first replica that has it;
    ``sizes`` are bytes. ``contradicts``: two replicas have different terms, and both have them committed.
    ``is_silent``: the replica has entries that look whole, but are damaged. ``is_confirmed``: a checksum or a second
    equal copy confirms those that are intact; only known where a copy is damaged. ``log_terms`` are the terms in each
    replica's log, by the entries around, also where the entries are damaged. ``is_filler``: a salvage wrote the
    replica's entries, because no source had them. ``difference`` is between the versions of the first entry, in the
    order of their numbers; only of the first ranges. ``suspects`` are replicas that have the same bytes, whose checks
    fail, where no replica has the entries intact: they may have been written so.
    """

    first_index: int
    last_index: int
    pos: int | None
    terms: tuple[int | None, ...]
    same_as: tuple[int | None, ...]
    sizes: tuple[int, ...]
    contradicts: bool
    is_silent: tuple[bool, ...]
    is_confirmed: bool
    log_terms: tuple[int | None, ...]
    is_filler: tuple[bool, ...]
    difference: Difference | None
    suspects: tuple[int, ...] = ()

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1

    @property
    def holders(self) -> list[int]:
        """The replicas that have these entries intact."""
        return [number for number, term in enumerate(self.terms) if term is not None]


def compare_entries(shares: Sequence[ReplicaShare], first: int, last: int) -> Iterator[IndexRange]:
    """The ranges that together cover the indexes ``[first, last]`` once.

    Where all replicas have the same bytes, only the entries of the first one are read.
    """
    file_ranges: list[FileRange] = []
    if all(share.check_pos and share.begin <= first and last <= share.end for share in shares):
        file_ranges = split_by_equality([share.partition for share in shares], first, last)
    if not file_ranges:
        yield from _compare_each(shares, first, last)
    for part in file_ranges:
        is_last = part is file_ranges[-1] and not part.is_equal
        clipped_shares = [replace(share, partition=clipped(share.partition, part, is_last)) for share in shares]
        if part.is_equal:
            whole = _without_bodies(clipped_shares[0])
            for index_range in _compare_each([whole], part.first, part.last, len(shares)):
                yield _for_all(index_range, len(shares))
        else:
            yield from _compare_each(clipped_shares, part.first, part.last)


def _without_bodies(share: ReplicaShare) -> ReplicaShare:
    def without_bodies(part: ScanRequest | FileGap) -> ScanRequest | None:
        return replace(part, columns=POSITION_COLUMNS) if isinstance(part, ScanRequest) else None

    return replace(share, partition=share.partition.with_ranges(without_bodies))


def _for_all(one: IndexRange, count: int) -> IndexRange:
    """A range of one replica, as that of `count` replicas with the same entries."""
    return one._replace(
        terms=one.terms * count,
        same_as=one.same_as * count,
        sizes=one.sizes * count,
        is_silent=one.is_silent * count,
        is_confirmed=count > 1,
        log_terms=one.log_terms * count,
        is_filler=one.is_filler * count,
        suspects=tuple(range(count)) if one.suspects else (),
    )


def _compare_each(
    shares: Sequence[ReplicaShare], first: int, last: int, replicas_each: int = 1
) -> Iterator[IndexRange]:
    """The ranges of ``[first, last]``, from a comparison of each entry.

    A share stands for `replicas_each` replicas with the same bytes.
    """
    explained = iter(range(MAX_EXPLAINED))
    cursors = [Cursor(share) for share in shares]
    # At the begin and the end of a replica, the reason for a missing entry changes, and so a range ends there.
    edges = sorted({last + 1, *(edge for share in shares for edge in (share.begin, share.end + 1))})
    at = first
    while at <= last:
        heads = [cursor.head() for cursor in cursors]
        count = next(edge for edge in edges if edge > at) - at
        for head in heads:
            if head is not None:
                count = min(count, len(head) if head.first == at else head.first - at)
        assert count > 0
        slices = [head.part(0, count, at) if head is not None and head.first == at else None for head in heads]
        following = [head.first if head is not None else None for head in heads]
        yield from _index_ranges(slices, shares, at, count, explained, replicas_each, following)
        for cursor, entries in zip(cursors, slices, strict=True):
            if entries is not None:
                cursor.skip(count)
        at += count


def _index_ranges(
    slices: list[EntrySlice | None],
    shares: Sequence[ReplicaShare],
    first: int,
    count: int,
    explained: Iterator[int],
    replicas_each: int,
    following: Sequence[int | None],
) -> Iterator[IndexRange]:
    """The ranges of `count` indexes; each replica has all of them or none, and its next entry is `following`."""
    present = [(number, entries) for number, entries in enumerate(slices) if entries is not None]
    log_terms = [
        _log_terms(share, first, count, index) if share.begin <= first <= share.end else None
        for share, index in zip(shares, following, strict=True)
    ]
    none = np.zeros((0, count), bool)
    compared, suspects = _Compared(present, none, none, none), none
    contradicts = is_confirmed = np.zeros(count, bool)
    if present:
        equal_to = _equal_to(present, count)
        copies = Copies(present, shares, first, count, equal_to)
        damaged = damaged_copies(copies)
        compared = _Compared(present, equal_to, damaged, copies.column("isFiller") & ~copies.column("isWrong"))
        suspects = _suspects(compared, shares, replicas_each)
        contradicts = _contradictions(compared, shares, first)
        lacking = [share for share, entries in zip(shares, slices, strict=True) if entries is None]
        is_any_lost = any(share.begin <= first <= share.end for share in lacking)
        is_confirmed = confirmed_entries(copies, damaged, is_any_lost)
    changes = np.diff(contradicts) | np.diff(is_confirmed)
    terms = [entries.columns["term"] for _, entries in present]
    states = (*compared.equal_to, *compared.damaged, *compared.is_filler, *suspects)
    for values in (*terms, *states, *(each for each in log_terms if each is not None)):
        changes |= np.diff(values) != 0
    cuts = (np.flatnonzero(changes) + 1).tolist()
    for start, end in zip([0, *cuts], [*cuts, count], strict=True):
        intact, fillers = compared.intact(start), compared.fillers(start)
        yield IndexRange(
            first + start,
            first + end - 1,
            int(present[0][1].columns["position"][start]) if present else None,
            tuple(int(terms[intact[n]][start]) if n in intact else None for n in range(len(slices))),
            tuple(compared.version(intact[n], start) if n in intact else None for n in range(len(slices))),
            tuple(0 if entries is None else int(entries.columns["size"][start:end].sum()) for entries in slices),
            bool(contradicts[start]),
            tuple(entries is not None and n not in intact and n not in fillers for n, entries in enumerate(slices)),
            bool(is_confirmed[start]),
            tuple(None if each is None or each[start] == _UNKNOWN else int(each[start]) for each in log_terms),
            tuple(n in fillers for n in range(len(slices))),
            compared.difference(start, explained),
            tuple(number for row, (number, _) in enumerate(present) if suspects[row, start]),
        )


def _log_terms(share: ReplicaShare, first: int, count: int, following: int | None) -> Array | None:
    """The terms in a replica's log; unknown where entries are missing before its first one, or between two terms."""
    terms = terms_of(share, first, count)
    if terms is None:
        return None
    index = np.arange(first, first + count)
    is_unknown = index < share.term_starts[0][0]
    if following is not None:
        next_term = terms_of(share, following, 1)
        assert next_term is not None
        is_unknown |= (index < following) & (terms != next_term[0])
    return np.where(is_unknown, _UNKNOWN, terms)


class _Compared(NamedTuple):
    """Slices of replicas (with their numbers), and the results of their comparison, with a row for each slice."""

    present: list[tuple[int, EntrySlice]]
    equal_to: Array
    damaged: Array
    is_filler: Array

    def fillers(self, place: int) -> set[int]:
        """The replicas with a filler for an entry."""
        return {number for row, (number, _) in enumerate(self.present) if self.is_filler[row, place]}

    def difference(self, place: int, explained: Iterator[int]) -> Difference | None:
        """The difference between the intact versions of an entry; None at the end of `explained`."""
        rows = sorted({int(self.equal_to[row, place]) for row in self.intact(place).values()})
        if len(rows) < 2 or next(explained, None) is None:
            return None
        return first_difference([self.present[row][1].entry(place) for row in rows])

    def intact(self, place: int) -> dict[int, int]:
        """The replicas with an intact copy of an entry, and the row of each."""
        return {number: row for row, (number, _) in enumerate(self.present) if not self.damaged[row, place]}

    def version(self, row: int, place: int) -> int:
        """The number of the first replica with the same copy of an entry."""
        return self.present[int(self.equal_to[row, place])][0]


def _equal_to(present: list[tuple[int, EntrySlice]], count: int) -> Array:
    """For each replica in `present` and each entry, the number in `present` of the first with the same entry."""
    equal_to = np.repeat(np.arange(len(present))[:, None], count, axis=1)
    for number in range(1, len(present)):
        for before in range(number):
            unknown = (equal_to[number] == number) & (equal_to[before] == before)
            if unknown.any():
                equal_to[number][unknown & _same(present[before][1], present[number][1])] = before
    return equal_to


def _same(first: EntrySlice, second: EntrySlice) -> Array:
    """Which entries of two slices have the same bytes; `pos` is compared if both replicas check it."""
    same: Array = pc.equal(first.bodies, second.bodies).to_numpy(zero_copy_only=False)
    for name in (*HEADER, "pos"):
        if name in first.columns and name in second.columns:
            same = same & (first.columns[name] == second.columns[name])
    return same


def _suspects(compared: _Compared, shares: Sequence[ReplicaShare], replicas_each: int) -> Array:
    """Which copies fail their checks, but have the same bytes on several replicas, where none is intact.

    Two groups of such copies prove damage, and so does a lost sector.
    """
    found = np.zeros(compared.damaged.shape, bool)
    is_copy = compared.damaged & ~compared.is_filler
    for place in np.flatnonzero(compared.damaged.all(axis=0) & is_copy.any(axis=0))[:MAX_LOOKED_UP].tolist():
        rows = np.flatnonzero(is_copy[:, place])
        first, counts = np.unique(compared.equal_to[rows, place], return_counts=True)
        several = first[counts * replicas_each > 1]
        if len(several) == 1:
            number, entries = compared.present[int(several[0])]
            start, size = (int(entries.columns[name][place]) for name in ("position", "size"))
            if not is_torn(start, _bytes_at(shares[number], start, size)):
                found[rows, place] = compared.equal_to[rows, place] == several[0]
    return found


def _bytes_at(share: ReplicaShare, start: int, size: int) -> bytes:
    segments = [part.segment for part in share.partition.ranges if isinstance(part, ScanRequest)]
    segment = segment_at(segments, start)
    return segment.read(start, size) if segment is not None else b""


def _contradictions(compared: _Compared, shares: Sequence[ReplicaShare], first: int) -> Array:
    """Which entries have different terms on two replicas that both have them committed."""
    count = compared.damaged.shape[1]
    found = np.zeros(count, bool)
    index = np.arange(first, first + count)
    for row, (number, entries) in enumerate(compared.present):
        for before, (other, others) in enumerate(compared.present[:row]):
            committed = min(shares[number].committed, shares[other].committed)
            are_intact = ~compared.damaged[row] & ~compared.damaged[before]
            found |= (entries.columns["term"] != others.columns["term"]) & (index <= committed) & are_intact
    return found
