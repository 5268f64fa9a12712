"""The table ``diff``: the replicas of one log compared.

Contradictions that a read of the log rejects are rows here, also with a replica of another group.
`LogEvidence` counts what a comparison found, for the group's log and for each member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any, Protocol

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MIN
from pyspark_dledger.format.spec import Filters, ScanRequest
from pyspark_dledger.log.copies.first_difference import Difference, first_difference
from pyspark_dledger.log.diff.copy_ranges import (
    AFTER,
    BEFORE,
    DAMAGED,
    FILLER,
    INTACT,
    ONLY_COPY,
    UNREAD,
    Copy,
    CopyRange,
    RangeCounter,
)
from pyspark_dledger.log.diff.replica_group import GroupMember, ReplicaGroup
from pyspark_dledger.log.plan import Partition, read_partition

SAME = "same"
BEHIND = "behind"
EXPIRED = "expired"
UNREADABLE = "unreadable"
OTHER_BYTES = "otherBytes"
DIVERGED = "diverged"
CONTRADICTS = "contradicts"
COMMITTED = "committed"
ON_MAJORITY = "onMajority"
STALE = "stale"

VERDICTS = {
    SAME: "all replicas have the same entries",
    BEHIND: "`nodes` end before these entries; the leader will send them",
    EXPIRED: "`nodes` begin after these entries: expired, or below a snapshot",
    FILLER: "`nodes` have fillers of a salvage; `intact` nodes have the entries",
    DAMAGED: "damaged or missing on `nodes`; `intact` nodes have them",
    UNREADABLE: "in unreadable files of `nodes`",
    OTHER_BYTES: "same index and term, other bytes; no check tells which are damaged; `nodes` differ from most",
    DIVERGED: "`nodes` differ from the replica with the highest last term, or lack its entries: two leaders wrote",
    CONTRADICTS: "like `diverged`, but two nodes have theirs committed: another group, or damage",
    COMMITTED: "proven committed, on `nodes`, maybe damaged there; `terms` at lastIndex",
    ON_MAJORITY: "on a majority, `nodes`, but not proven committed; `terms` at lastIndex",
    STALE: "after the end of the node's log, left by a truncation",
}
"""Every index is in one row of the first nine verdicts; rows of the last three are additional."""

FAULTS = frozenset((FILLER, DAMAGED, UNREADABLE, OTHER_BYTES, DIVERGED, CONTRADICTS))
"""Verdicts that no healthy group shows."""
MAX_EXPLAINED = 1_000
"""Ranges of which the first difference is found."""
_STALE_COLUMNS = ("index", "term", "pos")


@dataclass(frozen=True)
class DiffRow:
    """One verdict on the indexes ``[first_index, last_index]``.

    ``first_pos`` is the position of the first one on the first replica that has it; None without one. The verdict is
    about ``nodes``; ``terms`` has the term on each node that has the entries, unless they are damaged there.
    ``damaged`` are the nodes that lost them or have a damaged copy. ``intact`` are those with an intact copy; empty
    where no check tells which copies are intact, or if a damaged entry's only other copy has no checksum.
    ``first_byte`` is the first byte of the first entry in which intact copies differ, ``first_difference`` has its
    field and the values; None if none is known. Only rows about CommitLogs (`commit_log_group.PosRow`) have a
    ``last_pos``.
    """

    first_index: int
    last_index: int
    first_pos: int | None
    verdict: str
    nodes: tuple[str, ...]
    terms: dict[str, int]
    damaged: tuple[str, ...] = ()
    intact: tuple[str, ...] = ()
    first_byte: int | None = None
    first_difference: str | None = None
    last_pos: None = None

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1


class ComparedGroup(Protocol):
    """What a verdict on a range needs to know of the replicas."""

    foremost: int

    def rank(self, number: int) -> tuple[object, ...]:
        """The order of replicas, the foremost first."""

    def diverged(self, first: int, second: int) -> bool:
        """Whether the logs of two replicas diverge, so that neither continues the other."""

    def contradicts(self, found: CopyRange) -> bool:
        """Whether two replicas have different entries of a range, and both have them committed."""


def ledger_rows(group: ReplicaGroup) -> Iterator[DiffRow]:
    """The rows about a group's DLedger logs: of the group, then by index, then stale entries."""
    yield from _group_rows(group)
    explained = iter(range(MAX_EXPLAINED))
    ranges = (part for found in group.ranges for part in _between_commits(found, group))
    yield from merged(row_of(found, group, explained) for found in ranges)
    for member in group.members:
        yield from _stale_rows(member)


def _between_commits(found: CopyRange, group: ReplicaGroup) -> Iterator[CopyRange]:
    """The parts of a range with different terms in which the same replicas have their entries committed."""
    if len({found.term_of(number) for number in found.holders}) < 2:
        yield found
        return
    starts = {found.first, *(member.known_committed + 1 for member in group.members)}
    cuts = [*sorted(start for start in starts if found.first <= start <= found.last), found.last + 1]
    yield from (found._replace(first=first, last=following - 1) for first, following in pairwise(cuts))


