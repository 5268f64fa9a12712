"""The verdict on a group of replicas: what is lost for good, and which member may be started or elected as it is.

Evidence is what the comparison found in entries. Index files, state files and queues are `verify`'s part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_dledger.log.diff.copy_ranges import Ranges
from pyspark_dledger.log.diff.diff_table import LogEvidence, MemberEvidence
from pyspark_dledger.log.diff.replica_group import Candidate, Loss, ReplicaGroup
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.store_paths import file_size
from pyspark_dledger.log.store_view import StoreView

YES, NO, WITH_LOSS, UNKNOWN = "yes", "no", "withLoss", "unknown"
NOTHING, SOME = "nothing", "some"


@dataclass(frozen=True)
class MemberVerdict:
    """What may be done with one member as it is.

    ``start`` and ``elect`` are ``yes``, ``no`` or ``unknown``; ``elect`` is also ``withLoss``, if others would then
    truncate entries that are not proven committed. ``damaged``, ``silent`` (a part of it, which looks whole) and
    ``unclear`` (no check tells if this copy is damaged) are its entries. ``fillers`` a salvage wrote; those in
    ``left_out`` another replica has. Damaged entries that are not ``in_log`` are of a tail that the group's log does
    not have. ``donors`` have all others and those left out, or fillers of what nobody has (``is_filled``).
    ``lost_end`` are committed entries after its end. ``can_win``: enough members would vote for it, but not those
    ``ahead``. ``unreadable`` is what cannot be read of its log, checkpoint, queues, indexes. ``begin`` is its first
    index, ``index_begin`` that of its first index unit (-1 without one). ``short`` are its files with fewer bytes than
    others, which no version of Java loads. With ``strangers``, stores of other logs, nothing tells if it may start.
    """

    node: str
    path: str
    begin: int
    index_begin: int
    start: str
    elect: str
    damaged: Ranges
    silent: Ranges
    unclear: Ranges
    fillers: Ranges
    left_out: Ranges
    in_log: Ranges
    lost_end: tuple[int, int] | None
    donors: tuple[str, ...]
    losses: tuple[Loss, ...]
    can_win: bool
    ahead: tuple[str, ...]
    is_filled: bool
    unreadable: tuple[str, ...]
    short: tuple[str, ...]
    strangers: tuple[str, ...]

    @property
    def is_emptied(self) -> bool:
        """Whether no entry of its log is left, and its index shows that there were some."""
        return self.begin < 0 <= self.index_begin


@dataclass(frozen=True)
class GroupVerdict:
    """``lost`` is ``nothing``, ``some`` or ``unknown``: whether entries are lost for good.

    ``lost_entries`` are damaged on every given replica; of ``filled_entries`` one has fillers of a salvage. Of the
    ``restorable`` ones only the header is damaged: a salvage writes it again.
    ``lost_end`` are committed by a checkpoint, of the node ``lost_end_from``, and after the end of every given replica.
    ``unclear_entries`` are those for which no check tells which copy is intact, or whether the only one is,
    for the ``unclear_reasons``.
    ``missing_members`` were not given: they may have what is lost.
    """

    lost: str
    lost_entries: Ranges
    filled_entries: Ranges
    restorable: Ranges
    lost_end: tuple[int, int] | None
    lost_end_from: str | None
    unclear_entries: Ranges
    unclear_reasons: tuple[str, ...]
    missing_members: int
    members: tuple[MemberVerdict, ...]

    @property
    def strangers(self) -> tuple[str, ...]:
        """The members that are no replicas of one log."""
        found = {name for member in self.members for name in member.strangers}
        return tuple(member.node for member in self.members if member.node in found)

    @property
    def is_restorable(self) -> bool:
        """Whether nothing is lost for good once a salvage has written headers again."""
        is_other_lost = self.filled_entries.entries or self.lost_end is not None
        return self.lost == SOME and self.lost_entries.entries == self.restorable.entries and not is_other_lost

    @property
    def answer(self) -> str:
        """``nothing``, ``some`` or ``unknown``: whether entries are lost for good that a salvage does not restore."""
        if not self.is_restorable:
            return self.lost
        is_unclear = self.unclear_entries.entries or any(member.unreadable for member in self.members)
        return UNKNOWN if is_unclear else NOTHING

    @property
    def healthy(self) -> tuple[MemberVerdict, ...]:
        """The members that may be started as they are."""
        return tuple(member for member in self.members if member.start == YES)


def judge(
    group: ReplicaGroup, evidence: Sequence[MemberEvidence], candidates: Sequence[Candidate], of_log: LogEvidence
) -> GroupVerdict:
    """The verdict, by the `evidence` of each member, and that `of_log`."""
    last = max(member.end for member in group.members)
    stores = [member.store for member in group.members]
    promised, source = min(
        (-store.checkpoint_committed_index, name) for store, name in zip(stores, group.names, strict=True)
    )
    is_unread = any(store.unread.segments for store in stores)
    lost_end = (last + 1, -promised) if -promised > last and not is_unread else None
    by_node = {candidate.node: candidate for candidate in candidates}
    members = tuple(
        _member(group, number, evidence[number], by_node.get(member.node))
        for number, member in enumerate(group.members)
    )
    lost, filled, unclear = (each.ranges_found() for each in (of_log.lost, of_log.filled, of_log.unclear))
    is_strange = any(member.strangers for member in members)
    is_unclear = is_strange or unclear.entries or any(member.unreadable for member in members)
    is_lost = (lost.entries or filled.entries or lost_end) and not is_strange
    return GroupVerdict(
        lost=SOME if is_lost else UNKNOWN if is_unclear else NOTHING,
        lost_entries=lost,
        filled_entries=filled,
        restorable=of_log.restorable.ranges_found(),
        lost_end=lost_end,
        lost_end_from=source if lost_end else None,
        unclear_entries=unclear,
        unclear_reasons=of_log.unclear_reasons,
        missing_members=max(group.size - len(members), 0),
        members=members,
    )


def _member(group: ReplicaGroup, number: int, found: MemberEvidence, candidate: Candidate | None) -> MemberVerdict:
    member = group.members[number]
    store = member.store
    promised = store.checkpoint_committed_index
    unread = store.unread.segment_texts()
    lost_end = (member.end + 1, promised) if promised > member.end and not unread else None
    losses = candidate.losses if candidate is not None else ()
    is_incomplete = bool(found.damaged.entries or found.left_out.entries)
    unreadable = (*unread, *store.unread.witnesses())
    short = short_files(store)
    is_emptied = member.begin < 0 <= store.index_files.first_index
    is_unfit = is_incomplete or lost_end or short or unread or is_emptied
    strangers = _strangers(group, number)
    start = NO if is_unfit else UNKNOWN if found.unclear.entries or unreadable or strangers else YES
    return MemberVerdict(
        node=member.node,
        path=store.argument,
        begin=member.begin,
        index_begin=store.index_files.first_index,
        start=start,
        elect=_elect(start, candidate),
        damaged=found.damaged.ranges_found(),
        silent=found.silent.ranges_found(),
        unclear=found.unclear.ranges_found(),
        fillers=found.fillers.ranges_found(),
        left_out=found.left_out.ranges_found(),
        in_log=found.damaged_in_log.ranges_found(),
        lost_end=lost_end,
        donors=tuple(sorted(found.donors - {member.node})) if is_incomplete else (),
        losses=losses,
        can_win=candidate is not None,
        ahead=tuple(
            sorted(other.node for other in group.members if (other.end_term, other.end) > (member.end_term, member.end))
        ),
        is_filled=found.is_filled,
        unreadable=unreadable,
        short=short,
        strangers=strangers,
    )


def _strangers(group: ReplicaGroup, number: int) -> tuple[str, ...]:
    """The members that are of another log than this one; all that are of another log than any, if none is."""
    numbers = range(len(group.members))
    found = {one: {two for two in numbers if one != two and group.strangers(one, two)} for one in numbers}
    own = found[number] or {one for one in numbers if found[one]}
    return tuple(group.names[other] for other in sorted(own))


def short_files(store: StoreView) -> tuple[str, ...]:
    """The files of a node's data and index that are shorter than others of their folder."""
    files = [*store.ledger_segments, *store.index_files.files]
    sizes = ((path_of(file.path), file.size) for file in files)
    return tuple(f"{path.parent.name}/{path.name}" for path, size in sizes if (file_size(path) or 0) < size)


def _elect(start: str, candidate: Candidate | None) -> str:
    if start == NO or candidate is None or any(loss.committed for loss in candidate.losses):
        return NO
    if start == UNKNOWN:
        return UNKNOWN
    return WITH_LOSS if candidate.losses else YES
