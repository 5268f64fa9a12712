"""The tables ``consumeQueue``, ``indexFile`` and ``consumers``: a broker's queues, index of keys, and readers.

Sources: RocketMQ 5.3.3 ``ConsumeQueue``, ``ConsumeQueueExt``, ``BatchConsumeQueue``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.arrow_functions import column_of
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.layout import BATCH_UNIT, BATCH_UNIT_SIZE, MIN_MESSAGE_SIZE, SCHEDULE_TOPIC
from pyspark_dledger.log.io import key_files
from pyspark_dledger.log.io.broker_config import SCHEDULE_GROUP, BrokerConfig, read_config
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.queue_files import QueueFile, Units, batch_queues, queues, read_units, written_units
from pyspark_dledger.log.io.queue_units import LAST_EXT_ADDRESS, QueueUnits, is_filler, is_written
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, relative_file, table_schema, timestamps
from pyspark_dledger.log.units.stored import is_selected, queue_root

KINDS = ("unit", "delay", "ext", "filler", "batch")
_UNIT, _DELAY, _EXT, _FILLER, _BATCH = range(len(KINDS))

# Units of one task: about a second of Spark's transport.
_PART_UNITS = 2_000_000
_BATCH_UNITS_PER_READ = 64 * 1024

COLUMNS = (
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("queueOffset", pa.int64(), "number of the unit; of a batch the first message's"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
    TableColumn("size", pa.int32(), "bytes of the message"),
    TableColumn("tagsCode", pa.int64(), "depends on kind"),
    TableColumn(
        "kind",
        pa.string(),
        "`unit` (tagsCode: hash of the tags), `delay` (delivery time in ms), `ext` (address in consumequeue_ext), "
        "`filler` (no message), `batch`",
    ),
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("problem", pa.string(), "what was expected and found; null if sound"),
)
_SCHEMA = table_schema(COLUMNS)


@dataclass(frozen=True)
class FileUnits:
    """The units of one file of a queue; ``before`` is the file before it in the queue."""

    topic: str
    queue_id: int
    file: QueueFile
    before: QueueFile | None
    relative_path: str
    is_batch: bool = False


@dataclass(frozen=True)
class QueuePart:
    """Files that one task reads; `log_end` is the position where the log ends."""

    files: tuple[FileUnits, ...]
    batch_rows: int
    log_end: int


def plan(log: StoreView, options: ReadOptions) -> list[QueuePart]:
    """Parts of about two million units, without empty files. Raises StoreError if no root is known."""
    root = queue_root(log)
    packs: list[list[FileUnits]] = []
    room = 0
    for file in _selected_files(log.paths, root, options):
        units = written_units(file.file) if not file.is_batch else file.file.units
        if not units:
            continue
        if not packs or units > room:
            packs.append([])
            room = _PART_UNITS
        packs[-1].append(file)
        room -= units
    return [QueuePart(tuple(pack), options.max_batch_rows, log.max_offset) for pack in packs]


def _selected_files(paths: StorePaths, root: Path, options: ReadOptions) -> Iterator[FileUnits]:
    for queue in queues(root):
        if is_selected(queue.topic, queue.queue_id, options):
            for before, file in zip((None, *queue.files), queue.files, strict=False):
                yield FileUnits(queue.topic, queue.queue_id, file, before, relative_file(paths, file.path))
    for queue in batch_queues(root):
        if is_selected(queue.topic, queue.queue_id, options):
            for file in queue.files:
                path = relative_file(paths, file.path)
                yield FileUnits(queue.topic, queue.queue_id, file, None, path, is_batch=True)


def read(part: QueuePart) -> Iterator[pa.RecordBatch]:
    """The written units of a part."""
    for file in part.files:
        for batch in _batch_units(file) if file.is_batch else _units(file, part.log_end):
            for start in range(0, batch.num_rows, part.batch_rows):
                yield batch.slice(start, part.batch_rows)


def _units(file: FileUnits, log_end: int) -> Iterator[pa.RecordBatch]:
    before = _last_offset(file.before)
    ascent = _Ascent(before, before if before < log_end else -1, log_end)
    first = file.file.first
    for units in read_units(file.file):
        numbers = np.flatnonzero(is_written(units))
        written = units[numbers]
        kinds = _kinds(written, file.topic == SCHEDULE_TOPIC)
        problems = ascent.problems(written, kinds)
        if len(written):
            yield _record_batch(file, first + numbers, written, kinds, problems)
        first += len(units)


def _kinds(units: Units, is_delay: bool) -> npt.NDArray[np.int8]:
    codes = units["tagsCode"]
    kinds = np.full(len(units), _UNIT, np.int8)
    if is_delay:
        kinds[codes > INT32_MAX] = _DELAY
    kinds[codes <= LAST_EXT_ADDRESS] = _EXT
    kinds[is_filler(units)] = _FILLER
    return kinds


def _last_offset(file: QueueFile | None) -> int:
    """The commitLogOffset of a file's last unit, -1 without one."""
    if file is None:
        return -1
    stop = written_units(file)
    for units in read_units(file, max(stop - 1, 0), stop):
        return int(units["commitLogOffset"][0]) if not is_filler(units)[0] else -1
    return -1


