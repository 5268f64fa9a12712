"""Several replicas of one log: what they agree on, and what that proves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import TermRun
from pyspark_dledger.log.committed import Bound
from pyspark_dledger.log.io.entry_reads import entry_at, read_at, segment_at
from pyspark_dledger.log.options import ReadOptions

if TYPE_CHECKING:
    from pyspark_dledger.log.log import Log


class Terms:
    """The terms of a replica's entries, by index."""

    def __init__(self, log: Log, runs: list[TermRun] | None = None) -> None:
        self.log = log
        self.runs = runs if runs is not None else log.term_runs()
        self.first = self.runs[0].index if self.runs else 0
        self.last = log.end.last_index

    def at(self, index: int) -> int | None:
        """The term of the entry `index`, or None where the replica does not have it."""
        if not self.first <= index <= self.last:
            return None
        return self.runs[bisect_right(self.runs, index, key=lambda run: run.index) - 1].term

    def starts(self) -> Iterator[int]:
        """The indexes where a term begins, and the last index."""
        yield from (run.index for run in self.runs)
        yield self.last


def agreement(first: Terms, second: Terms) -> int | None:
    """The highest index up to which both hold the same terms, counted from the first index that both have."""
    begin, end = max(first.first, second.first), min(first.last, second.last)
    if begin > end:
        return None
    places = sorted(
        {begin, end, *(index for terms in (first, second) for index in terms.starts() if begin <= index <= end)}
    )
    agreed = begin - 1
    for place, following in zip(places, [*places[1:], end + 1], strict=True):
        if first.at(place) != second.at(place):
            break
        agreed = following - 1
    return agreed


def check_replicas(log: Log, others: list[Log], committed: int | None) -> None:
    """Raises StoreError where a replica contradicts `log` at or below `committed`, or is of another group.

    What a replica holds above its own committed index contradicts nothing: an old leader keeps such a tail for a while.
    """
    mine = Terms(log)
    for other in others:
        theirs = Terms(other)
        begin = max(mine.first, theirs.first)
        end = min(mine.last, theirs.last)
        if begin > end:
            continue
        agreed = agreement(mine, theirs)
        their_committed = other.bound(ReadOptions()).index
        known = [index for index in (committed, their_committed) if index is not None]
        limit = min([end, *known])
        if len(known) == 2 and agreed is not None and agreed < limit:
            index = agreed + 1
            raise StoreError(
                f"{other.path}: expected index {index} with term {mine.at(index)} as in {log.path}, found term "
                f"{theirs.at(index)}, and both say that it is committed: this replica is of another group, or one "
                "of them is damaged"
            )
        last_common = agreed if agreed is not None else begin - 1
        for index in sorted({begin, min(last_common, limit)}):
            if begin <= index <= last_common and not same_entry(log, other, index):
                raise StoreError(
                    f"{other.path}: expected the entry {index} of {log.path}, found other bytes: "
                    "this replica is of another group, or one of them is damaged"
                )


def same_entry(first: Log, second: Log, index: int) -> bool:
    """Whether two replicas hold the same bytes as the entry `index`, apart from where it stands."""
    return _entry(first, index) == _entry(second, index)


def _entry(log: Log, index: int) -> tuple[int, int, bytes]:
    """Term, size and body of an entry, which are the same on every replica."""
    pos = log.position_of(index)
    segment = segment_at(log.ledger_segments, pos)
    header = entry_at(segment, pos) if segment is not None else None
    if header is None or segment is None:
        return (-1, -1, b"")
    body = read_at(segment.path, pos - segment.base + header.size - header.body_size, header.body_size)
    return header.term, header.size, body


def quorum_bound(log: Log, others: list[Log], group_size: int | None) -> Bound:
    """The highest index that a majority holds with the same term, where that proves it committed.

    It does when all members are given and no replica with a higher last term lacks it: such a one could still be
    elected and overwrite it (Raft, figure 8).
    """
    members = [Terms(member) for member in (log, *others)]
    size = group_size if group_size is not None else len(members)
    if len(members) < 2:
        return Bound(None, None, "quorum: expected the other members of the group in replicas, found none")
    if len(members) != size:
        return Bound(None, None, f"quorum: expected all {size} members of the group, found {len(members)} replicas")
    index, holder = max(((_majority_index(member, members), member) for member in members), key=lambda pair: pair[0])
    if index < 0:
        return Bound(None, None, "quorum: no index is on a majority")
    term = holder.at(index)
    rival = superseding(members, index, term)
    if rival is not None:
        reason = f"{rival.log.path} lacks it and ends with term {rival.at(rival.last)}"
        return Bound(None, None, f"quorum: index {index} is on a majority, not proven committed: {reason}")
    agreed = agreement(members[0], holder)
    if agreed is None:
        return Bound(None, None, f"quorum: {log.path} has no index in common with {holder.log.path}")
    return Bound(min(index, agreed), "quorum")


def superseding(members: list[Terms], index: int, term: int | None) -> Terms | None:
    """A member that does not hold `index` with `term`, and ends with a higher term: elected, it would overwrite it."""
    for member in members:
        last_term = member.at(member.last)
        if member.at(index) != term and last_term is not None and term is not None and last_term > term:
            return member
    return None


def _majority_index(member: Terms, members: list[Terms]) -> int:
    """The highest index of `member` that a majority holds with the same term."""
    agreed = [member.last if other is member else agreement(member, other) for other in members]
    held = sorted((index if index is not None else -1 for index in agreed), reverse=True)
    return held[len(members) // 2]
