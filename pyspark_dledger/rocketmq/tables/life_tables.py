"""The tables of what happens to messages: ``transactions``, ``timers``, ``pop`` and ``trace``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.integers import microseconds
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.rocks_database import pop_records
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, whole_table
from pyspark_dledger.log.units.stored import queue_root
from pyspark_dledger.rocketmq.lives.pops import DUE, IN_FLIGHT, pops, revived_offsets
from pyspark_dledger.rocketmq.lives.timers import waiting_timers
from pyspark_dledger.rocketmq.lives.topics import stored_times
from pyspark_dledger.rocketmq.lives.trace import TraceEvent, Tracer
from pyspark_dledger.rocketmq.lives.transactions import transactions

_TOPIC = TableColumn("topic", pa.string(), "name of the topic")
_QUEUE_ID = TableColumn("queueId", pa.int32(), "queue of the topic")
_OFFSET = TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)", "offset")
_UNIQ_KEY = TableColumn("uniqKey", pa.string(), "property UNIQ_KEY: what clients call msgId")
_PROBLEM = TableColumn("problem", pa.string(), "what was expected and found; null if sound")


def _pop_rows(log: StoreView) -> Iterator[dict[str, Any]]:
    revived = revived_offsets(log)
    for each in pops(log):
        if isinstance(each, tuple):
            yield {"checkpointOffset": each[0], "problem": each[1]}
            continue
        for queue_offset in each.queue_offsets:
            yield {
                "topic": each.topic,
                "queueId": each.queue_id,
                "queueOffset": queue_offset,
                "consumerGroup": each.group,
                "state": each.state_of(queue_offset, revived),
                "popTimestamp": microseconds(each.popped),
                "visibleTimestamp": microseconds(each.visible),
                "checkpointOffset": each.offset,
                "ackOffset": each.acknowledged.get(queue_offset),
            }
    last = stored_times(log)[1] or 0
    for record in pop_records(log.paths.root) if log.paths.root is not None else ():
        yield {
            "topic": record.topic,
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "consumerGroup": record.group,
            "state": IN_FLIGHT if record.visible > last else DUE,
            "popTimestamp": microseconds(record.popped),
            "visibleTimestamp": microseconds(record.visible),
        }


TRANSACTIONS = whole_table(
    "transactions",
    "one row per transaction: its half message, joined with what ended it",
    (
        _UNIQ_KEY,
        TableColumn("state", pa.string(), "see below"),
        TableColumn("producerGroup", pa.string(), "whom the broker asks"),
        _TOPIC,
        _QUEUE_ID,
        _OFFSET,
        TableColumn("preparedTimestamp", TIMESTAMP, "when the half message was stored", "prepared"),
        TableColumn("checks", pa.int32(), "how often the broker asked"),
        TableColumn("lastCheckTimestamp", TIMESTAMP, "when it asked last", "last_check"),
        TableColumn("endTimestamp", TIMESTAMP, "when the end was stored", "ended"),
        TableColumn(
            "endCommitLogOffset", pa.int64(), "position of the committed message, or of the one given up", "end_offset"
        ),
        TableColumn("ageMs", pa.int64(), "from the half message to the end, or to the log's last message"),
    ),
    transactions,
)

TIMERS = whole_table(
    "timers",
    "one row per timer that waits, of the timer log or a RocksDB",
    (
        TableColumn("file", pa.string(), "relative to the store's root"),
        TableColumn("position", pa.int64(), "of the unit in the timer log"),
        TableColumn("kind", pa.string(), "see below"),
        _TOPIC,
        _QUEUE_ID,
        _UNIQ_KEY,
        TableColumn("writtenTimestamp", TIMESTAMP, "when the unit was written", "written"),
        TableColumn("dueTimestamp", TIMESTAMP, "until when it waits", "due"),
        _OFFSET,
        TableColumn("size", pa.int32(), "bytes of the message"),
        _PROBLEM,
    ),
    lambda log: waiting_timers(log, queue_root(log)),
)

POP = whole_table(
    "pop",
    "one row per popped message and pop",
    (
        _TOPIC,
        _QUEUE_ID,
        TableColumn("queueOffset", pa.int64(), "number in the queue"),
        TableColumn("consumerGroup", pa.string(), "group that popped it"),
        TableColumn("state", pa.string(), "see below"),
        TableColumn("popTimestamp", TIMESTAMP, "when it was popped"),
        TableColumn("visibleTimestamp", TIMESTAMP, "when it is delivered again without an acknowledgement"),
        TableColumn("checkpointOffset", pa.int64(), "commitLogOffset of the checkpoint"),
        TableColumn("ackOffset", pa.int64(), "commitLogOffset of the acknowledgement"),
        _PROBLEM,
    ),
    _pop_rows,
)

TRACE_COLUMNS = (
    _UNIQ_KEY,
    TableColumn("keys", pa.string(), "property KEYS"),
    TableColumn("timestamp", TIMESTAMP, "when it happened; null for `passed`", "time"),
    TableColumn("event", pa.string(), "see below"),
    _TOPIC,
    _QUEUE_ID,
    TableColumn("queueOffset", pa.int64(), "number in the queue"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message that says so; null for `passed`", "offset"),
    TableColumn("untilTimestamp", TIMESTAMP, "until when it waits, or is invisible", "until"),
    TableColumn("attempt", pa.int32(), "number of the check or retry"),
    TableColumn("consumerGroup", pa.string(), "whose step it is"),
    TableColumn("isInQueue", pa.bool_(), "whether the place's ConsumeQueue unit points to it"),
    TableColumn("passedBy", pa.list_(pa.string()), "groups with an offset after the place"),
)


@dataclass(frozen=True)
class TracePart:
    """Messages that one task reads."""

    path: str
    options: ReadOptions
    partition: Partition


def _plan_trace(log: StoreView, options: ReadOptions) -> list[TracePart]:
    return [
        TracePart(log.path, options, each)
        for each in plan_read(log, ("commitLogOffset",), options, Filters(kind=("message",)))
    ]


def _read_trace(part: TracePart) -> Iterator[pa.RecordBatch]:
    events = _events(StoreView(part.path, part.options), part.partition)
    yield from batches_of(TRACE_COLUMNS, events, part.options.max_batch_rows)


def _events(log: StoreView, partition: Partition) -> Iterator[TraceEvent]:
    tracer = Tracer(log)
    for batch in read_partition(partition):
        for offset in batch.column("commitLogOffset").drop_null().to_pylist():
            message = message_at(log.segments, offset, log.segment_end)
            if message is not None:
                yield from tracer.events(offset, message)


TRACE = Table(
    "trace", "one row per step of a message's life: join it with keys or ids", TRACE_COLUMNS, _plan_trace, _read_trace
)
