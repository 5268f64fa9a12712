"""The result of comparing CommitLogs as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, cell, fields_row, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_table
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison, FirstDifference

_MAX_RANGES = 5


def print_commit_logs(out: Output, log: Log) -> int:
    """Print where the CommitLogs of replicas differ, if they have any; `FINDINGS` if more than a lag."""
    from pyspark_dledger.log.diff.commit_log.comparison import compare_commit_logs

    found = compare_commit_logs(log)
    if found is None:
        return CLEAN
    out.line("CommitLog")
    print_table(out, map(_state_row, map(fields_row, found.states)))
    if found.epochs:
        out.line("")
        print_table(out, _epoch_rows(found))
    out.line("")
    for text in commit_log_sentences(found):
        out.line(text)
    out.line("")
    rows = [fields_row(row) for row in found.rows]
    print_table(out, [{name: value for name, value in row.items() if "Index" not in name} for row in rows])
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
    """The results of a comparison of CommitLogs: first what is lost for good."""
    if found.lost:
        ranges = [f"positions {range_text(row.first_pos, row.last_pos)}" for row in found.lost[:_MAX_RANGES]]
        more = f" and {len(found.lost) - _MAX_RANGES} more" if len(found.lost) > _MAX_RANGES else ""
        yield f"lost for good: {', '.join(ranges)}{more}: no replica has them intact"
    else:
        yield "lost for good: nothing"
    if found.first_difference is None:
        yield "no difference: where replicas have the same position, they have the same bytes"
    else:
        yield from _first(found.first_difference)
    yield f"common prefix: up to {found.common_prefix}"
    for state in found.states:
        donors = {
            node for row in found.rows if row.verdict == "damaged" and state.node in row.nodes for node in row.terms
        }
        if state.damaged_bytes:
            where = f"intact on {', '.join(sorted(donors))}" if donors else "intact nowhere"
            yield (
                f"{state.node}: {state.damaged_bytes} bytes are damaged or missing ({where}): do not start it; see "
                f"dledger recovery {cell(state.path)} --rocketmq VERSION"
            )
    for point in found.consistent_points:
        if point.pos is None:
            yield f"{point.slave} cannot follow {point.master}: Java finds no consistent point in their epochs"
        elif point.lost_bytes or not point.is_common:
            loses = f"loses {point.lost_bytes} bytes" if point.lost_bytes else "loses nothing"
            differs = "" if point.is_common else "; before it their bytes differ, and Java does not see that"
            yield f"{point.slave} as slave of {point.master}: truncated at {point.pos}, {loses}{differs}"
    for text in found.notes:
        yield f"note: {text}"


def _first(first: FirstDifference) -> Iterator[str]:
    queue = f", topic {cell(first.topic)}, queue {first.queue_id}, offset {first.queue_offset}"
    message = queue if first.topic is not None else ""
    byte = f": byte {first.byte}" if first.byte is not None else ": bytes are missing"
    yield f"first difference ({first.verdict}) in the message at {first.pos}{message}{byte}"
    for node, (file, offset) in first.places.items():
        yield f"  {node}: {cell('/'.join(Path(file).parts[-2:]))} at byte {offset}"
