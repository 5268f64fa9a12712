"""The result of comparing CommitLogs as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, cell, print_table, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.lost_queues import lost_queues_of_positions, queues_text
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.verdict_text import (
    SEE_RECOVERY,
    unknown_files_text,
    unread_ends_text,
    unreadable_text,
)
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log import Log
from pyspark_dledger.rocketmq.check.member_check import step_after_comparison

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, FirstDifference
    from pyspark_dledger.log.diff.commit_log.states import ConsistentPoint
    from pyspark_dledger.log.diff.commit_log.verdict import CommitLogVerdict, MemberVerdict
    from pyspark_dledger.log.diff.ranges import Ranges

_MAX_RANGES = 5


def print_commit_logs(out: Output, log: Log) -> int:
    """Print where the CommitLogs of replicas differ, if they have any; `FINDINGS` if more than a lag."""
    from pyspark_dledger.log.diff.commit_log.comparison import compare_commit_logs

    found = compare_commit_logs(log)
    if found is None:
        return CLEAN
    queues = queues_text(lost_queues_of_positions([log, *log.replicas], found.verdict.lost))
    for number, text in enumerate(_verdict_lines(found)):
        out.line(text)
        if not number and queues:
            out.line(f"  {queues}")
    for text in next_lines(step_after_comparison(found, [log, *log.replicas])) if shown_members(found) else ():
        out.line(text)
    out.line("")
    print_table(out, _state_rows(found))
    if found.epochs:
        out.line("")
        print_table(out, _epoch_rows(found))
    out.line("")
    for text in difference_sentences(found):
        out.line(text)
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
    yield from _verdict_lines(found)
    yield from difference_sentences(found)


def _verdict_lines(found: CommitLogComparison) -> Iterator[str]:
    """First what is lost for good, then a line for each replica."""
    verdict = found.verdict
    place = " in the old CommitLog" if found.is_old else ""
    yield f"lost for good{place}: {lost_text(verdict)}"
    shown = shown_members(found)
    for member in shown:
        yield f"{member.node} {member_text(member)}"


def shown_members(found: CommitLogComparison) -> list[MemberVerdict]:
    """The replicas with a verdict of their own. Who may lead an old CommitLog is a question about the DLedger log."""
    return [each for each in found.verdict.members if not found.is_old or each.start not in ("master", "slave")]


def lost_text(verdict: CommitLogVerdict) -> str:
    """What no replica has intact."""
    parts = []
    if verdict.lost.entries:
        parts.append(f"positions {ranges_text(verdict.lost)}: damaged on every replica")
    if verdict.filled.entries:
        parts.append(f"positions {ranges_text(verdict.filled)}: replaced by fillers of a salvage")
    parts += [f"the end of {each.node}, which no replica has: {each.proof}" for each in verdict.lost_ends]
    if verdict.unclear.entries:
        parts.append(unclear_positions_text(verdict.unclear))
    parts += unread_ends_text(verdict.members)
    yet = [
        f"{member.node} would lose {member.truncation.confirmed_bytes} confirmed bytes as slave of {member.ahead}"
        for member in verdict.members
        if member.truncation is not None and member.truncation.confirmed_bytes
    ]
    if yet and not parts:
        parts.append("nothing yet")
    return "; ".join([*parts, *yet]) or "nothing"


def unclear_positions_text(ranges: Ranges) -> str:
    """That nothing tells whether the bytes at these positions are lost."""
    return (
        f"cannot tell for positions {ranges_text(ranges)}: copies differ, only one is left, equal ones fail their "
        "checksum, or a file cannot be read"
    )


def member_text(member: MemberVerdict, *, see_recovery: bool = True) -> str:
    """What may be done with a replica as it is, and why; with `see_recovery` also which verb says more."""
    if member.start == "no":
        return f"must not start as it is: {'; '.join(_reasons(member, see_recovery))}"
    if member.start == "unknown":
        if not member.unclear.entries:
            return unreadable_text(member.unreadable)
        where = ranges_text(member.unclear)
        return f"may be damaged: no check tells if its copy of positions {where} is intact; do not let it be the master"
    if member.start == "master":
        losers = " and ".join(member.overwritten)
        losses = f"{losers} would lose positions {ranges_text(member.overwrites)}, which another master wrote"
        return f"may start and be the master: {losses if losers else 'no replica would lose anything'}"
    point = member.truncation
    by = f"is ahead by {member.ahead_bytes} bytes" if member.ahead_bytes > 0 else "is of a later epoch"
    text = f"may start, and must not be the master: {member.ahead} {by}"
    if point is not None and (point.lost_bytes or not point.is_common):
        return f"{text}; as its slave, {truncation_text(point)}"
    return text


def _reasons(member: MemberVerdict, see_recovery: bool) -> Iterator[str]:
    if member.damaged.entries:
        intact = f", intact on {' and '.join(member.donors)}" if member.donors else ""
        where = ranges_text(member.damaged)
        yield f"{member.damaged.entries} bytes damaged or missing, positions {where}{intact}"
        if see_recovery:
            yield SEE_RECOVERY
    if member.left_out.entries:
        yield f"the salvage that wrote it left out positions {ranges_text(member.left_out)}: fillers took their place"
    if member.is_unread:
        yield unknown_files_text(member.unreadable)
    if member.short:
        yield f"a broker does not load {', '.join(map(cell, member.short))}: shorter than the other files"
    if member.lost_end is not None:
        donors = member.lost_end.donors
        intact = f"; {' and '.join(donors)} {'has' if len(donors) == 1 else 'have'} more" if donors else ""
        yield f"its end is lost: {member.lost_end.proof}{intact}"
    if member.epoch_problem is not None:
        yield f"its epochFileCheckpoint is wrong: {member.epoch_problem}"
    point = member.truncation
    if point is not None and point.pos is None:
        yield f"it cannot follow {member.ahead}: Java finds no consistent point in their epochs"
    elif member.missing is not None:
        low, high = member.missing
        yield f"it cannot follow {member.ahead}, which no longer has positions {range_text(low, high)}"
    elif not member.can_follow:
        where = ranges_text(member.diverged)
        yield f"another master wrote its messages at positions {where}, and nothing truncates them all"


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


def truncation_text(point: ConsistentPoint) -> str:
    """Where Java truncates a slave, and what that loses."""
    confirmed = f", {point.confirmed_bytes} of them confirmed" if point.confirmed_bytes else ""
    loses = f"loses {point.lost_bytes} bytes{confirmed}" if point.lost_bytes else "loses nothing"
    differs = "" if point.is_common else "; Java does not notice that their bytes differ before that position"
    return f"Java truncates it at {point.pos}, and it {loses}{differs}"


def ranges_text(ranges: Ranges) -> str:
    """The first ranges of positions."""
    shown = [range_text(first, last) for first, last in ranges.ranges[:_MAX_RANGES]]
    return ", ".join(shown) + (" and more" if len(ranges.ranges) > _MAX_RANGES else "")


def difference_sentences(found: CommitLogComparison, with_points: bool = True) -> Iterator[str]:
    """What was found: the first difference, the common prefix, truncations (`with_points`), and lost ends."""
    if found.first_difference is None:
        yield "no difference: where replicas have the same position, they have the same bytes"
    else:
        yield from _first(found.first_difference)
    yield f"common prefix: up to {found.common_prefix}"
    for point in found.consistent_points if with_points else ():
        if point.pos is None:
            yield f"{point.slave} cannot follow {point.master}: Java finds no consistent point in their epochs"
        elif point.lost_bytes or not point.is_common:
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
