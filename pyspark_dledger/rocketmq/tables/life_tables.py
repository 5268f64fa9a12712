"""The tables of what happens to messages: ``transactions``, ``timers`` and ``pop``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from pyspark_dledger.common.integers import microseconds
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.log.io.rocks_records import pop_records
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, relative_file, table_schema
from pyspark_dledger.log.units.stored import queue_root
from pyspark_dledger.rocketmq.lives.pops import DUE, IN_FLIGHT, pops, revived_offsets
from pyspark_dledger.rocketmq.lives.timers import waiting_timers
from pyspark_dledger.rocketmq.lives.topics import stored_times
from pyspark_dledger.rocketmq.lives.transactions import Transaction, transactions

Part = tuple[str, ReadOptions]
Rows = Iterator[dict[str, Any]]

_TOPIC = TableColumn("topic", pa.string(), "name of the topic")
_QUEUE_ID = TableColumn("queueId", pa.int32(), "queue of the topic")
_UNIQ_KEY = TableColumn("uniqKey", pa.string(), "property UNIQ_KEY: what clients call msgId")
_PROBLEM = TableColumn("problem", pa.string(), "what was expected and found; null if sound")


def _table(name: str, doc: str, columns: tuple[TableColumn, ...], rows: Callable[[StoreView], Rows]) -> Table:
    """A table of one part, because a row needs messages of the whole log."""
    schema = table_schema(columns)

    def read(part: Part) -> Iterator[pa.RecordBatch]:
        path, options = part
        yield from batches_of(schema, rows(StoreView(path, options)), options.max_batch_rows)

    return Table(name, doc, columns, lambda log, options: [(log.path, options)], read)


def _transaction_rows(log: StoreView) -> Rows:
    last = stored_times(log)[1]
    return (_transaction_row(each, last) for each in transactions(log))


def _transaction_row(found: Transaction, last: int | None) -> dict[str, Any]:
    end = found.ended if found.ended is not None else last
    return {
        "uniqKey": found.uniq_key,
        "state": found.state,
        "producerGroup": found.producer_group,
        "topic": found.topic,
        "queueId": found.queue_id,
        "commitLogOffset": found.offset,
        "preparedTimestamp": microseconds(found.prepared),
        "checks": found.checks,
        "lastCheckTimestamp": _micros(found.last_check),
        "endTimestamp": _micros(found.ended),
        "endCommitLogOffset": found.end_offset,
        "ageMs": end - found.prepared if end is not None else None,
    }


def _micros(milliseconds: int | None) -> int | None:
    return microseconds(milliseconds) if milliseconds is not None else None


def _timer_rows(log: StoreView) -> Rows:
    for each in waiting_timers(log, queue_root(log)):
        yield {
            "file": relative_file(log.paths, each.path),
            "position": each.position,
            "kind": each.kind,
            "topic": each.topic,
            "queueId": each.queue_id,
            "uniqKey": each.uniq_key,
            "writtenTimestamp": _micros(each.written),
            "dueTimestamp": microseconds(each.due),
            "commitLogOffset": each.offset,
            "size": each.size,
            "problem": each.problem,
        }


def _pop_rows(log: StoreView) -> Rows:
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


TRANSACTIONS = _table(
    "transactions",
    "one row per transaction: its half message, joined with what ended it",
    (
        _UNIQ_KEY,
        TableColumn("state", pa.string(), "see below"),
        TableColumn("producerGroup", pa.string(), "whom the broker asks"),
        _TOPIC,
        _QUEUE_ID,
        TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
        TableColumn("preparedTimestamp", TIMESTAMP, "when the half message was stored"),
        TableColumn("checks", pa.int32(), "how often the broker asked"),
        TableColumn("lastCheckTimestamp", TIMESTAMP, "when it asked last"),
        TableColumn("endTimestamp", TIMESTAMP, "when the end was stored"),
        TableColumn("endCommitLogOffset", pa.int64(), "position of the committed message, or of the one given up"),
        TableColumn("ageMs", pa.int64(), "from the half message to the end, or to the log's last message"),
    ),
    _transaction_rows,
)

TIMERS = _table(
    "timers",
    "one row per timer that waits, of the timer log or a RocksDB",
    (
        TableColumn("file", pa.string(), "relative to the store's root"),
        TableColumn("position", pa.int64(), "of the unit in the timer log"),
        TableColumn("kind", pa.string(), "see below"),
        _TOPIC,
        _QUEUE_ID,
        _UNIQ_KEY,
        TableColumn("writtenTimestamp", TIMESTAMP, "when the unit was written"),
        TableColumn("dueTimestamp", TIMESTAMP, "until when it waits"),
        TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
        TableColumn("size", pa.int32(), "bytes of the message"),
        _PROBLEM,
    ),
    _timer_rows,
)

POP = _table(
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
