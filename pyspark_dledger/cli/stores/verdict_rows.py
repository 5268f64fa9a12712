"""The verdict on a group as one JSON object for each kind of log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import Row
from pyspark_dledger.cli.stores.verdict_text import first_files_text, lost_text, member_text, shown_members
from pyspark_dledger.common.fields import json_of
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison
    from pyspark_dledger.log.diff.verdict import GroupVerdict
    from pyspark_dledger.log.next_step import NextStep

GROUP = "group"
VERDICT_KEYS = {
    ("verdict", "log"): "`group`; `dledger` (ranges of indexes) or `commitlog` (of positions)",
    ("lost", "text"): "`nothing`, `some`, `unknown`; in words",
    (
        "lostEntries",
        "filledEntries",
        "unclearEntries",
        "lostQueues",
    ): "lost, fillers, unclear; queue offsets",
    ("unclearReasons",): "`differ`, `onlyCopy`, `failAlike`, `unread`",
    ("restorable",): "what a salvage restores",
    ("lostEnd", "lostEndFrom", "lostEnds"): "what is after every log's end",
    ("missingMembers",): "members not given",
    ("next",): "command or null",
    ("members",): "for each:",
}
"""The keys of the verdict of `dledger diff --json`, with what they mean."""

MEMBER_KEYS = {
    ("node", "path", "begin", "indexBegin"): "who",
    ("start", "elect", "text"): "`yes`, `no`, `unknown`, `withLoss`; CommitLog: `master`, `slave`; why",
    ("damaged", "inLog", "donors"): "ranges; without those of a diverged tail; who has all of these",
    ("silent", "unclear", "diverged"): "ranges that look whole, are unclear, of another master",
    ("fillers", "leftOut", "isFilled"): "of a salvage; others have them; donors are filled",
    ("lostEnd", "unreadable", "isUnread", "short", "epochProblem", "missing", "canFollow"): "why it must not start",
    ("losses", "overwrites", "overwritten"): "what others lose",
    ("canWin", "ahead", "aheadBytes", "truncation"): "who is ahead; where Java truncates",
}
"""The keys of each of its ``members``."""


def ledger_row(found: GroupVerdict, queues: Sequence[Row], step: NextStep) -> Row:
    """The verdict on DLedger logs; `queues` lost messages."""
    row: Row = json_of(found)
    members = zip(row.pop("members"), found.members, strict=True)
    return {
        "verdict": GROUP,
        "log": DLEDGER,
        "text": lost_text(found),
        **row,
        "lost": found.answer,
        "restorable": json_of(found.restorable),
        "lostQueues": list(queues),
        "members": [
            each | {"text": f"{member_text(one)}{first_files_text(one, found.members)}"} for each, one in members
        ],
        "next": step.command or None,
    }


def commit_log_row(found: CommitLogComparison, queues: Sequence[Row], step: NextStep) -> Row:
    """The verdict on CommitLogs."""
    verdict = found.verdict
    shown = shown_members(verdict, found.is_old)
    return {
        "verdict": GROUP,
        "log": COMMITLOG,
        "text": lost_text(verdict),
        "lost": verdict.answer,
        "lostEntries": json_of(verdict.lost),
        "filledEntries": json_of(verdict.filled),
        "lostEnds": json_of(verdict.lost_ends),
        "lostQueues": list(queues),
        "unclearEntries": json_of(verdict.unclear),
        "unclearReasons": list(verdict.unclear_reasons),
        "members": [json_of(member) | {"text": member_text(member)} for member in shown],
        "next": step.command if shown and step.arguments else None,
    }
