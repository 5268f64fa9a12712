"""The ``lost`` table: what is lost of a log, as far as its indexes and queues know it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.fields import camel_case
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.tables.table import TableColumn, row_of, whole_table
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, lost_in_group

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


def lost_rows(found: Iterable[LostMessage]) -> Iterator[dict[str, Any]]:
    """The rows of lost messages, whose times are in microseconds."""
    times = ("first_store_timestamp", "last_store_timestamp")
    for lost in found:
        yield row_of(COLUMNS, lost) | {camel_case(name): getattr(lost, name) for name in times}


TABLE = whole_table(
    "lost",
    "one row per lost message, or per range of lost bytes",
    COLUMNS,
    lambda log: lost_rows(lost_in_group(log).messages),
)
