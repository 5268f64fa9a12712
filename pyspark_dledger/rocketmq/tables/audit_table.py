"""The ``audit`` table: disagreements of the log and the ConsumeQueues, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.queue_files import last_units
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, plan_read
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, table_schema
from pyspark_dledger.rocketmq import message_arrays
from pyspark_dledger.rocketmq.consume_queue.store_queues import is_selected, queue_root
from pyspark_dledger.rocketmq.tables.queue_audit import AuditPart, QueueAudit

# The messages of a part are all in the memory of its task.
_PART_BYTES = 128 * 1024 * 1024
_MAX_EMPTY_PARTS = 1000

COLUMNS = (
    TableColumn("code", pa.string(), "see below"),
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("queueOffset", pa.int64(), "number in the queue"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
    TableColumn("expected", pa.string(), "what was expected"),
    TableColumn("found", pa.string(), "what was found"),
)
_SCHEMA = table_schema(COLUMNS)


def plan(log: StoreView, options: ReadOptions) -> list[AuditPart]:
    """Parts of the log. Raises StoreError if the queues cannot be read."""
    root = queue_root(log)
    if log.paths.only is not None:
        raise StoreError(f"{log.path}: expected a whole store to audit, found one segment: give the root's path")
    options = replace(options, max_partition_bytes=options.max_partition_bytes or _PART_BYTES)
    bound = committed_bound(log, options) if log.ledger_segments else None
    reason = bound.reason if bound is not None and bound.index is None else None
    partitions = plan_read(log, message_arrays.COLUMNS, options, Filters(kind=("message",)))
    end = log.max_offset
    highest = max((unit.commit_log_offset for unit in last_units(root)), default=0)
    return [
        AuditPart(log.path, options, root, partition, low, high, end, reason)
        for partition, low, high in _windows(partitions, log.engine.NAME, end, highest)
    ]


def _windows(
    partitions: list[Partition], engine: str, log_end: int, highest: int
) -> Iterator[tuple[Partition, int, int]]:
    """Partitions with their positions; together they cover all positions from the first one on.

    Positions without messages are split, because any number of units may point to them: missing files, and positions
    after the end of the log up to the `highest` unit.
    """
    empty = Partition((), engine)
    starts = [partition.ranges[0].start for partition in partitions]
    ends = [*starts[1:], log_end][: len(starts)]
    for partition, low, high in zip(partitions, starts, ends, strict=True):
        if all(isinstance(part, FileGap) for part in partition.ranges):
            yield from ((empty, *split) for split in _split(low, high))
        else:
            yield partition, low, high
    *after, (last, _) = _split(log_end, highest + 1)
    yield from ((empty, *split) for split in after)
    yield empty, last, INT64_MAX


def _split(low: int, high: int) -> Iterator[tuple[int, int]]:
    """At least one range, and at most `_MAX_EMPTY_PARTS`."""
    step = max(_PART_BYTES, -(-(high - low) // _MAX_EMPTY_PARTS))
    for start in range(low, max(high, low + 1), step):
        yield start, min(start + step, high)


def read(part: AuditPart) -> Iterator[pa.RecordBatch]:
    """The rows of a part, by code, then in the order of the log.

    Raises StoreError if a message is in no queue, and it is unknown whether it is committed.
    """
    rows = (row for row in QueueAudit(part).rows() if is_selected(row["topic"], row["queueId"], part.options))
    yield from batches_of(_SCHEMA, rows, part.options.max_batch_rows)


TABLE = Table(
    "audit",
    "one row per disagreement of log and ConsumeQueue",
    COLUMNS,
    plan,
    read,
)
