"""The ``consumers`` table: how far each consumer group has read its queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_dledger.format.layout import SCHEDULE_TOPIC
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, table_schema
from pyspark_dledger.log.units.stored import is_selected, queue_root
from pyspark_dledger.rocketmq.broker.config_files import SCHEDULE_GROUP, BrokerConfig, read_config

COLUMNS = (
    TableColumn("consumerGroup", pa.string(), f"`{SCHEDULE_GROUP}`: the broker's delivery of delays"),
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("consumerOffset", pa.int64(), "next queue offset to read; null without one"),
    TableColumn("minOffset", pa.int64(), "first queue offset left, and the one after the last; null without queue"),
    TableColumn("maxOffset", pa.int64(), "first queue offset left, and the one after the last; null without queue"),
    TableColumn("lag", pa.int64(), "maxOffset - consumerOffset; negative if the queue lost its end"),
    TableColumn("lost", pa.int64(), "expired unread: minOffset - consumerOffset"),
)
_SCHEMA = table_schema(COLUMNS)


@dataclass(frozen=True)
class ConsumersPart:
    """The whole table."""

    root: Path
    min_offset: int
    options: ReadOptions


def plan(log: StoreView, options: ReadOptions) -> list[ConsumersPart]:
    """One part. Raises StoreError if there is no config, or no root is known."""
    root = queue_root(log)
    read_config(root)
    return [ConsumersPart(root, _min_offset(log, root), options)]


def _min_offset(log: StoreView, root: Path) -> int:
    """The first position of the store, also if only its DLedger part was opened."""
    if log.paths.node is not None and not log.paths.commitlog_dirs and (root / "commitlog").is_dir():
        log = StoreView(str(root), replace(log.options, self_id=log.paths.node))
    return log.segments[0].base if log.segments else 0


def read(part: ConsumersPart) -> Iterator[pa.RecordBatch]:
    """A row for each group and queue, by group, topic and queue."""
    bounds = {
        (queue.topic, queue.queue_id): QueueUnits(queue).bounds(part.min_offset)
        for queue in queues(part.root)
        if is_selected(queue.topic, queue.queue_id, part.options)
    }
    rows = (row for row in _rows(read_config(part.root), bounds) if _is_wanted(row, part.options))
    yield from batches_of(_SCHEMA, rows, part.options.max_batch_rows)


def _is_wanted(row: dict[str, Any], options: ReadOptions) -> bool:
    if row["topic"] is None:
        return options.topic is None and options.queue_id is None
    return is_selected(row["topic"], row["queueId"], options)


def _rows(config: BrokerConfig, bounds: dict[tuple[str, int], tuple[int, int]]) -> Iterator[dict[str, Any]]:
    delays = {level - 1: offset for level, offset in config.delay_offsets.items()}
    offsets = {(group, topic): queues for (topic, group), queues in config.offsets.items()}
    if delays:
        offsets[SCHEDULE_GROUP, SCHEDULE_TOPIC] = delays
    known: dict[str, set[int]] = {}
    for topic, queue_id in bounds:
        known.setdefault(topic, set()).add(queue_id)
    idle = set(config.groups) - {group for group, _ in offsets}
    for group, topic in sorted({*offsets, *((group, "") for group in idle)}):
        if group in idle:
            yield dict.fromkeys(_SCHEMA.names) | {"consumerGroup": group}
            continue
        own = offsets[group, topic]
        for queue_id in sorted({*own, *known.get(topic, ()), *_configured(config, topic)}):
            yield _row(group, topic, queue_id, own.get(queue_id), bounds.get((topic, queue_id)))


def _configured(config: BrokerConfig, topic: str) -> Iterable[int]:
    """The queues of a topic by its config; the delay topic has one for each level, and its config does not count."""
    return range(config.topic_queues.get(topic, 0)) if topic != SCHEDULE_TOPIC else ()


def _row(group: str, topic: str, queue_id: int, offset: int | None, bounds: tuple[int, int] | None) -> dict[str, Any]:
    first, end = bounds if bounds is not None else (None, None)
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "consumerOffset": offset,
        "minOffset": first,
        "maxOffset": end,
        "lag": end - offset if end is not None and offset is not None else None,
        "lost": max(0, first - max(offset, 0)) if first is not None and offset is not None else None,
    }


_DOC = "one row per consumer group and queue: config/consumerOffset.json against the ConsumeQueue"
TABLE = Table("consumers", _DOC, COLUMNS, plan, read)
