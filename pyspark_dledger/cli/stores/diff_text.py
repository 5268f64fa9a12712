"""What a comparison of replicas found, in sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, cell, print_table, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.queue_rows import lost_queues_of_positions, queues_text
from pyspark_dledger.cli.stores.verdict_text import (
    first_files_text,
    lost_text,
    member_text,
    shown_members,
    truncation_text,
    verdict_lines,
)
from pyspark_dledger.common.fields import fields_row, json_of
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log import Log
from pyspark_dledger.rocketmq.check.check_report import step_after_comparison

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison, FirstDifference
    from pyspark_dledger.log.diff.comparison import Comparison
    from pyspark_dledger.log.diff.verdict import GroupVerdict
    from pyspark_dledger.log.next_step import NextStep


_MAX_EXPLAINED = 5


def cut_logs(log: Log) -> Iterator[str]:
    """The replicas whose checkpoint has a higher committed index than their log."""
    for member in (log, *log.replicas):
        known = member.checkpoint_committed_index
        if known > member.end.last_index and not member.unread.has_end:
            yield (
                f"note: {member.path}: the checkpoint says that {known} is committed, but the log ends at "
                f"{member.end.last_index}: its end is lost"
            )


def sentences(found: Comparison) -> Iterator[str]:
    """The results of a comparison."""
    first = found.first_divergence
    if first is None:
        yield "no divergence: where replicas have the same index intact, it is the same entry"
    else:
        terms = ", ".join(f"{node} term {term}" for node, term in first.terms.items())
        byte = f", from byte {first.byte} of the entry on" if first.byte is not None else ""
        yield f"first divergence ({first.verdict}) at index {first.index}, pos {first.pos}: {terms}{byte}"
        for node, (file, offset) in first.places.items():
            yield f"  {node}: {cell('/'.join(Path(file).parts[-2:]))} at byte {offset}"
    explained = [row for row in found.rows if row.first_difference is not None]
    for row in explained[:_MAX_EXPLAINED]:
        yield f"  index {row.first_index} differs from byte {row.first_byte} on, {cell(row.first_difference)}"
    if len(explained) > _MAX_EXPLAINED:
        yield f"  and {len(explained) - _MAX_EXPLAINED} more ranges: --json prints all"
    if found.committed_index is None:
        yield "committed: nothing is proven"
    else:
        yield f"committed: up to {found.committed_index}, proven by {found.committed_from}"
    if found.majority_index >= 0 and not found.is_proven:
        nodes = ", ".join(found.majority_nodes)
        doubt = f": {found.majority_doubt}" if found.majority_doubt else ""
        yield f"on a majority, not proven committed: up to {found.majority_index} ({nodes}){doubt}"
    for text in found.notes:
        yield f"note: {text}"


def print_commit_logs(out: Output, log: Log, found: CommitLogComparison) -> int:
    """Print where the CommitLogs of replicas differ; `FINDINGS` if more than a lag."""
    queues = queues_text(lost_queues_of_positions([log, *log.replicas], found.verdict.lost_entries))
    begin = min(state.begin for state in found.states)
    out.lines(verdict_lines(found.verdict, begin, queues=queues, is_old=found.is_old))
    is_shown = bool(shown_members(found.verdict, found.is_old))
    out.lines(next_lines(step_after_comparison(found, [log, *log.replicas])) if is_shown else ())
    out.line("")
    print_table(out, _state_rows(found))
    if found.epochs:
        out.line("")
        print_table(out, _epoch_rows(found))
    out.line("")
    out.lines(difference_sentences(found))
    out.line("")
    left_out = {"firstIndex", "lastIndex", "firstDifference"} | (set() if found.epochs else {"terms"})
    rows = [fields_row(row) for row in found.rows]
    print_table(out, [{name: value for name, value in row.items() if name not in left_out} for row in rows])
    if found.more_rows:
        out.line(f"and {found.more_rows} more: --json prints all")
    return CLEAN if found.is_lagging_only else FINDINGS


def _state_rows(found: CommitLogComparison) -> list[Row]:
    """The states without paths, and without columns of controller mode that no replica has."""
    rows = [
        fields_row(state) | {"missing": [range_text(low, high - 1) for low, high in state.missing]}
        for state in found.states
    ]
    optional = ("epoch", "epochProblem", "confirmOffset")
    left_out = {"path", "unread", "unreadable", *(name for name in optional if all(row[name] is None for row in rows))}
    return [{name: value for name, value in row.items() if name not in left_out} for row in rows]


def _epoch_rows(found: CommitLogComparison) -> Iterator[Row]:
    for epoch, extents in found.epochs.items():
        yield {"epoch": epoch} | {
            state.node: extent_text(extents[state.node]) if state.node in extents else None for state in found.states
        }


def extent_text(extent: tuple[int, int]) -> str:
    """The positions of an epoch."""
    start, end = extent
    return f"from {start}" if end == INT64_MAX else f"{start} to {end}"


def commit_log_sentences(found: CommitLogComparison) -> Iterator[str]:
    """The verdict on CommitLogs, first what is lost for good, then what was found."""
    yield from verdict_lines(found.verdict, is_old=found.is_old)
    yield from difference_sentences(found)


MEANINGS = {
    "same": "all replicas have the same bytes",
    "unreadable": "in files of these replicas that cannot be read",
    "damaged": "damaged or missing on these replicas",
    "filler": "these replicas have fillers of a salvage",
    "otherBytes": "copies differ, and no checksum decides",
    "diverged": "another master wrote them, or the replicas lack what the last one wrote",
    "behind": "not yet on these replicas",
    "expired": "deleted on these replicas, as old files are",
}
"""What a verdict on bytes of CommitLogs means."""


def difference_sentences(found: CommitLogComparison, with_points: bool = True) -> Iterator[str]:
    """What was found: the first difference, the common prefix, truncations (`with_points`), and lost ends."""
    if found.first_difference is None:
        yield "no difference: where replicas have the same position, they have the same bytes"
    else:
        yield from _first(found.first_difference)
    yield f"common prefix: up to {found.common_prefix}"
    for point in found.consistent_points if with_points else ():
        if point.pos is None:
            yield f"{point.slave} cannot follow {point.master}: {truncation_text(point)}"
        elif point.lost_bytes or point.equal_bytes or not point.is_common:
            yield f"{point.slave} as slave of {point.master}: {truncation_text(point)}"
    for each in found.lost_ends:
        yield f"note: {each.node}: {each.proof}: its end is lost"


def _first(first: FirstDifference) -> Iterator[str]:
    queue = f", topic {cell(first.topic)}, queue {first.queue_id}, offset {first.queue_offset}"
    message = queue if first.topic is not None else ""
    byte = f": byte {first.byte}" if first.byte is not None else ": bytes are missing"
    values = f", {cell(first.difference)}" if first.difference is not None else ""
    yield f"first difference ({first.verdict}) in the message at {first.pos}{message}{byte}{values}"
    for node, (file, offset) in first.places.items():
        yield f"  {node}: {cell('/'.join(Path(file).parts[-2:]))} at byte {offset}"


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
    ("node", "path", "log", "begin", "indexBegin", "firstBegin"): "who; `firstBegin` of all",
    ("start", "elect", "text"): "`yes`, `no`, `unknown`, `withLoss`; CommitLog: `master`, `slave`; why",
    ("damaged", "inLog", "donors"): "ranges; without those of a diverged tail; who has all of these",
    ("silent", "unclear", "diverged"): "ranges that look whole, are unclear, of another master",
    ("fillers", "leftOut", "isFilled"): "of a salvage; others have them; donors are filled",
    ("lostEnd", "unreadable", "isUnread", "short", "damagedBlanks"): "why it must not start",
    ("epochProblem", "missing", "canFollow"): "also why, of a CommitLog",
    ("losses", "overwrites", "overwritten", "confirmedAlone"): "what is lost",
    ("canWin", "ahead", "aheadBytes", "truncation"): "who is ahead; where Java truncates",
    ("strangers", "rivals"): "members of other logs, or maybe of a later master",
}
"""The keys of each of its ``members``."""


def verdict_row(found: GroupVerdict, queues: Sequence[Row], step: NextStep, *, is_old: bool = False) -> Row:
    """The verdict on one kind of log; `queues` lost messages. `is_old`: as in `verdict_lines`."""
    shown = shown_members(found, is_old)
    return {
        "verdict": GROUP,
        "log": COMMITLOG if found.is_plain else DLEDGER,
        "text": lost_text(found),
        **json_of(found),
        "lost": found.answer,
        "lostQueues": list(queues),
        "members": [json_of(each) | {"text": f"{member_text(each)}{first_files_text(each)}"} for each in shown],
        "next": step.command or None if shown else None,
    }
