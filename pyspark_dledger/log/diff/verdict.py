"""The verdict on a group of replicas: what is lost for good, and which member may be started, elected or be the master.

Evidence is what the comparison found in entries or messages. Index files, state files and queues are `verify`'s part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.format.state_files import epoch_at
from pyspark_dledger.log.committed import first_after_expired, promised_committed, promised_end
from pyspark_dledger.log.copies.lost_ends import LostEnd
from pyspark_dledger.log.diff.commit_log_group import CommitLogGroup, CommitLogState, ConsistentPoint
from pyspark_dledger.log.diff.copy_ranges import AFTER, BEFORE, DAMAGED, INTACT, NO_RANGES, RangeCounter, Ranges
from pyspark_dledger.log.diff.diff_table import LogEvidence, MemberEvidence, member_evidence
from pyspark_dledger.log.diff.replica_group import Candidate, Loss, ReplicaGroup
from pyspark_dledger.log.io.files import path_of

YES, NO, WITH_LOSS, UNKNOWN = "yes", "no", "withLoss", "unknown"
MASTER, SLAVE = "master", "slave"
MAY_START = (YES, MASTER, SLAVE)
NOTHING, SOME = "nothing", "some"


@dataclass(frozen=True)
class MemberVerdict:
    """What may be done with one member as it is, by its ``log``: DLedger's, or a CommitLog.

    Ranges are of indexes, of a CommitLog of positions; ``begin`` is the first one. ``start`` is ``yes``, of a CommitLog
    ``master``, or ``slave`` if another one has more, or is of a later epoch; else ``no`` or ``unknown``.

    ``damaged``, ``silent`` (a part of it, which looks whole) and ``unclear`` (no check tells if this copy is damaged)
    are its entries, ``diverged`` what is of another history. ``fillers`` a salvage wrote; those in ``left_out`` another
    replica has. ``in_log`` are the damaged ones that are not of a diverged tail. ``donors`` have all others and those
    left out, or fillers of what nobody has (``is_filled``). ``lost_end`` is what is committed, or was on disk, after
    its end. ``unreadable`` is what cannot be read of its log (``is_unread``), checkpoint, queues, indexes. ``short``
    are its files with fewer bytes than others, which no version of Java loads. ``damaged_blanks`` are the positions of
    damaged bytes after the last entry of a DLedger file.

    ``elect`` says if it may lead: ``yes``, ``no``, ``unknown``, or ``withLoss`` if others would then truncate entries
    that are not proven committed.
    ``can_win``: enough members would vote for it, but not those ``ahead``. ``index_begin`` is that of its first index
    unit (-1 without one), ``first_begin`` the lowest ``begin`` of all DLedger logs. With ``strangers``, stores of other
    logs, nothing tells if it may start.

    A CommitLog follows the one ``ahead``, which has ``ahead_bytes`` after its end. ``truncation`` is where Java would
    truncate this one then; None outside controller mode. ``missing`` are positions that it needs and the one ahead has
    expired; ``can_follow`` is false if it keeps messages of another master. ``overwrites`` are positions that the
    replicas ``overwritten`` lose if they follow this one. ``epoch_problem`` is what is wrong with its epoch file.
    ``rivals`` have another log, and nothing tells which one the last master wrote. ``confirmed_alone`` is the number of
    confirmed bytes of another history than the main one.
    """

    node: str
    path: str
    log: str
    begin: int
    start: str
    elect: str
    damaged: Ranges
    silent: Ranges
    unclear: Ranges
    diverged: Ranges
    fillers: Ranges
    left_out: Ranges
    in_log: Ranges
    donors: tuple[str, ...]
    is_filled: bool
    lost_end: tuple[int, int] | LostEnd | None
    unreadable: tuple[str, ...]
    is_unread: bool
    short: tuple[str, ...]
    ahead: tuple[str, ...]
    index_begin: int = -1
    damaged_blanks: tuple[int, ...] = ()
    losses: tuple[Loss, ...] = ()
    can_win: bool = True
    first_begin: int = -1
    strangers: tuple[str, ...] = ()
    ahead_bytes: int = 0
    truncation: ConsistentPoint | None = None
    missing: tuple[int, int] | None = None
    can_follow: bool = True
    overwrites: Ranges = NO_RANGES
    overwritten: tuple[str, ...] = ()
    epoch_problem: str | None = None
    rivals: tuple[str, ...] = ()
    confirmed_alone: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the verdict is on a CommitLog."""
        return self.log == COMMITLOG

    @property
    def begins_later(self) -> bool:
        """Whether another DLedger log has entries before its first one."""
        return 0 <= self.first_begin < self.begin

    @property
    def may_lack_first_files(self) -> bool:
        """Whether it begins later, although its own index has units before: nothing tells if its files expired."""
        return self.begins_later and 0 <= self.index_begin < self.begin

    @property
    def is_emptied(self) -> bool:
        """Whether no entry of a DLedger log is left, and its files show that there were some."""
        is_written = self.start == NO and not (self.lost_end or self.short or self.is_unread)
        return self.begin < 0 and not self.is_plain and (self.index_begin >= 0 or is_written)


