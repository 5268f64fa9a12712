"""The replicas of a group: their ends, up to where they agree, and what a majority has.

This uses the ends of the logs, their terms and a few single entries; the logs are not walked.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log.diff.digests import replica_names
from pyspark_dledger.log.diff.replica import GroupMember, Replica
from pyspark_dledger.log.diff.replica_bounds import align_terms, cut_stale_tails, include_damaged_fronts
from pyspark_dledger.log.replicas import agreement, check_distinct, same_entry, superseding
from pyspark_dledger.log.store_view import StoreView

_SAMPLES = 16


@dataclass(frozen=True)
class ReplicaGroup:
    """The replicas before their entries are compared, numbered in the order given.

    ``agreed[a][b]`` is the highest index up to which both have the same terms, None without a common index.
    ``foremost`` has the highest last term, then end index. ``majority_index`` is the highest index that a majority of
    ``size`` members has with the same term, -1 without one; ``doubt`` says why that does not prove it committed.
    ``committed_index`` is the highest index that is proven committed, by ``committed_from``.
    """

    members: tuple[GroupMember, ...]
    agreed: tuple[tuple[int | None, ...], ...]
    size: int
    foremost: int
    majority_index: int
    majority_holder: int | None
    doubt: str
    committed_index: int | None
    committed_holder: int | None
    committed_from: str | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.members)

    def rank(self, number: int) -> tuple[int, int, str]:
        """The order of replicas, the foremost first: it does not depend on the order of the arguments."""
        member = self.members[number]
        return -member.end_term, -member.end, member.node

    @property
    def needed(self) -> int:
        """The number of members in a majority."""
        return self.size // 2 + 1

    def common(self, first: int, second: int) -> int:
        """The highest index up to which both have the same terms; -1 without one."""
        agreed = self.agreed[first][second]
        if agreed is None or agreed < max(self.members[first].begin, self.members[second].begin):
            return -1
        return agreed

    def agrees(self, first: int, second: int, index: int) -> bool:
        """Whether both have `index`, and the same terms up to it."""
        return self.common(first, second) >= index

    def foreign(self, first: int, second: int) -> bool:
        """Whether two replicas have common indexes, but no common entry."""
        return self.agreed[first][second] is not None and self.common(first, second) < 0

    def diverged(self, first: int, second: int) -> bool:
        """Whether the logs of two replicas diverge, so that neither continues the other."""
        agreed = self.agreed[first][second]
        return agreed is not None and agreed < min(self.members[first].end, self.members[second].end)


def group_of(store: StoreView, group_size: int | None) -> tuple[ReplicaGroup, list[Replica]]:
    """The group of a store and its replicas. Raises OptionError without replicas, and for one that is given twice."""
    replicas = _replicas(store)
    cut_stale_tails(replicas)
    include_damaged_fronts(replicas)
    align_terms(replicas)
    agreed = _agreements(replicas)
    members = tuple(replica.member() for replica in replicas)
    size = group_size if group_size is not None else len(replicas)
    group = ReplicaGroup(members, agreed, size, 0, -1, None, "", None, None, None)
    foremost = min(range(len(members)), key=group.rank)
    index, holder = _majority(group)
    doubt = _doubt(group, replicas, index, holder)
    proofs = [(index, holder, "quorum")] if not doubt else []
    proofs += [
        (member.committed, number, f"{member.committed_from} of {member.node}")
        for number, member in enumerate(members)
        if member.committed is not None and (index < 0 or not group.foreign(holder, number))
    ]
    committed = min(proofs, key=lambda proof: (-proof[0], proof[2] != "quorum", proof[2]), default=(None, None, None))
    return ReplicaGroup(
        members, agreed, size, foremost, index, holder if index >= 0 else None, doubt, *committed
    ), replicas


def check_replicas(store: StoreView, committed: int | None) -> None:
    """Raises StoreError if a replica contradicts `store` at or below `committed`, or is of another group.

    Above its own committed index a replica cannot contradict: an old leader keeps uncommitted entries for a while.
    Damaged and missing entries contradict nothing.
    """
    group, replicas = group_of(store, None)
    mine = replicas[0]
    for number, theirs in enumerate(replicas[1:], 1):
        agreed = group.agreed[0][number]
        if agreed is None:
            continue
        index = max(agreed + 1, mine.begin, theirs.begin)
        terms = mine.terms.at(index), theirs.terms.at(index)
        problem = "this replica is of another group, or one of them is damaged: run dledger diff with all of them"
        if group.foreign(0, number) and terms[0] == terms[1]:
            raise StoreError(
                f"{theirs.store.path}: expected the entry {index} of {store.path}, found other bytes: {problem}"
            )
        bound = group.members[number].committed
        if committed is not None and bound is not None and index <= min(mine.end, theirs.end, committed, bound):
            raise StoreError(
                f"{theirs.store.path}: expected index {index} with term {terms[0]} as in {store.path}, found term "
                f"{terms[1]}, and both say that it is committed: {problem}"
            )


def _replicas(store: StoreView) -> list[Replica]:
    stores = [store, *store.replicas]
    if len(stores) < 2:
        raise OptionError(
            "expected the other replicas, found none: give them with the option replicas, or as further paths"
        )
    check_distinct(stores, "replica")
    return [Replica(name, one) for name, one in zip(replica_names(stores), stores, strict=True)]


def _agreements(replicas: list[Replica]) -> tuple[tuple[int | None, ...], ...]:
    agreed: list[list[int | None]] = [[None] * len(replicas) for _ in replicas]
    for number, replica in enumerate(replicas):
        agreed[number][number] = replica.end
        for before in range(number):
            agreed[number][before] = agreed[before][number] = _agreement(replicas[before], replica)
    return tuple(map(tuple, agreed))


def _agreement(first: Replica, second: Replica) -> int | None:
    """As `agreement` of their terms; but if no sampled entry is the same, they agree on no entry."""
    if not first.firsts or not second.firsts:
        return None
    agreed = agreement(first.terms, second.terms)
    begin = max(first.terms.first, second.terms.first)
    if agreed is None or agreed < begin:
        return agreed
    # Damaged entries do not mean another group.
    samples = sorted({begin + (agreed - begin) * part // _SAMPLES for part in range(_SAMPLES + 1)})
    same = {same_entry(first.store, second.store, index) for index in samples}
    return begin - 1 if False in same and True not in same else agreed


def _majority(group: ReplicaGroup) -> tuple[int, int]:
    """The highest index that a majority has with the same term (-1 without one), and a replica with it."""
    if group.needed > len(group.members):
        return -1, 0
    numbers = range(len(group.members))
    indexes = [
        sorted((group.common(one, other) for other in numbers), reverse=True)[group.needed - 1] for one in numbers
    ]
    index = max(indexes)
    return index, min((number for number in numbers if indexes[number] == index), key=group.rank)


def _doubt(group: ReplicaGroup, replicas: list[Replica], index: int, holder: int) -> str:
    """Why a majority does not prove `index` committed; empty if it does."""
    if group.size != len(replicas):
        return f"expected all {group.size} members of the group, found {len(replicas)} replicas"
    if index < 0:
        return "no index is on a majority"
    term = replicas[holder].terms.at(index)
    rival = superseding([replica.terms for replica in replicas], index, term)
    if rival is None:
        return ""
    number = [replica.terms for replica in replicas].index(rival)
    return f"{replicas[number].node} lacks it and ends with term {replicas[number].end_term}"
