"""The replicas of a DLedger group: where their logs begin and end, up to where they agree, and what a majority has.

Also elections: which replicas could win one, and what the others would truncate then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log.committed import best, own_bound
from pyspark_dledger.log.copies.lost_ends import own_end
from pyspark_dledger.log.diff.copy_ranges import INTACT, CopyRange, CopyRanges, LogBounds
from pyspark_dledger.log.diff.salvage_doubts import doubts_of
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.replicas import FoundEntry, check_distinct, entry_of
from pyspark_dledger.log.salvage.compared_stores import ComparedStores, map_in_threads
from pyspark_dledger.log.salvage.histories import Histories
from pyspark_dledger.log.salvage.pieces import Piece
from pyspark_dledger.log.salvage.restored_log import end_of, indexes_of, start_of
from pyspark_dledger.log.store_view import StoreView


@dataclass(frozen=True)
class GroupMember:
    """One replica; -1 for an index or term that does not exist. ``committed`` is the index that its own files prove.

    ``end_pos`` is the position after its last entry. ``unread`` are indexes, inclusive, of files that cannot be read.
    """

    node: str
    store: StoreView
    begin: int
    end: int
    end_term: int
    end_pos: int
    committed: int | None
    committed_from: str | None
    unread: tuple[tuple[int, int], ...] = ()

    @property
    def path(self) -> str:
        return self.store.path

    @property
    def known_committed(self) -> int:
        return self.committed if self.committed is not None else -1

    @property
    def last_segment(self) -> Segment | None:
        """The segment in which the log ends."""
        return segment_at(self.store.ledger_segments, max(self.end_pos - 1, 0)) if self.end >= 0 else None

    def position(self, index: int) -> int:
        """The position of the first entry with at least `index`; the end of the log without one."""
        return min(self.store.position_of(index), self.end_pos) if index <= self.end else self.end_pos

    def entry(self, index: int) -> FoundEntry | None:
        """An entry of the log; None if it cannot be read."""
        return entry_of(self.store, index) if index <= self.end else None


class ReplicaGroup:
    """The replicas and the comparison of their entries, numbered in the order given.

    ``agreed[a][b]`` is the highest index up to which both have the same log, None without a common index.
    ``foremost`` has the highest last term, then end index. ``majority_index`` is the highest index that a majority of
    ``size`` members has in the same log, -1 without one; ``doubt`` says why that does not prove it committed.
    ``committed_index`` is the highest index that is proven committed, by ``committed_from``. ``doubts`` are those that
    salvages left in the replicas.
    """

    def __init__(self, compared: ComparedStores, size: int | None) -> None:
        self.notes = compared.notes
        self.doubts = tuple(map(doubts_of, compared.stores))
        histories = compared.histories(DLEDGER)
        self.histories = histories or Histories(DLEDGER, (), {}, ())
        numbers = range(len(compared.stores))
        bounds = [_bounds(compared.stores[number], number, self.histories) for number in numbers]
        self.copies = CopyRanges(self.histories, bounds)
        self.ranges = list(self.copies)
        self.members = tuple(
            self._member(compared.names[number], compared.stores[number], number, bounds[number]) for number in numbers
        )
        self._has_places = compared.is_indexed
        if self._has_places:
            self.ranges = [each._replace(size=self._size(each)) for each in self.ranges]
        self.size = size if size is not None else len(self.members)
        self.agreed = tuple(tuple(self._agreement(one, two) for two in numbers) for one in numbers)
        self.foremost = min(numbers, key=self.rank)
        self.majority_index, holder = self._majority()
        self.majority_holder = holder if self.majority_index >= 0 else None
        self.doubt = self._doubt(holder)
        self.committed_index, self.committed_holder, self.committed_from = self._committed(holder)

    def damaged_blanks(self, number: int) -> tuple[int, ...]:
        """The positions of a replica's damaged blanks; none in DLedger 0.4.0, which is compared by index."""
        return () if self._has_places else tuple(self.copies.damaged_blanks(number))

    def _member(self, name: str, store: StoreView, number: int, bounds: LogBounds) -> GroupMember:
        last = self.histories.lasts.get(number)
        term = self.copies.term_at(self.copies.history_of(number, bounds.end), bounds.end)
        is_known = last is not None and last.index >= bounds.end
        end_pos = last.end if last is not None and is_known and store.dialect != "0.4" else store.end.pos
        end_term = last.term if last is not None and is_known else term if term >= 0 else store.end.last_term
        bound = best([own_bound(store)], bounds.end)
        ends = (bounds.begin, bounds.end, end_term if bounds.end >= 0 else -1, end_pos)
        return GroupMember(name, store, *ends, bound.index, bound.source, bounds.unread)

    def _size(self, found: CopyRange) -> int:
        """The bytes of the entries of a range on replicas that have them."""
        ends = [[self.members[number].entry(index) for index in found[:2]] for number in found.holders]
        known = ((first, last) for first, last in ends if first is not None and last is not None)
        return max((last.pos + last.header.size - first.pos for first, last in known), default=0)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.members)

    @property
    def needed(self) -> int:
        """The number of members in a majority."""
        return self.size // 2 + 1

    def rank(self, number: int) -> tuple[int, int, str]:
        """The order of replicas, the foremost first: it does not depend on the order of the arguments."""
        member = self.members[number]
        return -member.end_term, -member.end, member.node

    def term_at(self, number: int, index: int) -> int | None:
        """The term of an entry in the log of a replica; None outside of it."""
        member = self.members[number]
        if not 0 <= member.begin <= index <= member.end:
            return None
        term = self.copies.term_at(self.copies.history_of(number, index), index)
        return term if term >= 0 else None

    def common(self, first: int, second: int) -> int:
        """The highest index up to which both have the same log; -1 without one."""
        agreed = self.agreed[first][second]
        if agreed is None or agreed < max(self.members[first].begin, self.members[second].begin):
            return -1
        return agreed

    def agrees(self, first: int, second: int, index: int) -> bool:
        """Whether both have `index`, and the same log up to it."""
        return self.common(first, second) >= index

    def foreign(self, first: int, second: int) -> bool:
        """Whether two replicas have common indexes, but no common entry."""
        return self.agreed[first][second] is not None and self.common(first, second) < 0

    def strangers(self, first: int, second: int) -> bool:
        """Whether two stores are no replicas of one log: other entries are committed, or only one has a DLedger log."""
        one, two = self.members[first], self.members[second]
        for plain, other in ((one.store, two.store), (two.store, one.store)):
            if plain.paths.is_plain and other.ledger_segments and not other.paths.commitlog_dirs:
                return True
        return self.foreign(first, second) and min(one.known_committed, two.known_committed) >= max(
            one.begin, two.begin
        )

    def diverged(self, first: int, second: int) -> bool:
        """Whether the logs of two replicas diverge, so that neither continues the other."""
        agreed = self.agreed[first][second]
        return agreed is not None and agreed < min(self.members[first].end, self.members[second].end)

    def contradicts(self, found: CopyRange) -> bool:
        """Whether two replicas have different entries of a range, and both have them committed."""
        committed = (number for number in found.holders if self.members[number].known_committed >= found.first)
        return len({found.copies[number].history for number in committed}) > 1

    def _agreement(self, first: int, second: int) -> int | None:
        """As ``agreed``; if both have entries intact, but none alike, they agree on none."""
        one, two = self.members[first], self.members[second]
        if first == second:
            return one.end
        begin, end = max(one.begin, two.begin), min(one.end, two.end)
        if one.end < 0 or two.end < 0 or begin > end:
            return None
        paths = [dict(self.histories.of_replica(number)) for number in (first, second)]
        starts = sorted({since for path in paths for since in path.values() if begin < since <= end})
        agreed = begin - 1
        for low, following in zip([begin, *starts], [*starts, end + 1], strict=True):
            if self.copies.history_of(first, low) != self.copies.history_of(second, low):
                break
            agreed = following - 1
        shared = [each for each in self.ranges if each.first <= agreed and begin <= each.last]
        pairs = [(each.copies[first], each.copies[second]) for each in shared]
        same = {one.version == two.version for one, two in pairs if one.state == two.state == INTACT}
        return begin - 1 if same == {False} else agreed

    def _majority(self) -> tuple[int, int]:
        """The highest index that a majority has in the same log (-1 without one), and a replica with it."""
        numbers = range(len(self.members))
        if self.needed > len(self.members):
            return -1, 0
        indexes = [
            sorted((self.common(one, other) for other in numbers), reverse=True)[self.needed - 1] for one in numbers
        ]
        index = max(indexes)
        return index, min((number for number in numbers if indexes[number] == index), key=self.rank)

    def _doubt(self, holder: int) -> str:
        """Why a majority does not prove its index committed; empty if it does."""
        index = self.majority_index
        if self.size != len(self.members):
            return f"expected all {self.size} members of the group, found {len(self.members)} replicas"
        if index < 0:
            return "no index is on a majority"
        term = self.term_at(holder, index)
        for number in sorted(range(len(self.members)), key=lambda number: self.names[number]):
            member = self.members[number]
            # As leader, it would overwrite the entry.
            if self.term_at(number, index) != term and term is not None and member.end_term > term:
                return f"{member.node} lacks it and ends with term {member.end_term}"
        return ""

    def _committed(self, holder: int) -> tuple[int | None, int | None, str | None]:
        index = self.majority_index
        proofs = [(index, holder, "quorum")] if not self.doubt else []
        proofs += [
            (member.committed, number, f"{member.committed_from} of {member.node}")
            for number, member in enumerate(self.members)
            if member.committed is not None and (index < 0 or not self.foreign(holder, number))
        ]
        return min(proofs, key=lambda proof: (-proof[0], proof[2] != "quorum", proof[2]), default=(None, None, None))


