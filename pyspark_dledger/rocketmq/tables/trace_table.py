"""The ``trace`` table: the steps of all messages' lives, to be joined with keys or ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of
from pyspark_dledger.rocketmq.lives.trace import TraceEvent, Tracer

COLUMNS = (
    TableColumn("uniqKey", pa.string(), "property UNIQ_KEY: what clients call msgId"),
    TableColumn("keys", pa.string(), "property KEYS"),
    TableColumn("timestamp", TIMESTAMP, "when it happened; null for `passed`", "time"),
    TableColumn("event", pa.string(), "see below"),
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("queueOffset", pa.int64(), "number in the queue"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message that says so; null for `passed`", "offset"),
    TableColumn("untilTimestamp", TIMESTAMP, "until when it waits, or is invisible", "until"),
    TableColumn("attempt", pa.int32(), "number of the check or retry"),
    TableColumn("consumerGroup", pa.string(), "whose step it is"),
    TableColumn("isInQueue", pa.bool_(), "whether the place's ConsumeQueue unit points to it"),
    TableColumn("passedBy", pa.list_(pa.string()), "groups with an offset after the place"),
)
_READ = ("commitLogOffset",)


@dataclass(frozen=True)
class TracePart:
    """Messages that one task reads."""

    path: str
    options: ReadOptions
    partition: Partition


def _plan(log: StoreView, options: ReadOptions) -> list[TracePart]:
    return [TracePart(log.path, options, each) for each in plan_read(log, _READ, options, Filters(kind=("message",)))]


def _read(part: TracePart) -> Iterator[pa.RecordBatch]:
    events = _events(StoreView(part.path, part.options), part.partition)
    yield from batches_of(COLUMNS, events, part.options.max_batch_rows)


def _events(log: StoreView, partition: Partition) -> Iterator[TraceEvent]:
    tracer = Tracer(log)
    for batch in read_partition(partition):
        for offset in batch.column("commitLogOffset").drop_null().to_pylist():
            message = message_at(log.segments, offset, log.segment_end)
            if message is not None:
                yield from tracer.events(offset, message)


TABLE = Table("trace", "one row per step of a message's life: join it with keys or ids", COLUMNS, _plan, _read)
