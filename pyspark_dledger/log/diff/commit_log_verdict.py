"""What a group of CommitLogs has lost for good, and which replicas may start: as a master, only as a slave, or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.log.copies.lost_ends import LostEnd
from pyspark_dledger.log.diff.commit_log_group import CommitLogGroup
from pyspark_dledger.log.diff.copy_ranges import DAMAGED, INTACT, RangeCounter, Ranges
from pyspark_dledger.log.diff.diff_table import LogEvidence, MemberEvidence, member_evidence

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
    that the replicas ``overwritten`` lose if they follow this one. With ``strangers``, stores of other logs, nothing
    tells if it may start.
    """

    node: str
    path: str
    begin: int
    start: str
    damaged: Ranges
    left_out: Ranges
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
    strangers: tuple[str, ...]


@dataclass(frozen=True)
class CommitLogVerdict:
    """What is lost for good, and what may be done with each member.

    ``lost`` positions are intact nowhere, ``filled`` ones have fillers of a salvage; ``lost_ends`` are after the end of
    every log. For ``unclear`` positions no check tells which copy is intact, for the
    ``unclear_reasons``.
    """

    lost: Ranges
    filled: Ranges
    lost_ends: tuple[LostEnd, ...]
    unclear: Ranges
    unclear_reasons: tuple[str, ...]
    members: tuple[MemberVerdict, ...]

    @property
    def strangers(self) -> tuple[str, ...]:
        """The members of different logs; empty if all are of one."""
        found = {name for member in self.members for name in member.strangers}
        return tuple(member.node for member in self.members if member.node in found)

    @property
    def answer(self) -> str:
        """``nothing``, ``some`` or ``unknown``: whether messages are lost for good."""
        if self.strangers:
            return UNKNOWN
        if self.lost.entries or self.filled.entries or self.lost_ends:
            return SOME
        is_unclear = self.unclear.entries or any(member.unreadable for member in self.members)
        return UNKNOWN if is_unclear else NOTHING


def judge(
    group: CommitLogGroup,
    states: Sequence[CommitLogState],
    points: Sequence[ConsistentPoint],
    lost_ends: Sequence[LostEnd],
) -> CommitLogVerdict:
    """The verdict on a comparison."""
    of_log = LogEvidence(group.ranges, MIN_MESSAGE_SIZE)
    evidence = member_evidence(group.ranges, group.names)
    first = min(range(len(states)), key=lambda number: _order(states[number], evidence[number]))
    overwrites, overwritten = RangeCounter(), set()
    for found in group.ranges:
        others = [n for n, copy in enumerate(found.copies) if copy.history > 0 and copy.state in (INTACT, DAMAGED)]
        overwritten |= {group.names[number] for number in others}
        if others:
            overwrites.add(found.first, found.last, found.size)
    losses = overwrites.ranges_found(), tuple(sorted(overwritten))
    return CommitLogVerdict(
        lost=of_log.lost.ranges_found(),
        filled=of_log.filled.ranges_found(),
        lost_ends=tuple(each for each in lost_ends if each.is_after_all),
        unclear=of_log.unclear.ranges_found(),
        unclear_reasons=of_log.unclear_reasons,
        members=tuple(
            _member(state, states[first], found, points, lost_ends, losses, group.strangers(number))
            for number, (state, found) in enumerate(zip(states, evidence, strict=True))
        ),
    )


