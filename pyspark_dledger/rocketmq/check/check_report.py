"""Checks one store, or all replicas of a group: composes what the comparison, verify, audit and recovery find.

It has no judgement of its own: each fact is that of the module that answers the question elsewhere, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.fields import json_of
from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, compare_commit_logs
from pyspark_dledger.log.diff.commit_log.verdict import MASTER, SLAVE
from pyspark_dledger.log.diff.commit_log.verdict import MemberVerdict as BytesVerdict
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.log.diff.diff_table import DIVERGED
from pyspark_dledger.log.diff.ranges import Ranges
from pyspark_dledger.log.diff.verdict import MemberVerdict as EntriesVerdict
from pyspark_dledger.log.io.unfinished import salvaged_from
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.findings import CODES, ERROR
from pyspark_dledger.rocketmq.check.next_step import (
    KEYS,
    QUEUES,
    REPLACE,
    START,
    Condition,
    NextStep,
    as_given,
    next_step,
)
from pyspark_dledger.rocketmq.check.store_facts import NO, UNKNOWN, YES, Progress, StoreFacts, no_progress, store_facts
from pyspark_dledger.rocketmq.lost.group_losses import GroupLosses, lost_in_group
from pyspark_dledger.rocketmq.lost.restorable import lost_answer, restorable

WITH_LOSS = "withLoss"
NOTHING, SOME = "nothing", "some"
DIFFERENCES = frozenset(("filler", "damaged", "unreadable", "otherBytes", "diverged", "contradicts"))
"""Verdicts of the table ``diff`` that no healthy group shows."""
_QUEUE_CODES = frozenset(("consumeQueueUnit", "messageQueue"))
_KEY_CODES = frozenset(("keyIndexHeader", "keyIndexUnit"))
NOT_CHECKED = ("timers", "compaction", "logsOfBrokers")


@dataclass(frozen=True)
class MemberCheck:
    """What may be done with one store as it is.

    ``entries`` and ``bytes`` are the verdicts of the comparison on its DLedger log and its CommitLog; None where it has
    none, and for a store without replicas. ``is_damaged``: it must not be started, or files of it are wrong that only
    a salvage or a copy repairs.
    """

    name: str
    facts: StoreFacts
    entries: EntriesVerdict | None = None
    bytes: BytesVerdict | None = None

    @property
    def start(self) -> str:
        """Whether it may be started: ``yes``, ``no`` or ``unknown``."""
        restart = self.facts.restart
        answers = [_STARTS[each.start] for each in (self.entries, self.bytes) if each is not None]
        if self.entries is None and self.bytes is None:
            answers.append(NO if self._damages else YES)
        answers.append(NO if restart is not None and restart.starts is False else YES)
        answers.append(UNKNOWN if self.facts.unreadable else YES)
        return next((each for each in (NO, UNKNOWN) if each in answers), YES)

    @property
    def lead(self) -> str:
        """Whether it may lead: ``yes``, ``no``, ``unknown``, or ``withLoss`` if others would lose what they have."""
        if self.start != YES:
            return self.start
        if self.entries is not None:
            return self.entries.elect
        if self.bytes is None or self.bytes.start == MASTER:
            return WITH_LOSS if self.bytes is not None and self.bytes.overwritten else YES
        return NO if self.bytes.start == SLAVE else UNKNOWN

    @property
    def serve(self) -> str | None:
        """Whether consumers get every message of its log: ``yes``, ``no`` or ``unknown``; None if it is no broker's."""
        return self.facts.queues.answer

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong with it."""
        restart = self.facts.restart
        is_sound = self.start == YES and self.serve in (YES, None) and not self.facts.faults
        return is_sound and (restart is None or not restart.is_trouble)

    @property
    def _damages(self) -> list[str]:
        """The codes of errors that no rebuild of queues or of the index of keys repairs."""
        errors = (code for code in self.facts.faults if CODES[code].severity == ERROR)
        return [code for code in errors if code not in _QUEUE_CODES | _KEY_CODES]

    @property
    def condition(self) -> Condition:
        """What decides about the next step."""
        facts, faults = self.facts, self.facts.faults
        truncation = self.bytes.truncation if self.bytes is not None else None
        is_saved = truncation is not None and truncation.pos is not None and truncation.lost_bytes
        is_wrong = bool(facts.queues.counts) or not _QUEUE_CODES.isdisjoint(faults)
        return Condition(
            name=self.name,
            path=facts.path,
            is_unreadable=bool(facts.unreadable),
            is_in_use=facts.is_in_use,
            is_damaged=self.start == NO or bool(self._damages),
            rebuild=QUEUES if is_wrong else None if _KEY_CODES.isdisjoint(faults) else KEYS,
            has_findings=bool(faults),
            may_lead=self.lead in (YES, WITH_LOSS),
            save=(facts.path, truncation.pos) if is_saved and truncation is not None and truncation.pos else None,
        )


_STARTS = {"yes": YES, MASTER: YES, SLAVE: YES, "no": NO, "unknown": UNKNOWN}


@dataclass(frozen=True)
class CheckReport:
    """What one store is, or all replicas of a group, and what to do next.

    ``comparison`` and ``commit_logs`` are those of the replicas; ``losses`` what one store alone has lost.
    """

    members: tuple[MemberCheck, ...]
    comparison: Comparison | None
    commit_logs: CommitLogComparison | None
    restorable: Ranges
    losses: GroupLosses | None
    next: NextStep

    @property
    def lost(self) -> str:
        """Whether something is lost for good: ``nothing``, ``some`` or ``unknown``. Of one store alone: lost here."""
        answers = [lost_answer(self.comparison.verdict, self.restorable)] if self.comparison is not None else []
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

    def as_json(self) -> dict[str, Any]:
        """The facts by the names of columns."""
        return {
            "lost": self.lost,
            "isClean": self.is_clean,
            "members": [_member_json(member) for member in self.members],
            "next": list(self.next.arguments),
            "nextStep": self.next.step,
            "notChecked": list(NOT_CHECKED),
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
    report = CheckReport(members, comparison, commit_logs, _restorable(logs, comparison), losses, NextStep(START))
    return replace(report, next=_next(report, logs))


def _next(report: CheckReport, logs: Sequence[StoreView]) -> NextStep:
    sources = salvaged_from(logs[0].path) if len(logs) == 1 else ()
    leader = next((each for each in report.members if each.bytes is not None and each.bytes.start == MASTER), None)
    is_diverged = report.commit_logs is not None and DIVERGED in report.commit_logs.bytes
    found = next_step(
        [member.condition for member in report.members],
        # What a salvage could not restore is lost for good.
        is_lost=report.lost != NOTHING and not sources,
        can_salvage=all(log.dialect != "0.4" for log in logs),
        log_of=str(Path(leader.facts.path).absolute()) if is_diverged and leader is not None else None,
    )
    return NextStep(REPLACE, names=(as_given(sources[0]),)) if sources and found.step == START else found


def _restorable(logs: Sequence[StoreView], comparison: Comparison | None) -> Ranges:
    return restorable(logs, comparison.verdict) if comparison is not None else Ranges()
