"""The ``lost`` table: what is lost of a log, as far as its indexes and queues know it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, row_of, table_schema
from pyspark_dledger.rocketmq.lost.lost_messages import lost_in_group

_WITNESSES = (
    "`indexUnits`, `consumeQueue`, `indexFile`, `checkpoint`; `log`: its header is intact; "
    "`neighbours`: their indexes; `replicas`: an intact copy; none for bytes only"
)

COLUMNS = (
    TableColumn("source", pa.string(), "`dledger` or `commitlog`"),
    TableColumn("index", pa.int64(), "of its first entry; null if unknown"),
    TableColumn("term", pa.int64(), "of its entry"),
    TableColumn("pos", pa.int64(), "where its row or the lost bytes began"),
    TableColumn("size", pa.int64(), "bytes of its row or the lost bytes; null if unknown"),
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("queueOffset", pa.int64(), "number in the queue"),
    TableColumn("tagsCode", pa.int64(), "as in its ConsumeQueue unit"),
    TableColumn("keyHashes", pa.list_(pa.int32()), "`keyHash` of its IndexFile units"),
    TableColumn("firstStoreTimestamp", TIMESTAMP, "it was stored between both: to a second, or by its neighbours"),
    TableColumn("lastStoreTimestamp", TIMESTAMP, "it was stored between both: to a second, or by its neighbours"),
    TableColumn("entries", pa.int64(), "1; of lost bytes, how many the indexes around them leave, or null"),
    TableColumn("witnesses", pa.list_(pa.string()), _WITNESSES),
    TableColumn("problem", pa.string(), "what was expected and found"),
    TableColumn("lostOn", pa.list_(pa.string()), "replicas that lost it; none if only `unclearOn` has it"),
    TableColumn(
        "intactOn", pa.list_(pa.string()), "replicas that have it; lost for good if none, and the next two are empty"
    ),
    TableColumn("unclearOn", pa.list_(pa.string()), "replicas with a copy that no check judges"),
    TableColumn("restorableFrom", pa.list_(pa.string()), "where its message is intact: a salvage restores the header"),
    TableColumn("committed", pa.bool_(), "false: of a diverged tail, so it is not lost for good; else null"),
)


def _read(part: tuple[str, ReadOptions]) -> Iterator[pa.RecordBatch]:
    """The lost messages, in the order of the log. Raises StoreError if a witness cannot be read."""
    path, options = part
    rows = (row_of(COLUMNS, lost) for lost in lost_in_group(StoreView(path, options)).messages)
    yield from batches_of(table_schema(COLUMNS), rows, options.max_batch_rows)


TABLE = Table(
    "lost",
    "one row per lost message, or per range of lost bytes",
    COLUMNS,
    lambda log, options: [(log.path, options)],  # the whole table
    _read,
)
