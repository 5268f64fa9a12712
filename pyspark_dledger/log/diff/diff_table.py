"""The table ``diff``: the replicas of one log compared, in parts.

Contradictions that a read of the log rejects are rows here, also with a replica of another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MIN
from pyspark_dledger.format.spec import Filters, IntFilter, ScanRequest, Segment
from pyspark_dledger.log.copies.entry_slices import ENTRY_COLUMNS, ReplicaShare
from pyspark_dledger.log.diff.index_ranges import IndexRange, compare_entries
from pyspark_dledger.log.diff.replica import Replica
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, group_of
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.partition_size import size_for
from pyspark_dledger.log.plan import Partition, read_partition
from pyspark_dledger.log.store_view import StoreView

SAME = "same"
BEHIND = "behind"
EXPIRED = "expired"
FILLER = "filler"
DAMAGED = "damaged"
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

# A Spark task costs about 30 ms; a row stands for many entries.
_PART_BYTES = 1024 * 1024 * 1024
_STALE_COLUMNS = ("index", "term", "pos")


@dataclass(frozen=True)
class DiffRow:
    """One verdict on the indexes ``[first_index, last_index]``.

    ``first_pos`` is the position of the first one on the first replica that has it; None without one. The verdict is
    about ``nodes``; ``terms`` has the term on each node that has the entries, unless they are damaged there.
    ``damaged`` are the nodes that lost them or have a damaged copy. ``intact`` are those with an intact copy; empty
    where no check tells which copies are intact, or if a damaged entry's only other copy has no checksum.
    ``first_byte`` is the first byte of the first entry in which intact copies differ, ``first_difference`` has its
    field and the values; None if none is known. Only rows about CommitLogs (`commit_log.rows.PosRow`) have a
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


@dataclass(frozen=True)
class DiffPart:
    """The input of one task: the indexes ``[first_index, last_index]`` of all replicas, or the bytes after their ends.

    ``rows`` are already known and come first.
    """

    group: ReplicaGroup
    rows: tuple[DiffRow, ...] = ()
    shares: tuple[ReplicaShare, ...] = ()
    first_index: int = 0
    last_index: int = -1
    after_end: tuple[tuple[str, Partition], ...] = ()


def diff_rows(store: StoreView) -> Iterator[DiffRow]:
    """The rows of the table ``diff`` of a store and its replicas: of the group, then by index, then stale entries.

    Raises OptionError without replicas, StoreError if one cannot be opened.
    """
    yield from merged(row for part in plan_diff(store, store.options) for row in read_diff(part))


def plan_diff(store: StoreView, options: ReadOptions) -> list[DiffPart]:
    """The parts of a comparison. A range that spans two parts is a row in each.

    ``max_partition_bytes`` is for the bytes of all replicas together; the default is 1 GiB.
    """
    return plan_parts(*group_of(store, options.group_size), options)


def plan_parts(group: ReplicaGroup, replicas: list[Replica], options: ReadOptions) -> list[DiffPart]:
    """The parts of a comparison of a group."""
    parts = [DiffPart(group, tuple(_group_rows(group, replicas)))]
    parts += [_part(group, replicas, first, last) for first, last in _ranges(replicas, options)]
    found = ((replica.node, _after_end(replica)) for replica in replicas)
    after_end = tuple((node, partition) for node, partition in found if partition is not None)
    return [*parts, DiffPart(group, after_end=after_end)]


def read_diff(part: DiffPart) -> Iterator[DiffRow]:
    """The rows of a part."""
    yield from part.rows
    yield from merged(row_of(found, part.group) for found in read_ranges(part))
    yield from stale_rows(part)


def read_ranges(part: DiffPart) -> Iterator[IndexRange]:
    """The compared ranges of a part, from which its rows are made."""
    return compare_entries(part.shares, part.first_index, part.last_index)


def merged(rows: Iterable[DiffRow]) -> Iterator[DiffRow]:
    """The rows, with adjacent ones of the same verdict merged."""
    return merge_adjacent(rows, _joined)


def _joined(last: DiffRow, row: DiffRow) -> DiffRow | None:
    of_first = ("first_index", "last_index", "first_pos", "first_byte", "first_difference")
    same = replace(row, **{name: getattr(last, name) for name in of_first})
    if last.last_index + 1 != row.first_index or same != last or last.verdict in (COMMITTED, ON_MAJORITY):
        return None
    return replace(last, last_index=row.last_index)


