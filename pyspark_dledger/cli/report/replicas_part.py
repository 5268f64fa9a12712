"""The part of a report's page that compares the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.output.rows import Row, range_text
from pyspark_dledger.cli.report.page_columns import COLUMNS, PageColumn
from pyspark_dledger.cli.stores.commit_log_text import MEANINGS, extent_text
from pyspark_dledger.common.fields import camel_case, fields_row
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.log.diff.diff_table import VERDICTS

if TYPE_CHECKING:
    from pyspark_dledger.cli.report.facts import Facts
    from pyspark_dledger.log.diff.commit_log.comparison import CommitLogComparison
    from pyspark_dledger.log.diff.commit_log.states import ConsistentPoint
    from pyspark_dledger.log.diff.comparison import Comparison


@dataclass(frozen=True)
class PageTable:
    """A table on the page."""

    caption: str
    columns: list[PageColumn]
    rows: list[Row]


def replica_tables(facts: Facts) -> list[PageTable]:
    """The tables about the replicas of a group; empty without replicas."""
    tables: list[PageTable] = []
    if facts.commit_logs is not None:
        tables += _commit_log_tables(facts.commit_logs)
    if facts.comparison is not None and not facts.is_plain:
        tables += _ledger_tables(facts.comparison)
    return [table for table in tables if table.rows]


def _ledger_tables(found: Comparison) -> Iterable[PageTable]:
    standings = [{camel_case(name): value for name, value in asdict(item).items()} for item in found.standings]
    counted = [
        row | {name: row[name]["entries"] for name in ("alone", "damaged", "unclear", "stale")} for row in standings
    ]
    yield PageTable("Indexes of each replica", COLUMNS["standings"], counted)
    yield PageTable("Where replicas agree and differ", COLUMNS["diff"], _rows(found.rows, VERDICTS))


def _commit_log_tables(found: CommitLogComparison) -> Iterable[PageTable]:
    states = [
        fields_row(state)
        | {
            "missing": [range_text(low, high - 1) for low, high in state.missing],
            "short": list(state.short),
            "lagBytes": member.ahead_bytes,
        }
        for state, member in zip(found.states, found.verdict.members, strict=True)
    ]
    yield PageTable("CommitLog of each replica", COLUMNS["positions"], states)
    nodes = {f"node {number}": state.node for number, state in enumerate(found.states)}
    epochs = [
        {"epoch": epoch}
        | {name: extent_text(extents[node]) if node in extents else None for name, node in nodes.items()}
        for epoch, extents in found.epochs.items()
    ]
    columns = [
        PageColumn("epoch", "Epoch", "id"),
        *(PageColumn(name, printable(node), "text") for name, node in nodes.items()),
    ]
    yield PageTable("Bytes of each master epoch", columns, epochs)
    points = [
        fields_row(point) | {"problem": _problem(point)}
        for point in found.consistent_points
        if point.pos is None or point.lost_bytes or not point.is_common
    ]
    yield PageTable("Where Java would truncate a slave", COLUMNS["truncations"], points)
    rows = _rows(found.rows, MEANINGS)
    if not found.epochs:
        rows = [row | {"terms": None} for row in rows]
    yield PageTable("Where CommitLogs agree and differ", COLUMNS["positionDiff"], rows)


def _problem(point: ConsistentPoint) -> str:
    if point.pos is None:
        return "Java finds no consistent point: it does not follow"
    return "" if point.is_common else "Java does not notice that the bytes before that position differ"


def _rows(rows: Iterable[Any], meanings: Mapping[str, str]) -> list[Row]:
    """Rows of a comparison with the meaning of each verdict."""
    return [
        {name: list(value) if isinstance(value, tuple) else value for name, value in fields_row(row).items()}
        | {"meaning": meanings[row.verdict].replace("`", "")}
        for row in rows
    ]