def merged(rows: Iterable[DiffRow]) -> Iterator[DiffRow]:
    """The rows, with adjacent ones of the same verdict merged."""
    return merge_adjacent(rows, _joined)


def _joined(last: DiffRow, row: DiffRow) -> DiffRow | None:
    of_first = ("first_index", "last_index", "first_pos", "first_byte", "first_difference")
    same = replace(row, **{name: getattr(last, name) for name in of_first})
    if last.last_index + 1 != row.first_index or same != last or last.verdict in (COMMITTED, ON_MAJORITY):
        return None
    return replace(last, last_index=row.last_index)


def row_of(found: CopyRange, group: ReplicaGroup, explained: Iterator[int]) -> DiffRow:
    """The row for a range; a difference is explained while `explained` lasts."""
    verdict, about = verdict_of(found, group)
    names = group.names
    difference, versions = _difference(found, group, explained)
    return DiffRow(
        first_index=found.first,
        last_index=found.last,
        first_pos=next((group.members[number].position(found.first) for number in _present(found)), None),
        verdict=verdict,
        nodes=tuple(names[number] for number in about),
        terms={names[number]: found.term_of(number) for number in found.holders},
        damaged=tuple(names[number] for number in found.having(DAMAGED)),
        intact=tuple(names[number] for number in intact_of(found)),
        first_byte=difference.byte if difference is not None else None,
        first_difference=difference.text(versions, names) if difference is not None else None,
    )


def _present(found: CopyRange) -> list[int]:
    """The replicas that have an entry there: intact, a filler, or one that looks whole."""
    return [n for n, copy in enumerate(found.copies) if copy.state in (INTACT, FILLER) or copy.is_silent]


def intact_of(found: CopyRange) -> list[int]:
    """The replicas with an intact copy of a range; where some lack it, with an intact copy of what these lack."""
    wanted = {found.copies[number].history for number in found.having(DAMAGED, FILLER)}
    holders = [number for number in found.holders if not wanted or found.copies[number].history in wanted]
    return [number for number in holders if not found.copies[number].is_undecided]


def verdict_of(found: CopyRange, group: ComparedGroup) -> tuple[str, list[int]]:
    """The verdict on a range, and the numbers of the replicas that it is about."""
    holders = found.holders
    if len({found.copies[number].version for number in holders}) > 1:
        return _verdict_on_difference(found, group)
    for verdict, states in ((FILLER, (FILLER,)), (DAMAGED, (DAMAGED,)), (UNREADABLE, (UNREAD,))):
        if about := found.having(*states):
            return verdict, about
    ended = found.having(AFTER)
    diverged = [number for number in ended if holders and all(group.diverged(number, holder) for holder in holders)]
    if behind := [number for number in ended if number not in diverged]:
        return BEHIND, behind
    if diverged:
        return DIVERGED, diverged if group.foremost in holders else holders
    if expired := found.having(BEFORE):
        return EXPIRED, expired
    return SAME, holders


def _verdict_on_difference(found: CopyRange, group: ComparedGroup) -> tuple[str, list[int]]:
    """The verdict if entries differ that no check calls damaged."""
    holders = found.holders
    versions = {number: found.copies[number].version for number in holders}
    histories = {number: found.copies[number].history for number in holders}
    if len({*histories.values()}) == 1:
        most = Counter(versions.values()).most_common(2)
        is_tie = most[0][1] == most[1][1]
        return OTHER_BYTES, [number for number in holders if is_tie or versions[number] != most[0][0]]
    expected = histories[min(holders, key=group.rank)]
    others = [number for number in holders if histories[number] != expected]
    return (CONTRADICTS if group.contradicts(found) else DIVERGED), others


def _difference(
    found: CopyRange, group: ReplicaGroup, explained: Iterator[int]
) -> tuple[Difference | None, list[int | None]]:
    """The difference between intact copies of one term, and the version of each replica."""
    versions = [copy.version if copy.state == INTACT else None for copy in found.copies]
    numbers = sorted({version for version in versions if version is not None})
    if len(numbers) < 2 or next(explained, None) is None:
        return None, versions
    entries = [group.members[number].entry(found.first) for number in numbers]
    copies = [entry.read() for entry in entries if entry is not None]
    return first_difference(copies) if len(copies) == len(numbers) else None, versions


def _group_rows(group: ReplicaGroup) -> Iterator[DiffRow]:
    """Rows for the entries that are proven committed, and for further ones on a majority."""
    known = group.committed_index
    if known is not None and known >= 0 and group.committed_holder is not None:
        yield _prefix_row(COMMITTED, group, group.committed_holder, INT64_MIN, known)
    if group.majority_index > (known if known is not None else -1) and group.majority_holder is not None:
        first = known + 1 if known is not None else INT64_MIN
        yield _prefix_row(ON_MAJORITY, group, group.majority_holder, first, group.majority_index)


