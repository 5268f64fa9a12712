"""Checks one store, or all replicas of a group: composes what the comparison, verify, audit and recovery find.

It has no judgement of its own: each fact is that of the module that answers the question elsewhere, too.
`MemberCheck` says what may be done with one member, or with one store, and what decides about the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_dledger.common.fields import json_of
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log import next_step as steps
from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison, compare_commit_log_group
from pyspark_dledger.log.diff.commit_log_group import commit_log_group
from pyspark_dledger.log.diff.comparison import Comparison, compare_group
from pyspark_dledger.log.diff.diff_table import DIVERGED, FAULTS
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared
from pyspark_dledger.log.diff.verdict import MASTER, SLAVE, MemberVerdict
from pyspark_dledger.log.io.store_use import KnownLoss, losses_of_all, salvaged_from
from pyspark_dledger.log.next_step import (
    BESIDE_LOG,
    REPLACE,
    START,
    Condition,
    NextStep,
    as_given,
    is_damage,
    next_step,
)
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.salvage.compared_stores import ComparedStores
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.check.store_facts import (
    NO,
    UNKNOWN,
    YES,
    Progress,
    StoreFacts,
    no_progress,
    store_facts,
    watch_of,
)

WITH_LOSS = "withLoss"
_QUEUE_FILES = frozenset(("consumeQueueFileSize", "consumeQueueEmptyFile"))
_STARTS = {"yes": YES, MASTER: YES, SLAVE: YES, "no": NO, "unknown": UNKNOWN}


def start_of(entries: MemberVerdict | None, positions: MemberVerdict | None) -> str:
    """Whether a member may be started, by the verdicts on its DLedger log and its CommitLog: yes, no or unknown."""
    answers = [_STARTS[each.start] for each in (entries, positions) if each is not None]
    return next((each for each in (NO, UNKNOWN) if each in answers), YES)


def lead_of(entries: MemberVerdict | None, positions: MemberVerdict | None) -> str:
    """Whether a member may lead: yes, no, unknown, or withLoss if others would lose what they have."""
    start, found = start_of(entries, positions), entries or positions
    return found.elect if found is not None and start == YES else start


def condition_of(name: str, path: str, entries: MemberVerdict | None, positions: MemberVerdict | None) -> Condition:
    """What the comparison says about the next step of one member."""
    unreadable = [text for each in (entries, positions) if each is not None for text in each.unreadable]
    start = start_of(entries, positions)
    return Condition(
        name=name,
        path=path,
        is_unreadable=bool(unreadable),
        strangers=tuple(name for each in (entries, positions) if each is not None for name in each.strangers),
        is_damaged=start == NO,
        may_lead=lead_of(entries, positions) in (YES, WITH_LOSS),
        is_empty=entries is not None and entries.begin < 0,
        may_lack_first_files=entries is not None and entries.may_lack_first_files,
        save=(path, pos) if (pos := _leaves_from(positions)) is not None else None,
        rivals=positions.rivals if positions is not None else (),
    )


def _leaves_from(member: MemberVerdict | None) -> int | None:
    """From which position on a CommitLog has what is lost if it follows another one, or is left out of a salvage."""
    if member is None:
        return None
    point = member.truncation
    starts = [first for first, _ in member.diverged.ranges[:1]]
    starts += [point.pos] if point is not None and point.pos is not None and point.lost_bytes else []
    return max(min(starts), member.begin) if starts else None


def can_be_salvaged(stores: Iterable[StoreView]) -> bool:
    """Whether a salvage can write stores of this kind."""
    return all(store.dialect != "0.4" for store in stores)


def step_of(
    conditions: Sequence[Condition],
    entries: Comparison | None,
    commit_logs: CommitLogComparison | None,
    *,
    is_lost: bool,
    can_salvage: bool,
) -> NextStep:
    """The next step of a group; of CommitLogs that diverged, the master's or the foremost one is restored."""
    members = commit_logs.verdict.members if commit_logs is not None else ()
    leader = min((each.node for each in members if each.start == MASTER), default=None)
    is_diverged = commit_logs is not None and DIVERGED in commit_logs.bytes
    log_of = leader if is_diverged else None
    logs = [each for each in (commit_logs, entries) if each is not None]
    log_of = next((each for each in (log_of, *(each.log_of for each in logs)) if each is not None), None)
    is_empty = bool(logs) and all(each.is_empty for each in logs)
    return next_step(conditions, is_lost=is_lost, can_salvage=can_salvage, is_empty=is_empty, log_of=log_of)


def step_after_comparison(found: Comparison | CommitLogComparison, stores: Iterable[StoreView]) -> NextStep:
    """The next step by a comparison of `stores` alone: what it did not read is checked before a start."""
    conditions = [
        condition_of(each.node, each.path, None, each)
        if each.is_plain
        else condition_of(each.node, each.path, each, None)
        for each in found.verdict.members
    ]
    commit_logs = found if isinstance(found, CommitLogComparison) else None
    entries = found if isinstance(found, Comparison) else None
    step = step_of(conditions, entries, commit_logs, is_lost=_is_lost(found), can_salvage=can_be_salvaged(stores))
    return steps.check_of(*(each.path for each in conditions)) if step.step in steps.STARTS else step