def _member(
    state: CommitLogState,
    first: CommitLogState,
    found: MemberEvidence,
    points: Sequence[ConsistentPoint],
    lost_ends: Sequence[LostEnd],
    losses: tuple[Ranges, tuple[str, ...]],
    strangers: tuple[str, ...],
) -> MemberVerdict:
    damaged, tail = found.damaged_in_log.ranges_found(), found.tail.ranges_found()
    is_behind = _rank(first) > _rank(state) or bool(tail.entries)
    truncation = next((each for each in points if (each.slave, each.master) == (state.node, first.node)), None)
    pos = truncation.pos if truncation is not None else None
    kept = state.end if pos is None else min(pos, state.end)
    # A slave without messages begins where its master does.
    missing = (kept, first.begin - 1) if is_behind and state.begin < state.end and kept < first.begin else None
    lost_end = next((each for each in lost_ends if each.node == state.node), None)
    is_kept = bool(tail.entries) and (pos is None or tail.ranges[0][0] < pos)
    cannot_follow = is_kept or (truncation is not None and pos is None)
    is_incomplete = damaged.entries or found.left_out.entries or state.short or state.unread or lost_end is not None
    answers = (
        (is_incomplete or state.epoch_problem, NO),
        (strangers, UNKNOWN),
        (is_behind and (missing or cannot_follow), NO),
        (found.unclear.entries or state.unreadable, UNKNOWN),
        (is_behind, SLAVE),
        (True, MASTER),
    )
    overwrites, overwritten = losses if not is_behind else (Ranges(), ())
    return MemberVerdict(
        node=state.node,
        path=state.path,
        begin=state.begin,
        start=next(answer for holds, answer in answers if holds),
        damaged=damaged,
        left_out=found.left_out.ranges_found(),
        unclear=found.unclear.ranges_found(),
        diverged=tail,
        donors=tuple(sorted(found.donors - {state.node})) if damaged.entries or found.left_out.entries else (),
        lost_end=lost_end,
        epoch_problem=state.epoch_problem,
        ahead=first.node if is_behind else None,
        ahead_bytes=max(first.end - state.end, 0) if is_behind else 0,
        truncation=truncation if is_behind else None,
        missing=missing,
        can_follow=not cannot_follow,
        overwrites=overwrites,
        overwritten=overwritten,
        unreadable=state.unreadable,
        is_unread=bool(state.unread),
        short=state.short,
        strangers=strangers,
    )


def _rank(state: CommitLogState) -> tuple[int, int]:
    return -1 if state.epoch is None else state.epoch, state.end


def _order(state: CommitLogState, found: MemberEvidence) -> tuple[object, ...]:
    """The replica to follow: of the last epoch, then the longest; of equal ones an intact one, with the most files."""
    epoch, end = _rank(state)
    is_damaged = bool(found.damaged_in_log.entries or state.short or state.unread)
    return -epoch, -end, bool(found.tail.entries), is_damaged, state.begin, state.node


@dataclass(frozen=True)
class CommitLogState:
    """The state of one replica's CommitLog; positions in bytes.

    ``lag_bytes`` is what the longest replica has after its end. ``damaged_bytes`` it lost, or has damaged;
    ``diverged_bytes`` another master wrote, ``unread`` positions are of files that cannot be read. ``epoch`` is the
    last that begins in the log; it and ``confirm_offset`` are None if it has none. ``epoch_problem`` is what is wrong
    with its epoch file, ``unreadable`` what cannot be read of its log, checkpoint, queues and indexes.
    """

    node: str
    path: str
    begin: int
    end: int
    files: int
    missing: tuple[tuple[int, int], ...]
    short: tuple[str, ...]
    epoch: int | None
    epoch_problem: str | None
    confirm_offset: int | None
    lag_bytes: int
    damaged_bytes: int
    diverged_bytes: int
    abort: bool
    unread: tuple[tuple[int, int], ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class ConsistentPoint:
    """Where `slave` would truncate its log to follow `master` (``EpochFileCache.findConsistentPoint``).

    ``pos`` is None if Java finds no position: the slave then does not replicate. ``lost_bytes`` are those of the slave
    from there on, ``confirmed_bytes`` the part of them that it had confirmed. ``is_common``: both have the same bytes
    before it.
    """

    slave: str
    master: str
    pos: int | None
    lost_bytes: int
    confirmed_bytes: int
    is_common: bool
