"""The tables of a report's page: their columns, and those that compare the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.output.rows import Row, range_text
from pyspark_dledger.cli.stores.diff_text import MEANINGS, extent_text
from pyspark_dledger.common.fields import camel_case, fields_row
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.log.diff.diff_table import VERDICTS

if TYPE_CHECKING:
    from pyspark_dledger.cli.report.facts import Facts
    from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison
    from pyspark_dledger.log.diff.commit_log_group import ConsistentPoint
    from pyspark_dledger.log.diff.comparison import Comparison


@dataclass(frozen=True)
class PageColumn:
    """A column of a table on the page. `name` is the key in the rows.

    `kind` is ``text``, ``code``, ``name`` (of a file), ``time``, ``int``, ``id`` (an integer that is no count),
    ``bytes``, ``ms`` (milliseconds), ``rate`` or ``share``. An optional column is left out if all rows have 0.
    """

    name: str
    title: str
    kind: str = "int"
    is_optional: bool = False

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "bytes", "ms", "rate", "id", "share")

    def has_values(self, rows: list[Row]) -> bool:
        """Whether any row has a value to show."""
        nothing: tuple[Any, ...] = (None, "", [], 0) if self.is_optional else (None, "", [])
        return any(row[self.name] not in nothing for row in rows)


def _columns(text: str) -> list[PageColumn]:
    """Parses a line ``name kind Title`` for each column; ``kind?`` is optional."""
    found = []
    for line in text.strip().splitlines():
        name, kind, title = line.split(None, 2)
        found.append(PageColumn(name, title, kind.removesuffix("?"), kind.endswith("?")))
    return found


_SPECS = {
    "segments": """
        segment name File
        source text Source
        entries int Entries
        firstIndex int First index
        lastIndex int Last index
        lastTerm id Last term
        usedBytes bytes Used
        corruptBytes bytes? Corrupt
        staleBytes bytes? Stale
        findings int? Findings
        blankBytes bytes? Blank
        unwrittenBytes bytes? Unwritten
        firstStoreTimestamp time First stored
        lastStoreTimestamp time Last stored
    """,
    "topics": """
        topic text Topic
        queues int Queues
        messages int Messages
        bytes bytes Bytes
        share share Share
        messagesPerSecond rate Messages/s
        sizeP50 bytes Size, median
        sizeP99 bytes Size, 99 %
        bornToStoreP50 ms Latency, median
        bornToStoreP99 ms Latency, 99 %
        firstStoreTimestamp time First stored
        lastStoreTimestamp time Last stored
    """,
    "terms": """
        term id Term
        entries int Entries
        bytes bytes Bytes
        firstIndex int First index
        lastIndex int Last index
        firstStoreTimestamp time First stored
        lastStoreTimestamp time Last stored
    """,
    "gaps": """
        length ms Duration
        start time From
        end time To
    """,
    "restart": """
        name text Version
        outcome text Outcome
        endIndex int Last index
        committedIndex int Committed index
        maxPhyOffset int End of the log, byte
        confirmOffset int Confirmed up to byte
        dropped int Entries dropped
        droppedMessages int Messages dropped
        lost text Committed ones
        lostPositions text Positions dropped
        filesDeleted int? Files deleted
        consumeQueueUnitsCut int? ConsumeQueue units cut
    """,
    "findings": """
        file code File
        offset int At byte
        index int Index
        expected text Expected
        found text Found
    """,
    "audit": """
        topic text Topic
        queueId id Queue
        queueOffset int Queue offset
        commitLogOffset int CommitLog offset
        expected text Expected
        found text Found
    """,
    "groups": """
        consumerGroup text Group
        queues int Queues
        lag int Lag
        lost int Lost
    """,
    "consumers": """
        consumerGroup text Group
        topic text Topic
        queueId id Queue
        consumerOffset int Consumer offset
        minOffset int First offset
        maxOffset int End offset
        lag int Lag
        lost int Lost
    """,
    "standings": """
        node text Node
        beginIndex int First index
        endIndex int Last index
        endTerm id Last term
        committedIndex int Committed index
        committedFrom text Proof
        lagEntries int Lag, entries
        lagBytes bytes Lag, bytes
        alone int? Only here
        damaged int? Damaged
        unclear int? Cannot tell
        stale int? Stale
    """,
    "diff": """
        firstIndex int First index
        lastIndex int Last index
        verdict text Verdict
        nodes text Nodes
        damaged text Damaged on
        intact text Intact on
        terms text Terms
        meaning text Meaning
    """,
    "positions": """
        node text Node
        begin int First byte
        end int End, byte
        files int Files
        missing text Missing
        short text Short files
        epoch id Last epoch
        confirmOffset int Confirmed up to byte
        lagBytes bytes Lag
        damagedBytes bytes? Damaged
        divergedBytes bytes? Diverged
    """,
    "truncations": """
        slave text Slave
        master text Of master
        pos int Truncated at byte
        lostBytes bytes Loses
        equalBytes bytes? Copies again
        confirmedBytes bytes? Confirmed ones
        problem text Problem
    """,
    "positionDiff": """
        firstPos int First byte
        lastPos int Last byte
        verdict text Verdict
        nodes text Nodes
        damaged text Damaged on
        intact text Intact on
        terms text Epochs
        meaning text Meaning
    """,
}

COLUMNS = {name: _columns(text) for name, text in _SPECS.items()}
"""The columns of each table on the page."""


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
        if point.pos is None or point.lost_bytes or point.equal_bytes or not point.is_common
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
