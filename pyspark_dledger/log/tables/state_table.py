"""The table ``state``: one row about a store."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.state import State, state_of
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, row_of, table_schema

COLUMNS = (
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


def _read(state: State) -> Iterator[pa.RecordBatch]:
    row = row_of(COLUMNS, state)
    row["epochs"] = list(state.epochs.items()) if state.epochs is not None else None
    for name in (column.name for column in COLUMNS if column.type == TIMESTAMP):
        row[name] = 1000 * row[name] if row[name] is not None else None
    yield from batches_of(table_schema(COLUMNS), [row], 1)


TABLE = Table(
    "state",
    "one row: what the store is and how far it goes",
    COLUMNS,
    lambda log, _: [state_of(log)],
    _read,
)
