"""The result of comparing CommitLogs as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, cell, fields_row, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_table
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, ConsistentPoint, FirstDifference
    from pyspark_dledger.log.diff.commit_log.rows import PosRow
    from pyspark_dledger.log.diff.commit_log.verdict import MemberVerdict

_MAX_RANGES = 5


def print_commit_logs(out: Output, log: Log) -> int:
    """Print where the CommitLogs of replicas differ, if they have any; `FINDINGS` if more than a lag."""
    from pyspark_dledger.log.diff.commit_log.comparison import compare_commit_logs

    found = compare_commit_logs(log)
    if found is None:
        return CLEAN
    for text in _verdict_lines(found):
        out.line(text)
    out.line("")
    print_table(out, map(_state_row, map(fields_row, found.states)))
    if found.epochs:
        out.line("")
        print_table(out, _epoch_rows(found))
    out.line("")
    for text in _sentences(found):
        out.line(text)
    out.line("")
    left_out = {"firstIndex", "lastIndex"} if found.epochs else {"firstIndex", "lastIndex", "terms"}
    rows = [fields_row(row) for row in found.rows]
    print_table(out, [{name: value for name, value in row.items() if name not in left_out} for row in rows])
    if found.more_rows:
        out.line(f"and {found.more_rows} more: --json prints all")
    return CLEAN if found.is_lagging_only else FINDINGS


def _state_row(state: Row) -> Row:
    missing = [range_text(low, high - 1) for low, high in state["missing"]]
    return {name: value for name, value in state.items() if name != "path"} | {"missing": missing}


def _epoch_rows(found: CommitLogComparison) -> Iterator[Row]:
    for epoch, extents in found.epochs.items():
        yield {"epoch": epoch} | {
            state.node: _extent(extents[state.node]) if state.node in extents else None for state in found.states
        }


def _extent(extent: tuple[int, int]) -> str:
    start, end = extent
    return f"from {start}" if end == INT64_MAX else f"{start} to {end}"


def commit_log_sentences(found: CommitLogComparison) -> Iterator[str]:
    """The verdict on CommitLogs, first what is lost for good, then what was found."""
    yield from _verdict_lines(found)
    yield from _sentences(found)


def _verdict_lines(found: CommitLogComparison) -> Iterator[str]:
    """First what is lost for good, then a line for each replica, then the next command."""
    from pyspark_dledger.log.diff.commit_log.verdict import member_verdicts

    members = member_verdicts(found)
    lost = [f"positions {text}" for text in _ranges(found.lost)]
    place = " in the old CommitLog" if found.is_old else ""
    yield f"lost for good{place}: {', '.join(lost) + ': damaged on every replica' if lost else 'nothing'}"
    # Who may lead is a question about the DLedger log.
    shown = [member for member in members if not found.is_old or member.start in ("no", "unknown")]
    for member in shown:
        yield f"{member.node} {_member_text(member)}"
    if shown:
        yield f"next: {_next_text(members)}"


def _member_text(member: MemberVerdict) -> str:
    """What may be done with a replica as it is, and why."""
    if member.start == "no":
        size = sum(row.bytes for row in member.damaged)
        intact = f", intact on {', '.join(member.donors)}" if member.donors else ""
        where = ", ".join(_ranges(member.damaged))
        return (
            f"must not start as it is: {size} bytes damaged or missing, positions {where}{intact}; for what a restart "
            "does see dledger recovery"
        )
    if member.start == "unknown":
        where = ", ".join(_ranges(member.unclear))
        return f"may be damaged: no check tells if its copy of positions {where} is intact; do not let it be the master"
    if member.start == "master":
        return "may start and be the master"
    text = f"may start as a slave: {member.ahead} is ahead"
    point = member.truncation
    if point is not None and point.pos is None:
        return f"{text}, but it cannot follow: Java finds no consistent point in their epochs"
    if point is not None and (point.lost_bytes or not point.is_common):
        return f"{text}; {_truncation(point)}"
    if member.diverged:
        where = ", ".join(_ranges(member.diverged))
        return f"{text}, but its messages at positions {where} are of another master, and nothing truncates them"
    return f"{text} by {member.ahead_bytes} bytes" if member.ahead_bytes > 0 else text


def _truncation(point: ConsistentPoint) -> str:
    loses = f"loses {point.lost_bytes} bytes" if point.lost_bytes else "loses nothing"
    differs = "" if point.is_common else "; before it their bytes differ, and Java does not notice"
    return f"Java truncates it at {point.pos}, and it {loses}{differs}"


def _next_text(members: Sequence[MemberVerdict]) -> str:
    damaged = [member for member in members if member.start == "no"]
    intact = [member for member in members if member.start in ("master", "slave")]
    donors = [one for one in intact if all(one.node in other.donors for other in damaged)]
    paths = shlex.join(member.path for member in members)
    if not damaged:
        return f"dledger verify {paths} --least warning; if clean, start them"
    if donors:
        names = ", ".join(member.node for member in damaged)
        verify = f"dledger verify {shlex.quote(donors[0].path)} --least warning"
        return f"{verify}; if clean, replace {names} by a copy of {donors[0].node}"
    return f"no replica is complete; save each: dledger export {shlex.quote(members[0].path)} TARGET --to jsonl"


def _ranges(rows: Sequence[PosRow]) -> list[str]:
    """The first ranges of positions; adjacent rows are one."""
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] + 1 == row.first_pos:
            ranges[-1] = ranges[-1][0], row.last_pos
        else:
            ranges.append((row.first_pos, row.last_pos))
    shown = [range_text(first, last) for first, last in ranges[:_MAX_RANGES]]
    return [*shown, "more"] if len(ranges) > _MAX_RANGES else shown


def _sentences(found: CommitLogComparison) -> Iterator[str]:
    if found.first_difference is None:
        yield "no difference: where replicas have the same position, they have the same bytes"
    else:
        yield from _first(found.first_difference)
    yield f"common prefix: up to {found.common_prefix}"
    for point in found.consistent_points:
        if point.pos is None:
            yield f"{point.slave} cannot follow {point.master}: Java finds no consistent point in their epochs"
        elif point.lost_bytes or not point.is_common:
            yield f"{point.slave} as slave of {point.master}: {_truncation(point)}"
    for text in found.notes:
        yield f"note: {text}"


def _first(first: FirstDifference) -> Iterator[str]:
    queue = f", topic {cell(first.topic)}, queue {first.queue_id}, offset {first.queue_offset}"
    message = queue if first.topic is not None else ""
    byte = f": byte {first.byte}" if first.byte is not None else ": bytes are missing"
    yield f"first difference ({first.verdict}) in the message at {first.pos}{message}{byte}"
    for node, (file, offset) in first.places.items():
        yield f"  {node}: {cell('/'.join(Path(file).parts[-2:]))} at byte {offset}"
