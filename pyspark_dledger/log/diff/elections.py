"""Which replicas could win an election, and what the others would truncate then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_dledger.log.diff.replica_group import ReplicaGroup


@dataclass(frozen=True)
class Loss:
    """Entries of `node` that it would truncate as a follower of the elected replica."""

    node: str
    first_index: int
    last_index: int
    bytes: int
    on_majority: bool
    committed: bool

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1


@dataclass(frozen=True)
class Candidate:
    """A replica that could win an election. ``voters`` are the nodes that are not ahead of it, with itself.

    Java votes for a candidate with a higher last term, or the same one and an end index that is not lower
    (DLedgerLeaderElector.handleVote). Members that were not given may also vote for it.
    """

    node: str
    end_term: int
    end_index: int
    voters: tuple[str, ...]
    losses: tuple[Loss, ...]


def candidates(group: ReplicaGroup) -> Iterator[Candidate]:
    """The replicas that could be elected, the foremost first."""
    members = group.members
    missing = max(group.size - len(members), 0)
    for number in sorted(range(len(members)), key=group.rank):
        end = members[number].end_term, members[number].end
        voters = tuple(member.node for member in members if (member.end_term, member.end) <= end)
        if len(voters) + missing >= group.needed and members[number].end >= 0:
            losses = tuple(_losses(group, number))
            yield Candidate(members[number].node, *end, voters, losses)


def missing_entries(group: ReplicaGroup, holder: int, other: int) -> tuple[int, int, int] | None:
    """First index, last index and bytes of what `holder` has after the last entry in common with `other`."""
    agreed = group.agreed[holder][other]
    first = group.members[holder].begin if group.members[other].end < 0 else agreed + 1 if agreed is not None else None
    if first is None or group.members[holder].end < 0:
        return None
    member = group.members[holder]
    return first, member.end, max(member.end_pos - member.position(first), 0)


def _losses(group: ReplicaGroup, elected: int) -> Iterator[Loss]:
    for number, member in sorted(enumerate(group.members), key=lambda item: item[1].node):
        if number == elected or group.agreed[elected][number] is None:
            continue
        missing = missing_entries(group, number, elected)
        if missing is None or missing[0] > missing[1]:
            continue
        first, last, size = missing
        holder, committed_holder = group.majority_holder, group.committed_holder
        on_majority = holder is not None and group.agrees(holder, number, first) and first <= group.majority_index
        committed = (
            committed_holder is not None
            and group.committed_index is not None
            and first <= group.committed_index
            and group.agrees(committed_holder, number, first)
        )
        yield Loss(member.node, first, last, size, on_majority, committed)
