"""What a group of CommitLogs has lost for good, and which replicas may start: as a master, only as a slave, or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark_dledger.log.diff.commit_log.lost_ends import LostEnd
from pyspark_dledger.log.diff.commit_log.rows import PosRow
from pyspark_dledger.log.diff.commit_log.states import CommitLogState, ConsistentPoint
from pyspark_dledger.log.diff.copy_ranges import DAMAGED
from pyspark_dledger.log.diff.diff_table import DIVERGED, UNREADABLE
from pyspark_dledger.log.diff.ranges import RangeCounter, Ranges

MASTER, SLAVE, NO, UNKNOWN = "master", "slave", "no", "unknown"
MAY_START = (MASTER, SLAVE)
NOTHING, SOME = "nothing", "some"


@dataclass(frozen=True)
class MemberVerdict:
    """What may be done with one replica as it is. Ranges are of positions. ``begin`` is its first position.

    ``start``: ``no`` (it is damaged, lost its end, has ``short`` files or, with ``is_unread``, files of the log that
    cannot be read, or cannot follow the master), ``unknown`` (no
    check tells which copy is intact, or files are ``unreadable``), ``slave`` (another one has more, or is of a later
    epoch), ``master``. ``damaged``, ``unclear`` and ``diverged`` are its positions with these verdicts; ``donors`` have
    all of the damaged ones intact.

    ``ahead`` is the replica to follow, ``ahead_bytes`` what it has after this one's end. ``truncation`` is where Java
    would truncate this one to follow it; None outside controller mode. ``missing`` are positions that it needs and
    ``ahead`` has expired; ``can_follow`` is false if it keeps messages of another master. ``overwrites`` are positions
    that the replicas ``overwritten`` lose if they follow this one.
    """

    node: str
    path: str
    begin: int
    start: str
    damaged: Ranges
    unclear: Ranges
    diverged: Ranges
    donors: tuple[str, ...]
    lost_end: LostEnd | None
    epoch_problem: str | None
    ahead: str | None
    ahead_bytes: int
    truncation: ConsistentPoint | None
    missing: tuple[int, int] | None
    can_follow: bool
    overwrites: Ranges
    overwritten: tuple[str, ...]
    unreadable: tuple[str, ...]
    is_unread: bool
    short: tuple[str, ...]


@dataclass(frozen=True)
class CommitLogVerdict:
    """What is lost for good, and what may be done with each member.

    ``lost`` positions are intact nowhere; ``lost_ends`` are after the end of every log. For ``unclear`` positions no
    check tells which copy is intact.
    """

    lost: Ranges
    lost_ends: tuple[LostEnd, ...]
    unclear: Ranges
    members: tuple[MemberVerdict, ...]

    @property
    def answer(self) -> str:
        """``nothing``, ``some`` or ``unknown``: whether messages are lost for good."""
        if self.lost.entries or self.lost_ends:
            return SOME
        is_unclear = self.unclear.entries or any(member.unreadable for member in self.members)
        return UNKNOWN if is_unclear else NOTHING

    @property
    def donor(self) -> MemberVerdict | None:
        """A member to copy in place of those that must not start: it has all of theirs."""
        damaged = [member for member in self.members if member.start == NO]
        complete = (
            member
            for member in self.members
            if member.start == MASTER and all(_is_replaceable(other, member.node) for other in damaged)
        )
        return min(complete, key=lambda member: (member.begin, member.node), default=None)


def _is_replaceable(member: MemberVerdict, donor: str) -> bool:
    """Whether `donor` has what a member lost."""
    has_end = member.lost_end is None or donor in member.lost_end.donors
    return has_end and (donor in member.donors or not member.damaged.entries)


def judge(
    states: Sequence[CommitLogState],
    rows: Sequence[PosRow],
    points: Sequence[ConsistentPoint],
    lost_ends: Sequence[LostEnd],
) -> CommitLogVerdict:
    """The verdict on a comparison; `rows` are all of it."""
    first = _first(states, rows)
    members = tuple(_member(state, first, rows, points, lost_ends) for state in states)
    return CommitLogVerdict(
        lost=_ranges(row for row in rows if row.is_lost),
        lost_ends=tuple(each for each in lost_ends if not each.donors and not each.is_row),
        unclear=_ranges(row for row in rows if row.unclear),
        members=members,
    )


def _member(
    state: CommitLogState,
    first: CommitLogState,
    rows: Sequence[PosRow],
    points: Sequence[ConsistentPoint],
    lost_ends: Sequence[LostEnd],
) -> MemberVerdict:
    own = {
        verdict: [row for row in rows if row.verdict == verdict and state.node in row.nodes]
        for verdict in (DAMAGED, DIVERGED)
    }
    unclear = [row for row in rows if state.node in row.unclear]
    own[DAMAGED] = [row for row in own[DAMAGED] if state.node not in row.unclear]
    own[DAMAGED] += [row for row in rows if row.verdict == UNREADABLE and state.node in row.damaged]
    is_behind = _rank(first) > _rank(state) or bool(own[DIVERGED])
    truncation = next((each for each in points if (each.slave, each.master) == (state.node, first.node)), None)
    kept = state.end if truncation is None or truncation.pos is None else min(truncation.pos, state.end)
    # A slave without messages begins where its master does.
    missing = (kept, first.begin - 1) if is_behind and state.begin < state.end and kept < first.begin else None
    lost_end = next((each for each in lost_ends if each.node == state.node), None)
    follows_from = -1 if truncation is None or truncation.pos is None else truncation.pos
    cannot_follow = any(row.first_pos < follows_from or truncation is None for row in own[DIVERGED])
    cannot_follow |= truncation is not None and truncation.pos is None
    lost_by_others = [] if is_behind else [row for row in rows if row.verdict == DIVERGED]
    is_incomplete = own[DAMAGED] or state.short or state.unread or lost_end is not None
    if is_incomplete or state.epoch_problem or (is_behind and (missing or cannot_follow)):
        start = NO
    else:
        start = UNKNOWN if unclear or state.unreadable else SLAVE if is_behind else MASTER
    return MemberVerdict(
        node=state.node,
        path=state.path,
        begin=state.begin,
        start=start,
        damaged=_ranges(own[DAMAGED]),
        unclear=_ranges(unclear),
        diverged=_ranges(own[DIVERGED]),
        donors=_donors(own[DAMAGED]),
        lost_end=lost_end,
        epoch_problem=state.epoch_problem,
        ahead=first.node if is_behind else None,
        ahead_bytes=max(first.end - state.end, 0) if is_behind else 0,
        truncation=truncation if is_behind else None,
        missing=missing,
        can_follow=not cannot_follow,
        overwrites=_ranges(lost_by_others),
        overwritten=tuple(sorted({node for row in lost_by_others for node in row.nodes})),
        unreadable=state.unreadable,
        is_unread=bool(state.unread),
        short=state.short,
    )


def _donors(damaged: Sequence[PosRow]) -> tuple[str, ...]:
    """The nodes that have all damaged rows intact."""
    if not damaged:
        return ()
    return tuple(sorted(set.intersection(*(set(row.intact) for row in damaged))))


def _ranges(rows: Iterable[PosRow]) -> Ranges:
    counter = RangeCounter()
    for row in rows:
        counter.add(row.first_pos, row.last_pos, row.bytes)
    return counter.ranges_found()


def _rank(state: CommitLogState) -> tuple[int, int]:
    return -1 if state.epoch is None else state.epoch, state.end


def _first(states: Sequence[CommitLogState], rows: Sequence[PosRow]) -> CommitLogState:
    """The replica to follow: of the last epoch, then the longest; of equal ones an intact one, with the most files."""
    diverged, damaged = (
        {node for row in rows if row.verdict == verdict for node in row.nodes} for verdict in (DIVERGED, DAMAGED)
    )

    def order(state: CommitLogState) -> tuple[object, ...]:
        epoch, end = _rank(state)
        is_damaged = state.node in damaged or bool(state.short or state.unread)
        return -epoch, -end, state.node in diverged, is_damaged, state.begin, state.node

    return min(states, key=order)