def _prefix_row(verdict: str, group: ReplicaGroup, holder: int, first: int, last: int) -> DiffRow:
    holding = [number for number in range(len(group.members)) if group.agrees(holder, number, last)]
    members = [group.members[number] for number in holding]
    first = max(first, min(member.begin for member in members))
    terms = {group.names[number]: group.term_at(number, last) for number in holding}
    pos = next((member.position(first) for member in members if member.begin <= first), None)
    nodes = tuple(member.node for member in members)
    return DiffRow(first, last, pos, verdict, nodes, {node: term for node, term in terms.items() if term is not None})


def _stale_rows(member: GroupMember) -> Iterator[DiffRow]:
    """The entries after the end of a log, in the rest of the file in which it ends."""
    segment = member.last_segment
    if segment is None or member.end_pos >= segment.end:
        return
    request = ScanRequest(segment, member.end_pos, segment.end, _STALE_COLUMNS, Filters(), verify_crc=False)
    batches = read_partition(Partition((request,), member.store.engine.NAME))
    rows = (row for batch in batches for row in batch.to_pylist() if row["index"] is not None)
    yield from merged(
        DiffRow(row["index"], row["index"], row["pos"], STALE, (member.node,), {member.node: row["term"]})
        for row in rows
    )


class LogEvidence:
    """What is lost, filled, undecided and restorable of the main log of a group."""

    def __init__(self, ranges: Iterable[CopyRange], least: int = 0) -> None:
        """Adjacent lost ranges with fewer than `least` bytes in all were no message."""
        self.lost, self.filled, self.unclear = RangeCounter(), RangeCounter(), RangeCounter()
        self.restorable = RangeCounter()
        self._reasons: set[str] = set()
        for is_lost, adjacent in groupby(ranges, key=attrgetter("is_lost")):
            own = list(adjacent)
            self._add(own, is_lost and sum(each.size for each in own) >= least)

    def _add(self, ranges: Iterable[CopyRange], is_lost: bool) -> None:
        for found in ranges:
            extent = found.first, found.last, found.size
            if is_lost:
                (self.filled if found.having(FILLER) else self.lost).add(*extent)
            elif found.is_undecided:
                self.unclear.add(*extent)
                self._reasons.add(found.why_undecided)
            if found.is_restorable:
                self.restorable.add(*extent)

    @property
    def unclear_reasons(self) -> tuple[str, ...]:
        """Why nothing decides about the undecided ones."""
        return tuple(sorted(self._reasons))


class MemberEvidence:
    """What a comparison found about the entries of one member.

    ``tail`` is its diverged tail, ``damaged`` are also of it, ``damaged_in_log`` not.
    """

    def __init__(self, others: Iterable[str]) -> None:
        self.alone, self.damaged, self.silent, self.unclear = (RangeCounter() for _ in range(4))
        self.fillers, self.left_out, self.tail, self.damaged_in_log = (RangeCounter() for _ in range(4))
        self.donors = set(others)
        self.is_filled = False

    def ranges(self) -> dict[str, Any]:
        """The ranges that a verdict on the member has."""
        found = {"silent": self.silent, "unclear": self.unclear, "diverged": self.tail, "fillers": self.fillers}
        found |= {"left_out": self.left_out, "in_log": self.damaged_in_log}
        return {name: counter.ranges_found() for name, counter in found.items()}

    def add(self, found: CopyRange, copy: Copy, donors: set[str]) -> None:
        """Count a range; `donors` have what is lost of the main log."""
        extent = found.first, found.last, found.size
        # A filler is right where nothing shows that a copy is: a salvage was told to write it.
        own = [each for each in found.copies if each.state == INTACT and each.history == copy.history]
        is_only = found.why_undecided == ONLY_COPY and not any(each.is_silent for each in own)
        is_held = bool(own) and (is_only or not all(each.is_undecided for each in own))
        is_in_log = copy.history == 0
        if not is_in_log and copy.state in (INTACT, DAMAGED):
            self.tail.add(*extent)
        if copy.is_undecided:
            self.unclear.add(*extent)
        elif copy.state == INTACT and [each.version for each in found.copies].count(copy.version) == 1:
            self.alone.add(*extent)
        elif copy.state == FILLER:
            self.fillers.add(*extent)
            if is_held:
                self.left_out.add(*extent)
        elif copy.state == DAMAGED:
            self.damaged.add(*extent)
            if is_in_log:
                self.damaged_in_log.add(*extent)
            if copy.is_silent:
                self.silent.add(*extent)
            self.is_filled |= not is_held and bool(found.having(FILLER))
        if is_in_log and not copy.is_undecided and (copy.state == DAMAGED or (copy.state == FILLER and is_held)):
            self.donors &= donors


def member_evidence(ranges: Iterable[CopyRange], names: Sequence[str]) -> list[MemberEvidence]:
    """What a comparison found about each member."""
    members = [MemberEvidence(names) for _ in names]
    for found in ranges:
        donors = {names[number] for number in intact_of(found)}
        if not found.holders:
            donors |= {names[number] for number in found.having(FILLER)}
        for copy, member in zip(found.copies, members, strict=True):
            member.add(found, copy, donors)
    return members