@dataclass(frozen=True)
class GroupVerdict:
    """``lost`` is ``nothing``, ``some`` or ``unknown``: whether entries are lost for good.

    ``lost_entries`` are damaged on every given replica; of ``filled_entries`` one has fillers of a salvage. Of the
    ``restorable`` ones only the header is damaged: a salvage writes it again. All are indexes, or positions.
    ``lost_end`` are committed by a checkpoint, of the node ``lost_end_from``, and after the end of every given replica.
    ``lost_ends`` are messages at unknown positions after every end.
    ``unclear_entries`` are those for which no check tells which copy is intact, or whether the only one is,
    for the ``unclear_reasons``.
    ``missing_members`` were not given: they may have what is lost.
    """

    lost: str
    lost_entries: Ranges
    filled_entries: Ranges
    restorable: Ranges
    unclear_entries: Ranges
    unclear_reasons: tuple[str, ...]
    members: tuple[MemberVerdict, ...]
    lost_end: tuple[int, int] | None = None
    lost_end_from: str | None = None
    lost_ends: tuple[LostEnd, ...] = ()
    missing_members: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the verdict is on CommitLogs."""
        return any(member.is_plain for member in self.members)

    @property
    def strangers(self) -> tuple[str, ...]:
        """The members that are no replicas of one log."""
        found = {name for member in self.members for name in member.strangers}
        return tuple(member.node for member in self.members if member.node in found)

    @property
    def is_restorable(self) -> bool:
        """Whether nothing is lost for good once a salvage has written headers again."""
        is_other_lost = self.filled_entries.entries or self.lost_end is not None or self.lost_ends
        return self.lost == SOME and self.lost_entries.entries == self.restorable.entries and not is_other_lost

    @property
    def answer(self) -> str:
        """``nothing``, ``some`` or ``unknown``: whether entries are lost for good that a salvage does not restore."""
        if not self.is_restorable:
            return self.lost
        is_unclear = self.unclear_entries.entries or any(member.unreadable for member in self.members)
        return UNKNOWN if is_unclear else NOTHING

    @property
    def may_lack_first_files(self) -> bool:
        """Whether nothing tells if the first files of a member expired or are lost."""
        return any(each.may_lack_first_files for each in self.members)

    @property
    def is_emptied(self) -> bool:
        """Whether no entry is left on any member of a DLedger group, and files show that there were some."""
        return _are_emptied(self.members)

    @property
    def healthy(self) -> tuple[MemberVerdict, ...]:
        """The members that may be started as they are."""
        return tuple(member for member in self.members if member.start in MAY_START)


def _are_emptied(members: Sequence[MemberVerdict]) -> bool:
    return bool(members) and all(member.is_emptied for member in members)


def _group(
    of_log: LogEvidence,
    members: tuple[MemberVerdict, ...],
    lost_end: tuple[int, int] | None = None,
    lost_end_from: str | None = None,
    lost_ends: tuple[LostEnd, ...] = (),
    missing_members: int = 0,
) -> GroupVerdict:
    lost, filled, unclear = (each.ranges_found() for each in (of_log.lost, of_log.filled, of_log.unclear))
    is_strange = any(member.strangers for member in members)
    is_unclear = is_strange or unclear.entries or any(member.unreadable or member.rivals for member in members)
    is_unclear = is_unclear or _are_emptied(members)
    is_lost = (lost.entries or filled.entries or lost_end or lost_ends) and not is_strange
    return GroupVerdict(
        lost=SOME if is_lost else UNKNOWN if is_unclear else NOTHING,
        lost_entries=lost,
        filled_entries=filled,
        restorable=of_log.restorable.ranges_found(),
        unclear_entries=unclear,
        unclear_reasons=of_log.unclear_reasons,
        members=members,
        lost_end=lost_end,
        lost_end_from=lost_end_from if lost_end else None,
        lost_ends=lost_ends,
        missing_members=missing_members,
    )


def _is_unclear(found: MemberEvidence, known: Ranges) -> bool:
    """Whether nothing tells if copies are right, apart from those that the salvage which wrote the store had to choose.

    Nothing will ever tell of these, and its user chose them.
    """
    ranges = found.unclear.ranges_found().ranges
    return any(not any(low <= first and last <= high for low, high in known.ranges) for first, last in ranges)


def _start(is_unfit: object, is_unknown: object, may: str) -> str:
    return NO if is_unfit else UNKNOWN if is_unknown else may


# DLedger logs


def judge(
    group: ReplicaGroup, evidence: Sequence[MemberEvidence], candidates: Sequence[Candidate], of_log: LogEvidence
) -> GroupVerdict:
    """The verdict on DLedger logs, by the `evidence` of each member, and that `of_log`."""
    decided = (history.log.last_index for history in group.histories.found[:1])
    ends = (each.end for number, each in enumerate(group.members) if group.copies.history_of(number, each.end) <= 0)
    last = max([*ends, *decided], default=-1)
    stores = [member.store for member in group.members]
    # Where nothing is intact, what was in the logs is lost, committed or not.
    known = promised_committed if group.histories.found else promised_end
    promised, source = min((-known(store), name) for store, name in zip(stores, group.names, strict=True))
    is_unread = any(store.unread.segments for store in stores)
    lost_end = _lost_end(group, last, -promised) if not is_unread else None
    by_node = {candidate.node: candidate for candidate in candidates}
    members = (_member(group, number, evidence[number], by_node.get(name)) for number, name in enumerate(group.names))
    missing = max(group.size - len(stores), 0)
    return _group(of_log, tuple(members), lost_end, source, missing_members=missing)


def _member(group: ReplicaGroup, number: int, found: MemberEvidence, candidate: Candidate | None) -> MemberVerdict:
    member = group.members[number]
    store = member.store
    promised = promised_end(store)
    unread = store.unread.segment_texts()
    lost_end = _lost_end(group, member.end, promised) if not unread else None
    is_incomplete = bool(found.damaged.entries or found.left_out.entries)
    unreadable = (*unread, *store.unread.witnesses())
    files = [each.store.ledger_segments for each in group.members]
    short = short_files(files[number], files, store.index_files.files)
    blanks = group.damaged_blanks(number)
    index_begin = store.index_files.first_index
    is_written = any(store.segment_end(each) > each.base for each in store.ledger_segments)
    is_emptied = member.begin < 0 and (index_begin >= 0 or is_written)
    strangers = _strangers(group, number)
    is_unfit = is_incomplete or lost_end or short or blanks or unread or is_emptied
    is_unclear = _is_unclear(found, group.doubts[number].entries)
    start = _start(is_unfit, is_unclear or unreadable or strangers, YES)
    others = (each for each in group.members if (each.end_term, each.end) > (member.end_term, member.end))
    return MemberVerdict(
        node=member.node,
        path=store.argument,
        log=DLEDGER,
        begin=member.begin,
        start=start,
        elect=_elect(start, candidate),
        damaged=found.damaged.ranges_found(),
        **found.ranges(),
        donors=tuple(sorted(found.donors - {member.node})) if is_incomplete else (),
        is_filled=found.is_filled,
        lost_end=lost_end,
        unreadable=unreadable,
        is_unread=bool(unread),
        short=short,
        damaged_blanks=blanks,
        ahead=tuple(sorted(each.node for each in others)),
        index_begin=index_begin,
        losses=candidate.losses if candidate is not None else (),
        can_win=candidate is not None,
        first_begin=min((each.begin for each in group.members if each.begin >= 0), default=-1),
        strangers=strangers,
    )


def _lost_end(group: ReplicaGroup, last: int, promised: int) -> tuple[int, int] | None:
    """The entries after the last one up to the promised one; without a last one, those after what expired."""
    first = last + 1 if last >= 0 else first_after_expired([member.store for member in group.members])
    return (first, promised) if promised >= first else None


def _strangers(group: ReplicaGroup | CommitLogGroup, number: int) -> tuple[str, ...]:
    """The members that are of another log than this one; all that are of another log than any, if none is."""
    numbers = range(len(group.names))
    found = {one: {two for two in numbers if one != two and group.strangers(one, two)} for one in numbers}
    own = found[number] or {one for one in numbers if found[one]}
    return tuple(group.names[other] for other in sorted(own))


def short_files(
    files: Sequence[Segment], groups: Iterable[Sequence[Segment]], index: Sequence[Segment] = ()
) -> tuple[str, ...]:
    """The files of a member's log and `index` that Java does not load: shorter than the others of their folder.

    So is the only file of a log if it is shorter than those of the other members, of whose logs `groups` has the files.
    """
    short = [file for file in (*files, *index) if file.is_short]
    if not short and len(files) == 1 and any(file.size > files[0].size for others in groups for file in others):
        short = [*files]
    paths = (path_of(file.path) for file in short)
    return tuple(f"{path.parent.name}/{path.name}" for path in paths)


def _elect(start: str, candidate: Candidate | None) -> str:
    if start == NO or candidate is None or any(loss.committed for loss in candidate.losses):
        return NO
    if start == UNKNOWN:
        return UNKNOWN
    return WITH_LOSS if candidate.losses else YES


# CommitLogs


def judge_commit_logs(
    group: CommitLogGroup, states: Sequence[CommitLogState], points: Iterable[ConsistentPoint]
) -> GroupVerdict:
    """The verdict on CommitLogs."""
    evidence = member_evidence(group.ranges, group.names)
    ranks = [_rank(group, number, state) for number, state in enumerate(states)]
    first = min(range(len(states)), key=lambda number: _order(ranks[number], states[number], evidence[number]))
    overwrites, overwritten = RangeCounter(), set()
    for found in group.ranges:
        others = [n for n, copy in enumerate(found.copies) if copy.history > 0 and copy.state in (INTACT, DAMAGED)]
        overwritten |= {group.names[number] for number in others}
        if others:
            overwrites.add(found.first, found.last, found.size)
    losses = overwrites.ranges_found(), tuple(sorted(overwritten))
    by_slave = {each.slave: each for each in points if each.master == states[first].node}
    ends = {each.node: each for each in group.lost_ends}
    members = (
        _replica(
            state,
            states[first],
            ranks[first] > ranks[number],
            found,
            by_slave.get(state.node),
            ends.get(state.node),
            losses,
            _strangers(group, number),
            group.rivals(number),
            _is_unclear(found, group.doubts[number].positions),
        )
        for number, (state, found) in enumerate(zip(states, evidence, strict=True))
    )
    after = tuple(each for each in group.lost_ends if each.is_after_all)
    return _group(LogEvidence(group.ranges, MIN_MESSAGE_SIZE), tuple(members), lost_ends=after)


def _replica(
    state: CommitLogState,
    first: CommitLogState,
    is_shorter: bool,
    found: MemberEvidence,
    truncation: ConsistentPoint | None,
    lost_end: LostEnd | None,
    losses: tuple[Ranges, tuple[str, ...]],
    strangers: tuple[str, ...],
    rivals: tuple[str, ...],
    is_unclear: bool,
) -> MemberVerdict:
    ranges = found.ranges()
    damaged, tail = ranges["in_log"], ranges["diverged"]
    is_behind = is_shorter or bool(tail.entries)
    pos = truncation.pos if truncation is not None else None
    kept = state.end if pos is None else min(pos, state.end)
    # A slave without messages begins where its master does.
    missing = (kept, first.begin - 1) if is_behind and state.begin < state.end and kept < first.begin else None
    is_kept = bool(tail.entries) and (pos is None or tail.ranges[0][0] < pos)
    cannot_follow = is_kept or (truncation is not None and pos is None)
    is_incomplete = bool(damaged.entries or found.left_out.entries)
    is_wrong = is_incomplete or lost_end is not None or any((state.short, state.unread, state.epoch_problem))
    is_stranded = not strangers and not rivals and is_behind and (missing is not None or cannot_follow)
    is_unknown = is_unclear or state.unreadable or strangers or rivals
    overwrites, overwritten = losses if not is_behind else (NO_RANGES, ())
    start = _start(is_wrong or is_stranded, is_unknown, SLAVE if is_behind else MASTER)
    elect = {UNKNOWN: UNKNOWN, MASTER: WITH_LOSS if overwritten else YES}.get(start, NO)
    return MemberVerdict(
        node=state.node,
        path=state.path,
        log=COMMITLOG,
        begin=state.begin,
        start=start,
        elect=elect,
        damaged=damaged,
        **ranges,
        donors=tuple(sorted(found.donors - {state.node})) if is_incomplete else (),
        is_filled=found.is_filled,
        lost_end=lost_end,
        unreadable=state.unreadable,
        is_unread=bool(state.unread),
        short=state.short,
        ahead=(first.node,) if is_behind else (),
        ahead_bytes=max(first.end - state.end, 0) if is_behind else 0,
        truncation=truncation if is_behind else None,
        missing=missing,
        can_follow=not cannot_follow,
        overwrites=overwrites,
        overwritten=overwritten,
        epoch_problem=state.epoch_problem,
        strangers=strangers,
        rivals=rivals,
        confirmed_alone=max(state.confirm_offset or 0, tail.ranges[0][0]) - tail.ranges[0][0] if tail.entries else 0,
    )


def _rank(group: CommitLogGroup, number: int, state: CommitLogState) -> tuple[int, int]:
    """The end of a replica and its epoch there, without what nobody can follow: damage, blanks, another history.

    Both are -1 if nothing is left.
    """
    end, epoch = state.end, state.epoch
    for found in reversed(group.ranges):
        copy = found.copies[number]
        is_blank = copy.state == INTACT and not group.messages(found)
        is_followed = copy.history <= 0 and not is_blank and copy.state not in (DAMAGED, BEFORE, AFTER)
        if is_followed or copy.is_undecided:
            return end, -1 if state.epoch is None or epoch is None else epoch
        if copy.state != AFTER and found.first <= end:
            end, epoch = found.first, epoch_at(group.replicas[number].epochs, found.first - 1)
    return -1, -1


def _order(rank: tuple[int, int], state: CommitLogState, found: MemberEvidence) -> tuple[object, ...]:
    """The replica to follow: the longest of the main log, of the last epoch; then an intact one, with most files."""
    end, epoch = rank
    is_damaged = bool(found.damaged_in_log.entries or state.short or state.unread)
    return -end, -epoch, bool(found.tail.entries), is_damaged, state.begin, state.node