def row_of(found: IndexRange, group: ReplicaGroup) -> DiffRow:
    """The row for a compared range."""
    verdict, about = _verdict(found, group)
    names = group.names
    terms = {names[number]: term for number, term in enumerate(found.terms) if term is not None}
    nodes, damaged, intact = (
        tuple(names[number] for number in numbers)
        for numbers in (about, damaged_on(found, group), intact_on(found, group))
    )
    byte = text = None
    if found.difference is not None:
        byte, text = found.difference.byte, found.difference.text(found.same_as, names)
    return DiffRow(found.first_index, found.last_index, found.pos, verdict, nodes, terms, damaged, intact, byte, text)


def damaged_on(found: IndexRange, group: ReplicaGroup) -> list[int]:
    """The replicas whose log has the range, but neither intact nor as a filler."""
    unread = unread_on(found, group)
    return [number for number in _lacking(found, group) if not found.is_filler[number] and number not in unread]


def unread_on(found: IndexRange, group: ReplicaGroup) -> list[int]:
    """The replicas that lack the range, and have files that cannot be read and can have it."""
    return [
        number
        for number, member in enumerate(group.members)
        if found.terms[number] is None and not found.is_filler[number]
        if any(first <= found.last_index and found.first_index <= last for first, last in member.unread)
    ]


def _lacking(found: IndexRange, group: ReplicaGroup) -> list[int]:
    """The replicas whose log has the range, but not intact."""
    members = enumerate(group.members)
    return [n for n, member in members if found.terms[n] is None and member.begin <= found.first_index <= member.end]


def fillers_on(found: IndexRange) -> list[int]:
    """The replicas with fillers in place of the range."""
    return [number for number, is_filler in enumerate(found.is_filler) if is_filler]


def unclear_on(found: IndexRange, group: ReplicaGroup) -> list[int]:
    """The replicas with copies that no check judges.

    They are of one term with different bytes; nothing confirms the only copy of a damaged entry; or all fail the same
    checks alike.
    """
    if found.suspects:
        return list(found.suspects)
    versions = {(found.terms[number], found.same_as[number]) for number in found.holders}
    terms = Counter(term for term, _ in versions)
    differing = [number for number in found.holders if terms[found.terms[number]] > 1]
    return differing or ([] if found.is_confirmed else _wanted(found, group))


def intact_on(found: IndexRange, group: ReplicaGroup) -> list[int]:
    """The replicas with an intact copy of a range; where some lack it, with an intact copy of what these lack."""
    unclear = unclear_on(found, group)
    return [number for number in _wanted(found, group) if number not in unclear]


def _wanted(found: IndexRange, group: ReplicaGroup) -> list[int]:
    """The replicas that have a range; where some lack it, those that have it with the term in the log of these."""
    terms = {found.log_terms[number] for number in _lacking(found, group)}
    return [number for number in found.holders if not terms or terms & {None, found.terms[number]}]


def is_lost(found: IndexRange, group: ReplicaGroup) -> bool:
    """Whether no replica has the entries of the log that the foremost replica continues."""
    if found.suspects or unread_on(found, group):
        return False
    numbers = [number for number, term in enumerate(found.log_terms) if term is not None]
    if not numbers:
        return not found.holders and bool(_lacking(found, group))
    kept = found.log_terms[min(numbers, key=group.rank)]
    return kept not in {found.terms[number] for number in found.holders}


def _verdict(found: IndexRange, group: ReplicaGroup) -> tuple[str, list[int]]:
    """The verdict on a compared range, and the numbers of the replicas that it is about."""
    holders = found.holders
    if len({found.same_as[number] for number in holders}) > 1:
        return _verdict_on_difference(found, group)
    members = group.members
    if any(found.is_filler):
        return FILLER, fillers_on(found)
    damaged = damaged_on(found, group)
    if damaged:
        return DAMAGED, damaged
    unread = unread_on(found, group)
    if unread:
        return UNREADABLE, unread
    absent = [number for number in range(len(members)) if found.terms[number] is None]
    ended = [number for number in absent if found.first_index > members[number].end]
    diverged = [number for number in ended if holders and all(group.diverged(number, holder) for holder in holders)]
    behind = [number for number in ended if number not in diverged]
    if behind:
        return BEHIND, behind
    if diverged:
        return DIVERGED, diverged if group.foremost in holders else holders
    if absent:
        return EXPIRED, absent
    return SAME, holders


def _verdict_on_difference(found: IndexRange, group: ReplicaGroup) -> tuple[str, list[int]]:
    """The verdict if entries differ that no check calls damaged."""
    holders = found.holders
    if len({found.terms[number] for number in holders}) == 1:
        most = Counter(found.same_as[number] for number in holders).most_common(2)
        is_tie = most[0][1] == most[1][1]
        return OTHER_BYTES, [number for number in holders if is_tie or found.same_as[number] != most[0][0]]
    expected = _expected_term(found, group)
    others = [number for number in holders if found.terms[number] != expected]
    return (CONTRADICTS if found.contradicts else DIVERGED), others