def _bounds(store: StoreView, number: int, histories: Histories) -> LogBounds:
    """Where the log of a replica begins and ends, as its entries and those of the others at the same place show."""
    found = (store.indexes_in(segment) for segment, _ in store.unread.segments)
    unread = tuple(indexes for indexes in found if indexes is not None)
    last = histories.lasts.get(number)
    if last is None:
        return LogBounds(-1, -1, unread)
    own = own_end(store)
    stale = [tail for tail in histories.stale if number in tail.sources]
    is_cut = any(tail.last_index >= own.last_index for tail in stale)
    extents = [(each.log.extents, each.since[number]) for each in histories.found if number in each.since]
    having = [each for found, since in extents for each in found if indexes_of(each)[0] >= since]
    # The end in a checkpoint from before a truncation is in the stale entries.
    kept = min(own.checkpoint_end, min((tail.first_index for tail in stale), default=0) - 1)
    end = max(last.index, kept if is_cut else own.last_index)
    if store.dialect != "0.4" and (end - last.index) * ENTRY_HEADER_SIZE > max(store.end.pos - last.end, 0):
        # The header at the end is damaged: so many entries have no room there.
        end = max([last.index, *(indexes_of(each)[1] for each in having if end_of(each) <= store.end.pos)])
    base = store.ledger_segments[0].base if store.dialect != "0.4" else 0
    starts = [indexes_of(each)[0] for each in having if start_of(each) >= base]
    if store.dialect == "0.4":
        starts = [indexes_of(each)[0] for each in having if isinstance(each, Piece) and number in each.sources]
    return LogBounds(min(starts, default=0), end, unread)


def group_of(store: StoreView) -> ReplicaGroup:
    """The group of a store and its replicas. Raises OptionError without replicas, and for one that is given twice."""
    return ReplicaGroup(compared(store), store.options.group_size)


def compared(store: StoreView) -> ComparedStores:
    """The copies of a store and its replicas, read in threads. Raises OptionError without replicas."""
    stores: Sequence[StoreView] = [store, *store.replicas]
    if len(stores) < 2:
        raise OptionError(
            "expected the other replicas, found none: give them with the option replicas, or as further paths"
        )
    check_distinct(stores, "replica")
    return ComparedStores(stores, map_in_threads)


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
    if all(member.end < 0 for member in members):
        return
    for number in sorted(range(len(members)), key=group.rank):
        end = members[number].end_term, members[number].end
        voters = tuple(member.node for member in members if (member.end_term, member.end) <= end)
        if len(voters) + missing >= group.needed:
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
        is_empty = group.members[elected].end < 0
        if number == elected or (group.agreed[elected][number] is None and not is_empty):
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
