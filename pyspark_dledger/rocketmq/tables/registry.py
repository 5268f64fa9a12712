"""All tables but ``log``, for Spark, the command line and the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.diff import replica_parts as diff
from pyspark_dledger.log.option_uses import check_use
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.state import State, state_of
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables import index_units_table, segments_table
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, row_of, table_schema
from pyspark_dledger.log.verify.verify_store import FindingsPart, plan_findings, read_findings
from pyspark_dledger.rocketmq.tables import (
    audit_table,
    consume_queue_table,
    consumers_table,
    index_file_table,
    lost_table,
)

_DEFAULTS = ReadOptions()

# state

STATE_COLUMNS = (
    TableColumn("node", pa.string(), "id of the node; null for a plain CommitLog"),
    TableColumn("path", pa.string(), "as given"),
    TableColumn("dialect", pa.string(), "`0.3` (and before), `0.4` or `commitlog`"),
    TableColumn("beginIndex", pa.int64(), "first and last index; -1 without entries"),
    TableColumn("endIndex", pa.int64(), "first and last index; -1 without entries"),
    TableColumn("endTerm", pa.int64(), "term of the last entry"),
    TableColumn("committedIndex", pa.int64(), "highest index proven committed; null without proof"),
    TableColumn("committedFrom", pa.string(), "the proof, such as `checkpoint`; or why there is none"),
    TableColumn("checkpointCommittedIndex", pa.int64(), "from the checkpoint; null without one"),
    TableColumn("checkpointEndIndex", pa.int64(), "from the checkpoint; null without one"),
    TableColumn("currTerm", pa.int64(), "the node's term"),
    TableColumn("voteLeader", pa.string(), "its vote in that term; null for none"),
    TableColumn("dividedCommitlogOffset", pa.int64(), "where DLedger begins; -1 without DLedger"),
    TableColumn("dataFileSize", pa.int64(), "bytes of a segment file"),
    TableColumn("indexFileSize", pa.int64(), "bytes of an index file; null without one"),
    TableColumn("minOffset", pa.int64(), "first position of the log"),
    TableColumn("maxOffset", pa.int64(), "position after the last entry"),
    TableColumn("abort", pa.bool_(), "the broker runs, or was not stopped cleanly"),
    TableColumn(
        "epochs", pa.map_(pa.int64(), pa.int64()), "controller mode: first position of each master epoch; else null"
    ),
    TableColumn("confirmOffset", pa.int64(), "end of the confirmed log at the broker's last checkpoint (from 5.1.1)"),
    TableColumn("consumeQueueEnd", pa.int64(), "end of the last message in a ConsumeQueue; -1 without one"),
    *(
        TableColumn(
            f"{part}MsgTimestamp",
            TIMESTAMP,
            "last message whose bytes, ConsumeQueue unit or keys are on disk, by the broker's checkpoint",
        )
        for part in ("physic", "logics", "index")
    ),
    TableColumn("problem", pa.string(), "files that cannot be read; null if all can"),
)


def _read_state(state: State) -> Iterator[pa.RecordBatch]:
    row = row_of(STATE_COLUMNS, state)
    row["epochs"] = list(state.epochs.items()) if state.epochs is not None else None
    for name in (column.name for column in STATE_COLUMNS if column.type == TIMESTAMP):
        row[name] = 1000 * row[name] if row[name] is not None else None
    yield from batches_of(table_schema(STATE_COLUMNS), [row], 1)


# findings

FINDINGS_COLUMNS = (
    TableColumn("severity", pa.string(), "`info`, `warning` or `error`"),
    TableColumn("code", pa.string(), "see [findings.md](findings.md)"),
    TableColumn("node", pa.string(), "id of the node; null for a plain CommitLog"),
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("offset", pa.int64(), "byte in the file, or null"),
    TableColumn("index", pa.int64(), "of the entry, or null"),
    TableColumn("pos", pa.int64(), "position in the log"),
    TableColumn("size", pa.int64(), "damaged or missing bytes there"),
    TableColumn("expected", pa.string(), "what was expected"),
    TableColumn("found", pa.string(), "what was found"),
    TableColumn("javaDoes", pa.string(), "what Java does about it"),
)


def _read_findings(part: FindingsPart) -> Iterator[pa.RecordBatch]:
    rows = (row_of(FINDINGS_COLUMNS, finding) for finding in read_findings(part))
    yield from batches_of(table_schema(FINDINGS_COLUMNS), rows, _DEFAULTS.max_batch_rows)


# diff

DIFF_COLUMNS = (
    TableColumn("firstIndex", pa.int64(), "range of indexes; null for a CommitLog"),
    TableColumn("lastIndex", pa.int64(), "range of indexes; null for a CommitLog"),
    TableColumn("firstPos", pa.int64(), "position of the first entry or byte"),
    TableColumn("lastPos", pa.int64(), "position of the last byte, for a CommitLog"),
    TableColumn("verdict", pa.string(), "see below"),
    TableColumn("nodes", pa.list_(pa.string()), "replicas of the verdict"),
    TableColumn(
        "terms", pa.map_(pa.string(), pa.int64()), "term (CommitLog: epoch) on each replica that has the entries"
    ),
    TableColumn("damaged", pa.list_(pa.string()), "replicas that lost them or have a damaged copy"),
    TableColumn("intact", pa.list_(pa.string()), "replicas to copy them from; empty where no check tells"),
    TableColumn("firstByte", pa.int64(), "first different byte of the entry; for a CommitLog its position"),
    TableColumn("firstDifference", pa.string(), "its field and the values"),
)


def _read_diff(part: diff.ReplicaPart) -> Iterator[pa.RecordBatch]:
    rows = ({**row_of(DIFF_COLUMNS, row), "terms": list(row.terms.items())} for row in diff.read_part(part))
    yield from batches_of(table_schema(DIFF_COLUMNS), rows, _DEFAULTS.max_batch_rows)


# Registry

_TABLES = (
    segments_table.TABLE,
    Table(
        "state",
        "one row: what the store is and how far it goes",
        STATE_COLUMNS,
        lambda log, _: [state_of(log)],
        _read_state,
    ),
    Table("findings", "one row per finding", FINDINGS_COLUMNS, lambda log, _: plan_findings(log), _read_findings),
    index_units_table.TABLE,
    consume_queue_table.TABLE,
    index_file_table.TABLE,
    audit_table.TABLE,
    consumers_table.TABLE,
    lost_table.TABLE,
    Table(
        "diff",
        "one row per range of indexes (CommitLog: positions) on which replicas agree or differ; needs `replicas`",
        DIFF_COLUMNS,
        diff.plan_replicas,
        _read_diff,
    ),
)

TABLES: dict[str, Table] = {table.name: table for table in _TABLES}
"""The tables by name, in the order of the documentation."""


def read_table(log: StoreView, name: str, options: ReadOptions | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a table, part by part; by default with the options of `log`.

    Raises OptionError for an unknown table or an option without effect, StoreError if the store cannot be read.
    """
    if name not in TABLES:
        raise OptionError(f"unknown table {name}: {nearest(name, TABLES)}")
    chosen = log.options if options is None else options
    check_use(chosen, f"table {name}")
    for part in TABLES[name].plan(log, chosen):
        yield from TABLES[name].read(part)