@dataclass
class _Ascent:
    """Whether the units of a queue ascend; ``highest`` is the highest position so far before the log's end."""

    before: int
    highest: int
    log_end: int

    def problems(self, units: Units, kinds: npt.NDArray[np.int8]) -> list[str | None]:
        """The problem of each following unit, None for a sound one.

        A truncation of the log leaves units, and new ones overwrite only the first of them.
        """
        problems: list[str | None] = [None] * len(units)
        with_message = np.flatnonzero(kinds != _FILLER)
        if not len(with_message):
            return problems
        offsets, sizes = units["commitLogOffset"][with_message].astype(np.int64), units["size"][with_message]
        inside = np.where(offsets < self.log_end, offsets, -1)
        highest = np.maximum.accumulate(np.concatenate([[self.highest], inside]))
        previous = np.concatenate([[self.before], offsets[:-1]])
        least = np.maximum(highest[:-1], previous)
        for number in np.flatnonzero((offsets <= least) | (sizes < MIN_MESSAGE_SIZE)).tolist():
            is_last = previous[number] == least[number]
            problems[with_message[number]] = _problem(
                int(offsets[number]), int(sizes[number]), int(least[number]), "the unit" if is_last else "a unit"
            )
        self.before, self.highest = int(offsets[-1]), int(highest[-1])
        return problems


def _problem(offset: int, size: int, least: int, whose: str) -> str:
    if size < MIN_MESSAGE_SIZE:
        return f"expected a size of at least {MIN_MESSAGE_SIZE}, found {size}"
    if offset < 0:
        return f"expected a commitLogOffset, found {offset}"
    return f"expected a commitLogOffset above {least}, as {whose} before has, found {offset}"


def _batch_units(file: FileUnits) -> Iterator[pa.RecordBatch]:
    for start in range(0, file.file.units, _BATCH_UNITS_PER_READ):
        data = read_existing(file.file.path, start * BATCH_UNIT_SIZE, _BATCH_UNITS_PER_READ * BATCH_UNIT_SIZE)
        units = decode_records(data, BATCH_UNIT)
        units = units[units["size"] > 0]
        if len(units):
            kinds = np.full(len(units), _BATCH, np.int8)
            yield _record_batch(file, units["baseOffset"], units, kinds, [None] * len(units))