def _is_lost(found: Comparison | CommitLogComparison) -> bool:
    return found.verdict.lost != "nothing"


@dataclass(frozen=True)
class MemberCheck:
    """What may be done with one store as it is.

    ``entries`` and ``bytes`` are the verdicts of the comparison on its DLedger log and its CommitLog; None where it has
    none. ``is_alone``: it was checked without replicas. ``has_other_queue_files``: its ConsumeQueue files have another
    size than those of most members. ``others_have_keys``: another member has an index of keys.
    """

    name: str
    facts: StoreFacts
    entries: MemberVerdict | None = None
    bytes: MemberVerdict | None = None
    is_alone: bool = False
    has_other_queue_files: bool = False
    others_have_keys: bool = False

    @property
    def lost_keys(self) -> bool:
        """Whether it lost its index of keys: without a proof that it had one, the broker may be set to write none."""
        facts = self.facts
        return facts.is_broker and not facts.key_files and (self.others_have_keys or facts.had_key_files)

    @property
    def has_wrong_queue_files(self) -> bool:
        """Whether a broker does not load its ConsumeQueue files, although its log is intact."""
        return self.has_other_queue_files or not _QUEUE_FILES.isdisjoint(self.facts.faults)

    @property
    def start(self) -> str:
        """Whether it may be started: ``yes``, ``no`` or ``unknown``."""
        restart = self.facts.restart
        fails = restart is not None and restart.starts is False
        if fails or self.has_wrong_queue_files or self.is_damaged:
            return NO
        found = start_of(self.entries, self.bytes)
        return UNKNOWN if found == YES and self.facts.unreadable else found

    @property
    def is_damaged(self) -> bool:
        """Whether `verify` finds damage; of a member of a group in its log, which a comparison can take for its end."""
        faults = self.facts.faults
        return is_damage(faults if self.is_alone else faults.keys() - BESIDE_LOG)

    @property
    def lead(self) -> str:
        """Whether it may lead: ``yes``, ``no``, ``unknown``, or ``withLoss`` if others would lose what they have."""
        return lead_of(self.entries, self.bytes) if self.start == YES else self.start

    @property
    def serve(self) -> str | None:
        """Whether consumers get every message of its log: ``yes``, ``no`` or ``unknown``; None if it is no broker's."""
        return self.facts.queues.answer

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong with it."""
        restart = self.facts.restart
        is_sound = self.start == YES and self.serve in (YES, None) and not self.facts.faults and not self.facts.doubts
        return is_sound and not self.lost_keys and (restart is None or not restart.is_trouble)

    @property
    def condition(self) -> Condition:
        """What decides about the next step."""
        facts, faults = self.facts, self.facts.faults
        is_wrong = bool(facts.queues.counts) and steps.NO_UNIT_CODES.isdisjoint(faults)
        is_wrong |= not steps.QUEUE_CODES.isdisjoint(faults) or self.has_other_queue_files
        has_wrong_keys = self.lost_keys or not steps.KEY_CODES.isdisjoint(faults)
        return replace(
            condition_of(self.name, facts.path, self.entries, self.bytes),
            is_unreadable=bool(facts.unreadable),
            is_in_use=facts.is_in_use,
            is_damaged=start_of(self.entries, self.bytes) == NO
            or is_damage(faults)
            or (self.start == NO and not self.has_wrong_queue_files),
            rebuild=steps.QUEUES if is_wrong else steps.KEYS if has_wrong_keys else None,
            has_findings=bool(faults),
            may_lead=self.lead in (YES, WITH_LOSS),
        )


NOTHING, SOME = "nothing", "some"
NOT_CHECKED = (
    "other versions (dledger recovery)",
    "files of compaction",
    "if the configuration of a broker fits",
)
"""What no check looks at."""


@dataclass(frozen=True)
class CheckReport:
    """What one store is, or all replicas of a group, and what to do next.

    ``comparison`` and ``commit_logs`` are those of the replicas.
    """

    members: tuple[MemberCheck, ...]
    comparison: Comparison | None
    commit_logs: CommitLogComparison | None
    next: NextStep

    @property
    def known_losses(self) -> dict[str, KnownLoss]:
        """What salvages have lost at the end of the logs of members, by their names, and no other member has."""
        states = {member.name: member.facts.state for member in self.members}
        ends = {name: KnownLoss(state.end_index, state.max_offset - 1) for name, state in states.items()}
        return losses_of_all({member.name: member.facts.known_loss for member in self.members}, ends)

    @property
    def lost(self) -> str:
        """Whether something is lost for good: ``nothing``, ``some`` or ``unknown``. Of one store: lost there."""
        is_doubtful = self.lost_in_logs == NOTHING and any(member.facts.doubts for member in self.members)
        return SOME if self.known_losses else UNKNOWN if is_doubtful else self.lost_in_logs

    @property
    def lost_in_logs(self) -> str:
        """The same without what only the salvage that wrote a member tells."""
        answers = [self.comparison.verdict.answer] if self.comparison is not None else []
        answers += [self.commit_logs.verdict.answer] if self.commit_logs is not None else []
        return next((each for each in (SOME, UNKNOWN) if each in answers), NOTHING)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong with any member, and none has other entries than another one."""
        differs = self.comparison is not None and not FAULTS.isdisjoint(self.comparison.entries)
        differs |= self.comparison is not None and self.comparison.verdict.may_lack_first_files
        differs |= self.commit_logs is not None and not self.commit_logs.is_lagging_only
        return self.lost == NOTHING and not differs and all(member.is_clean for member in self.members)

    @property
    def not_checked(self) -> tuple[str, ...]:
        """What was not checked, with the verb that does."""
        return (*NOT_CHECKED, *dict.fromkeys(text for member in self.members for text in member.facts.not_checked))

    def as_json(self) -> dict[str, Any]:
        """The facts by the names of columns."""
        return {
            "lost": self.lost,
            "isClean": self.is_clean,
            "members": [_member_json(member) for member in self.members],
            "next": list(self.next.arguments),
            "nextStep": self.next.step,
            "notChecked": list(self.not_checked),
        }