def _expected_term(found: IndexRange, group: ReplicaGroup) -> int | None:
    """The term of the foremost replica that has the entries."""
    return found.terms[min(found.holders, key=group.rank)]


def _group_rows(group: ReplicaGroup, replicas: list[Replica]) -> Iterator[DiffRow]:
    """Rows for the entries that are proven committed, and for further ones on a majority."""
    known = group.committed_index
    if known is not None and known >= 0 and group.committed_holder is not None:
        yield _prefix_row(COMMITTED, group, replicas, group.committed_holder, INT64_MIN, known)
    if group.majority_index > (known if known is not None else -1) and group.majority_holder is not None:
        first = known + 1 if known is not None else INT64_MIN
        yield _prefix_row(ON_MAJORITY, group, replicas, group.majority_holder, first, group.majority_index)


def _prefix_row(
    verdict: str, group: ReplicaGroup, replicas: list[Replica], holder: int, first: int, last: int
) -> DiffRow:
    holding = [number for number in range(len(replicas)) if group.agrees(holder, number, last)]
    first = max(first, min(replicas[number].begin for number in holding))
    terms = {replicas[number].node: replicas[number].terms.at(last) for number in holding}
    pos = next((replicas[number].position(first) for number in holding if replicas[number].begin <= first), None)
    nodes = tuple(replicas[number].node for number in holding)
    return DiffRow(first, last, pos, verdict, nodes, {node: term for node, term in terms.items() if term is not None})


def _ranges(replicas: list[Replica], options: ReadOptions) -> list[tuple[int, int]]:
    """Ranges of indexes, inclusive, that together cover every entry of every replica once."""
    filled = [replica for replica in replicas if replica.end >= 0]
    if not filled:
        return []
    total = sum(replica.size for replica in filled)
    target = size_for(options.max_partition_bytes or _PART_BYTES, total, options.min_partitions)
    # Between these, the set of replicas that have entries does not change.
    cuts = {edge for replica in filled for edge in (replica.begin, replica.end + 1)}
    covered: tuple[int, int] | None = None
    for replica in sorted(filled, key=lambda replica: replica.begin - replica.end):
        low, high = covered or (replica.end + 1, replica.begin)
        cuts.update(index for index in replica.cuts(max(target // len(filled), 1)) if not low <= index <= high)
        covered = min(low, replica.begin), max(high, replica.end)
    assert covered is not None
    first, last = covered
    starts = sorted({first, *(index for index in cuts if first < index <= last)})
    return [(start, following - 1) for start, following in zip(starts, [*starts[1:], last + 1], strict=True)]


def _part(group: ReplicaGroup, replicas: list[Replica], first: int, last: int) -> DiffPart:
    shares = [
        ReplicaShare(
            _partition(replica, first, last),
            member.begin,
            member.end,
            member.known_committed,
            replica.check_pos,
            tuple((run.index, run.term) for run in replica.terms.runs),
            replica.index_folder,
            replica.queue_root,
            SalvageFillers(replica.store.paths),
        )
        for replica, member in zip(replicas, group.members, strict=True)
    ]
    return DiffPart(group, shares=tuple(shares), first_index=first, last_index=last)


def _after_end(replica: Replica) -> Partition | None:
    """The rest of the file in which the log ends; None without one."""
    if replica.last_segment is None:
        return None
    segment, pos = replica.last_segment
    if pos >= segment.end:
        return None
    return Partition((_stale_request(segment, pos),), replica.store.engine.NAME)


def _stale_request(segment: Segment, pos: int) -> ScanRequest:
    return ScanRequest(segment, pos, segment.end, _STALE_COLUMNS, Filters(), verify_crc=False)


def stale_rows(part: DiffPart) -> Iterator[DiffRow]:
    """The entries after the end of each log, in the order of the file."""
    for node, partition in part.after_end:
        rows = (row for batch in read_partition(partition) for row in batch.to_pylist() if row["index"] is not None)
        yield from merged(
            DiffRow(row["index"], row["index"], row["pos"], STALE, (node,), {node: row["term"]}) for row in rows
        )


def _partition(replica: Replica, first: int, last: int) -> Partition:
    """A read of the entries ``[first, last]``."""
    start, end = replica.position(first), replica.position(last + 1)
    wanted = Filters(index=IntFilter(first, last))
    ranges = []
    for segment in replica.store.ledger_segments if replica.firsts else []:
        low, high = max(start, segment.base), min(end, replica.store.segment_end(segment))
        if low < high:
            ranges.append(ScanRequest(segment, low, high, ENTRY_COLUMNS, wanted, verify_crc=True))
    return Partition(tuple(ranges), replica.store.engine.NAME)
