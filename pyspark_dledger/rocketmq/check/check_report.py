"""Checks one store, or all replicas of a group: composes what the comparison, verify, audit and recovery find.

It has no judgement of its own: each fact is that of the module that answers the question elsewhere, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_dledger.common.fields import json_of
from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, compare_commit_logs
from pyspark_dledger.log.diff.commit_log.verdict import MASTER, SLAVE
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.log.io.unfinished import salvaged_from
from pyspark_dledger.log.next_step import REPLACE, START, NextStep, as_given
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.check.member_check import MemberCheck, can_be_salvaged, step_of
from pyspark_dledger.rocketmq.check.store_facts import UNKNOWN, Progress, no_progress, store_facts
from pyspark_dledger.rocketmq.lost.group_losses import GroupLosses, lost_in_group

NOTHING, SOME = "nothing", "some"
DIFFERENCES = frozenset(("filler", "damaged", "unreadable", "otherBytes", "diverged", "contradicts"))
"""Verdicts of the table ``diff`` that no healthy group shows."""
NOT_CHECKED = (
    "other versions (dledger recovery)",
    "files of timers and compaction",
    "if the configuration of a broker fits",
)
"""What no check looks at."""


@dataclass(frozen=True)
class CheckReport:
    """What one store is, or all replicas of a group, and what to do next.

    ``comparison`` and ``commit_logs`` are those of the replicas; ``losses`` what one store alone has lost.
    """

    members: tuple[MemberCheck, ...]
    comparison: Comparison | None
    commit_logs: CommitLogComparison | None
    losses: GroupLosses | None
    next: NextStep

    @property
    def lost(self) -> str:
        """Whether something is lost for good: ``nothing``, ``some`` or ``unknown``. Of one store alone: lost here."""
        answers = [self.comparison.verdict.answer] if self.comparison is not None else []
        answers += [self.commit_logs.verdict.answer] if self.commit_logs is not None else []
        if self.losses is not None:
            is_unclear = self.losses.unclear.entries or self.losses.unclear_positions.entries
            is_lost = any(lost.is_for_good for lost in self.losses.messages)
            answers.append(SOME if is_lost else UNKNOWN if is_unclear else NOTHING)
        return next((each for each in (SOME, UNKNOWN) if each in answers), NOTHING)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong with any member, and none has other entries than another one."""
        differs = self.comparison is not None and not DIFFERENCES.isdisjoint(self.comparison.entries)
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
        "version": json_of(facts.version),
        "restart": json_of(facts.restart),
        "restartUnknown": facts.no_restart,
        "unreadable": list(facts.unreadable),
    }


def check_stores(
    log: StoreView, rocketmq: str | None = None, java: str | None = None, progress: Progress = no_progress
) -> CheckReport:
    """Check the store of `log` with its replicas. Raises OptionError for a wrong version, StoreError for no store."""
    logs = [log, *log.replicas]
    comparison = compare(log) if len(logs) > 1 and any(each.ledger_segments for each in logs) else None
    commit_logs = compare_commit_logs(log) if len(logs) > 1 else None
    losses = lost_in_group(log) if len(logs) == 1 else None
    found = [store_facts(each, rocketmq, java, progress) for each in logs]
    entries = list(comparison.verdict.members) if comparison is not None else []
    positions = list(commit_logs.verdict.members) if commit_logs is not None else []
    if commit_logs is not None and commit_logs.is_old:
        # Who may lead an old CommitLog is a question about the DLedger log.
        positions = [each for each in positions if each.start not in (MASTER, SLAVE)]
    members = tuple(
        MemberCheck(
            name,
            facts,
            next((each for each in entries if each.path == facts.path), None),
            next((each for each in positions if each.path == facts.path), None),
        )
        for name, facts in zip(replica_names(logs), found, strict=True)
    )
    report = CheckReport(members, comparison, commit_logs, losses, NextStep(START))
    return replace(report, next=_next(report, logs))


def _next(report: CheckReport, logs: Sequence[StoreView]) -> NextStep:
    sources = salvaged_from(logs[0].path) if len(logs) == 1 else ()
    conditions = [member.condition for member in report.members]
    # What a salvage could not restore is lost for good.
    is_lost = report.lost != NOTHING and not sources
    found = step_of(conditions, report.commit_logs, is_lost=is_lost, can_salvage=can_be_salvaged(logs))
    return NextStep(REPLACE, names=(as_given(sources[0]),)) if sources and found.step == START else found
