"""Checks one store, or all replicas of a group: composes what the comparison, verify, audit and recovery find.

It has no judgement of its own: each fact is that of the module that answers the question elsewhere, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_dledger.common.fields import json_of
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, compare_commit_log_group
from pyspark_dledger.log.diff.commit_log.group import commit_log_group
from pyspark_dledger.log.diff.commit_log.verdict import MASTER, SLAVE
from pyspark_dledger.log.diff.comparison import Comparison, compare_group
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared
from pyspark_dledger.log.io.unfinished import salvaged_from
from pyspark_dledger.log.next_step import REPLACE, START, NextStep, as_given
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.salvage.compared_stores import ComparedStores
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.check.member_check import MemberCheck, can_be_salvaged, step_of
from pyspark_dledger.rocketmq.check.store_facts import UNKNOWN, Progress, no_progress, store_facts, watch_of

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

    ``comparison`` and ``commit_logs`` are those of the replicas.
    """

    members: tuple[MemberCheck, ...]
    comparison: Comparison | None
    commit_logs: CommitLogComparison | None
    next: NextStep

    @property
    def lost(self) -> str:
        """Whether something is lost for good: ``nothing``, ``some`` or ``unknown``. Of one store: lost there."""
        answers = [self.comparison.verdict.answer] if self.comparison is not None else []
        answers += [self.commit_logs.verdict.answer] if self.commit_logs is not None else []
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
    if segment := next((each.path for each in logs if each.paths.only is not None), None):
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
    members = tuple(
        MemberCheck(
            name,
            facts,
            next((each for each in entries if each.path == facts.path), None),
            next((each for each in positions if each.path == facts.path), None),
            len(logs) == 1,
        )
        for name, facts in zip(replica_names(logs), found, strict=True)
    )
    report = CheckReport(members, comparison, commit_logs, NextStep(START))
    return replace(report, next=_next(report, logs))


def _next(report: CheckReport, logs: Sequence[StoreView]) -> NextStep:
    sources = salvaged_from(logs[0].path) if len(logs) == 1 else ()
    conditions = [member.condition for member in report.members]
    # What a salvage could not restore is lost for good.
    is_lost = report.lost != NOTHING and not sources
    can_salvage = can_be_salvaged(logs)
    found = step_of(conditions, report.comparison, report.commit_logs, is_lost=is_lost, can_salvage=can_salvage)
    return NextStep(REPLACE, names=(as_given(sources[0]),)) if sources and found.step == START else found