def _member_json(member: MemberCheck) -> dict[str, Any]:
    facts = member.facts
    return {
        "name": member.name,
        "path": facts.path,
        "start": member.start,
        "lead": member.lead,
        "serve": member.serve,
        "isInUse": facts.is_in_use,
        "state": json_of(facts.state),
        "findings": facts.faults,
        "queues": dict(facts.queues.counts.most_common()),
        "queuesUnknown": facts.queues.reason,
        "queueFileUnits": facts.queue_file_units,
        "version": json_of(facts.version),
        "restart": json_of(facts.restart),
        "restartUnknown": facts.no_restart,
        "unreadable": list(facts.unreadable),
        "knownLoss": json_of(facts.known_loss),
        "doubts": json_of(facts.doubts),
    }


def check_stores(
    log: StoreView,
    rocketmq: str | None = None,
    java: str | None = None,
    progress: Progress = no_progress,
    is_whole: bool = True,
) -> CheckReport:
    """Check the store of `log` with its replicas. Raises OptionError for a wrong version, StoreError for no store.

    `is_whole`: a single segment is refused, because it does not tell what may be started.
    """
    logs = [log, *log.replicas]
    if is_whole and (segment := next((each.path for each in logs if each.paths.only is not None), None)):
        raise StoreError(f"{segment}: expected a whole store to check, found one segment: give the root's path")
    watches = list(map(watch_of, logs))
    stores = compared(log) if log.replicas else ComparedStores([log])
    has_entries = any(each.ledger_segments for each in logs)
    comparison = compare_group(ReplicaGroup(stores, log.options.group_size)) if has_entries else None
    commit_logs = compare_commit_log_group(commit_log_group(stores))
    found = [store_facts(each, watch, rocketmq, java, progress) for each, watch in zip(logs, watches, strict=True)]
    entries = list(comparison.verdict.members) if comparison is not None else []
    positions = list(commit_logs.verdict.members) if commit_logs is not None else []
    if commit_logs is not None and commit_logs.is_old:
        # Who may lead an old CommitLog is a question about the DLedger log.
        positions = [each for each in positions if each.start not in (MASTER, SLAVE)]
    sizes = Counter(facts.queue_file_units for facts in found if facts.queue_file_units)
    members = tuple(
        MemberCheck(
            name,
            facts,
            next((each for each in entries if each.path == facts.path), None),
            next((each for each in positions if each.path == facts.path), None),
            len(logs) == 1,
            0 < sizes[facts.queue_file_units] < max(sizes.values()),
            any(other.key_files for other in found if other is not facts),
        )
        for name, facts in zip(replica_names(logs), found, strict=True)
    )
    report = CheckReport(members, comparison, commit_logs, NextStep(START))
    return replace(report, next=_next(report, logs))


def _next(report: CheckReport, logs: Sequence[StoreView]) -> NextStep:
    sources = salvaged_from(logs[0].path) if len(logs) == 1 else ()
    conditions = [member.condition for member in report.members]
    # What a salvage could not restore is lost for good.
    is_lost = report.lost_in_logs != NOTHING and not sources
    can_salvage = can_be_salvaged(logs)
    found = step_of(conditions, report.comparison, report.commit_logs, is_lost=is_lost, can_salvage=can_salvage)
    if not sources or found.step != START:
        return found
    # Of a store on several paths the first one names it.
    return NextStep(REPLACE, names=(as_given(sources[0].partition(",")[0]),))
