"""The table ``findings``: what `verify` finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, row_of, table_schema
from pyspark_dledger.log.verify.verify_store import FindingsPart, plan_findings, read_findings

_MAX_BATCH_ROWS = ReadOptions().max_batch_rows

COLUMNS = (
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


def _plan(log: StoreView, options: ReadOptions) -> list[FindingsPart]:
    """The parts, with files that cannot be read: they have findings."""
    return plan_findings(log if options.unread is None else StoreView(log.path, replace(options, unread=None)))


def _read(part: FindingsPart) -> Iterator[pa.RecordBatch]:
    rows = (row_of(COLUMNS, finding) for finding in read_findings(part))
    yield from batches_of(table_schema(COLUMNS), rows, _MAX_BATCH_ROWS)


TABLE = Table("findings", "one row per finding", COLUMNS, _plan, _read)