def _record_batch(
    file: FileUnits, queue_offsets: npt.NDArray[Any], units: Units, kinds: npt.NDArray[np.int8], problems: list[Any]
) -> pa.RecordBatch:
    columns = {
        "topic": pa.repeat(pa.scalar(file.topic, pa.string()), len(units)),
        "queueId": pa.repeat(pa.scalar(file.queue_id, pa.int32()), len(units)),
        "queueOffset": column_of(queue_offsets.astype(np.int64)),
        "commitLogOffset": column_of(units["commitLogOffset"].astype(np.int64)),
        "size": column_of(units["size"].astype(np.int32)),
        "tagsCode": column_of(units["tagsCode"].astype(np.int64)),
        "kind": pc.take(pa.array(KINDS), column_of(kinds)),
        "file": pa.repeat(pa.scalar(file.relative_path, pa.string()), len(units)),
        "problem": pa.array(problems, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns, _SCHEMA)


CONSUME_QUEUE = Table("consumeQueue", "one row per written ConsumeQueue unit", COLUMNS, plan, read)


# The index of keys

INDEX_FILE_COLUMNS = (
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("position", pa.int32(), "number in the file, from 1"),
    TableColumn("keyHash", pa.int32(), "absolute Java hash of `topic#key`"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
    TableColumn("storeTimestamp", TIMESTAMP, "whole seconds after the file's begin"),
    TableColumn("previous", pa.int32(), "unit before it in the hash slot; 0 for none"),
)
_INDEX_FILE_SCHEMA = table_schema(INDEX_FILE_COLUMNS)


@dataclass(frozen=True)
class IndexFilePart:
    """The units ``[start, stop)`` of a file."""

    file: key_files.KeyFile
    relative_path: str
    start: int
    stop: int
    batch_rows: int


def plan_index_files(log: StoreView, options: ReadOptions) -> list[IndexFilePart]:
    """Parts of at most two million units. Raises StoreError if no root is known."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir with the folder {key_files.FOLDER}, found a log folder without "
            "its root: give the root's path"
        )
    parts = []
    for file in key_files.key_files(root):
        name = relative_file(log.paths, str(file.path))
        for start in range(1, file.count, _PART_UNITS):
            stop = min(start + _PART_UNITS, file.count)
            parts.append(IndexFilePart(file, name, start, stop, options.max_batch_rows))
    return parts


def read_index_file(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """The units of a part, in the order of writing."""
    for start in range(part.start, part.stop, part.batch_rows):
        units = part.file.read(start, min(start + part.batch_rows, part.stop))
        if not len(units):
            return
        stored = part.file.header.begin_timestamp + units["seconds"].astype(np.int64) * 1000
        columns = {
            "file": pa.repeat(pa.scalar(part.relative_path, pa.string()), len(units)),
            "position": pa.array(np.arange(start, start + len(units), dtype=np.int32)),
            "keyHash": pa.array(units["keyHash"].astype(np.int32)),
            "commitLogOffset": pa.array(units["commitLogOffset"].astype(np.int64)),
            "storeTimestamp": timestamps(stored),
            "previous": pa.array(units["previous"].astype(np.int32)),
        }
        yield pa.RecordBatch.from_pydict(columns, _INDEX_FILE_SCHEMA)


INDEX_FILE = Table(
    "indexFile", "one row per unit of RocketMQ's index of keys", INDEX_FILE_COLUMNS, plan_index_files, read_index_file
)


# Consumer groups

CONSUMERS_COLUMNS = (
    TableColumn("consumerGroup", pa.string(), f"`{SCHEDULE_GROUP}`: the broker's delivery of delays"),
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("consumerOffset", pa.int64(), "next queue offset to read; null without one"),
    TableColumn("minOffset", pa.int64(), "first queue offset left, and the one after the last; null without queue"),
    TableColumn("maxOffset", pa.int64(), "first queue offset left, and the one after the last; null without queue"),
    TableColumn("lag", pa.int64(), "maxOffset - consumerOffset; negative if the queue lost its end"),
    TableColumn("lost", pa.int64(), "expired unread: minOffset - consumerOffset"),
)


@dataclass(frozen=True)
class ConsumersPart:
    """The whole table."""

    root: Path
    min_offset: int
    options: ReadOptions


def plan_consumers(log: StoreView, options: ReadOptions) -> list[ConsumersPart]:
    """One part. Raises StoreError if there is no config, or no root is known."""
    root = queue_root(log)
    read_config(root)
    if log.paths.node is not None and not log.paths.commitlog_dirs and (root / "commitlog").is_dir():
        # Only the DLedger part of the store was opened.
        log = StoreView(str(root), replace(log.options, self_id=log.paths.node))
    return [ConsumersPart(root, log.segments[0].base if log.segments else 0, options)]


def read_consumers(part: ConsumersPart) -> Iterator[pa.RecordBatch]:
    """A row for each group and queue, by group, topic and queue."""
    bounds = {
        (queue.topic, queue.queue_id): QueueUnits(queue).bounds(part.min_offset)
        for queue in queues(part.root)
        if is_selected(queue.topic, queue.queue_id, part.options)
    }
    options = part.options
    takes_idle = options.topic is None and options.queue_id is None
    rows = (
        row
        for row in _consumers(read_config(part.root), bounds)
        if (takes_idle if row["topic"] is None else is_selected(row["topic"], row["queueId"], options))
    )
    yield from batches_of(CONSUMERS_COLUMNS, rows, options.max_batch_rows)


def _consumers(config: BrokerConfig, bounds: dict[tuple[str, int], tuple[int, int]]) -> Iterator[dict[str, Any]]:
    offsets = config.group_offsets
    known: dict[str, set[int]] = {}
    for topic, queue_id in bounds:
        known.setdefault(topic, set()).add(queue_id)
    idle = set(config.groups) - {group for group, _ in offsets}
    for group, topic in sorted({*offsets, *((group, "") for group in idle)}):
        if group in idle:
            yield _consumer(group, None, None, None, None)
            continue
        own = offsets[group, topic]
        # The delay topic has a queue for each level, and its config does not count.
        configured = range(config.topic_queues.get(topic, 0)) if topic != SCHEDULE_TOPIC else ()
        for queue_id in sorted({*own, *known.get(topic, ()), *configured}):
            yield _consumer(group, topic, queue_id, own.get(queue_id), bounds.get((topic, queue_id)))


def _consumer(
    group: str, topic: str | None, queue_id: int | None, offset: int | None, bounds: tuple[int, int] | None
) -> dict[str, Any]:
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


CONSUMERS = Table(
    "consumers",
    "one row per consumer group and queue: config/ (JSON or RocksDB) against the ConsumeQueue",
    CONSUMERS_COLUMNS,
    plan_consumers,
    read_consumers,
)
