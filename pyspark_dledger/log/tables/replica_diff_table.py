"""The table ``diff``: where replicas agree and differ, first of their CommitLogs, then of their DLedger logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pyspark_dledger.log.diff.commit_log_group import PosRow, commit_log_group, pos_rows
from pyspark_dledger.log.diff.diff_table import DiffRow, ledger_rows
from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, row_of, table_schema


@dataclass(frozen=True)
class ReplicasPart:
    """The whole table: a verdict depends on all logs."""

    path: str
    options: ReadOptions


def plan_replicas(store: StoreView, options: ReadOptions) -> list[ReplicasPart]:
    """One part, which reads the store and its replicas."""
    return [ReplicasPart(store.path, options)]


def read_part(part: ReplicasPart) -> Iterator[DiffRow | PosRow]:
    """The rows of a comparison. Raises OptionError without replicas."""
    store = StoreView(part.path, part.options)
    found = compared(store)
    old = commit_log_group(found)
    if old is not None:
        yield from pos_rows(old)
    yield from ledger_rows(ReplicaGroup(found, part.options.group_size))


_MAX_BATCH_ROWS = ReadOptions().max_batch_rows

COLUMNS = (
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


def _read(part: ReplicasPart) -> Iterator[pa.RecordBatch]:
    rows = ({**row_of(COLUMNS, row), "terms": list(row.terms.items())} for row in read_part(part))
    yield from batches_of(table_schema(COLUMNS), rows, _MAX_BATCH_ROWS)


TABLE = Table(
    "diff",
    "one row per range of indexes (CommitLog: positions) on which replicas agree or differ; needs `replicas`",
    COLUMNS,
    plan_replicas,
    _read,
)
