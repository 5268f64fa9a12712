"""Parts of a log, each read by itself: what the ConsumeQueues and the index of keys take of its messages.

Parts are read in any order and wherever the caller has it done; what is written of them is written in the order of the
log. Units and keys of parts that are read elsewhere come through files, so that no process holds those of a whole log.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import FLAG_INNER_BATCH
from pyspark_dledger.format.spec import Filters, ScanRequest, Segment
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.queue_files import Units
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.plan import plan_between
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.dispatch.log_part import LogPart, read_part
from pyspark_dledger.rocketmq.index_file.message_keys import Keys
from pyspark_dledger.rocketmq.message_arrays import Longs, QueueName
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

# How much of it is in memory at a time.
_CHUNK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class LogRangePart:
    """What begins at positions ``[start, end)`` of a segment; ``number`` counts the parts in the order of the log."""

    number: int
    segment: Segment
    start: int
    end: int


@dataclass(frozen=True)
class WantedUnits:
    """What to take of the messages. Topics in `batch_topics` have queues of another kind, and none of these."""

    index: bool
    delays_ms: tuple[int, ...]
    batch_topics: frozenset[str]
    engine: str


class PartCounts(NamedTuple):
    """What a part holds, in numbers.

    ``messages`` have a place in a queue or the index, ``skipped`` rows have none: they are no messages, or ones that no
    queue can have, and ``first_skipped`` says what the first is. ``batches`` are messages of batchconsumequeue.
    ``last_stored`` is the last message's storeTimestamp in milliseconds, 0 without one.
    """

    messages: int
    skipped: int
    first_skipped: str
    batches: int
    last_stored: int


class TakenUnits(NamedTuple):
    """The units and the keys of a chunk of the log, in its order, which ends at a position of it.

    ``queue`` counts into ``names``.
    """

    end: int
    names: list[QueueName]
    queue: Longs
    queue_offset: Longs
    units: Units
    keys: Keys
    counts: PartCounts


def plan_parts(log: StoreView, end: int | None, part_bytes: int) -> tuple[list[LogRangePart], int]:
    """The parts of a log up to a position, and how many bytes are missing between them, of files that are gone."""
    options = replace(log.options, max_partition_bytes=part_bytes, min_partitions=None)
    partitions = plan_between(log, ("pos",), options, Filters(), None, 0, INT64_MAX if end is None else end)
    ranges = [each for partition in partitions for each in partition.ranges]
    missing = sum(each.end - each.start for each in ranges if isinstance(each, FileGap))
    scans = [each for each in ranges if isinstance(each, ScanRequest)]
    return [LogRangePart(number, each.segment, each.start, each.end) for number, each in enumerate(scans)], missing


def in_order(
    wanted: WantedUnits, parts: list[LogRangePart], folder: Path | None, run: MapParts
) -> Iterator[tuple[LogRangePart, Iterable[TakenUnits]]]:
    """What the parts have, in the order of the log; `folder` is where they leave it that are read elsewhere."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
    if run is map_here:
        for part in parts:
            yield part, take(wanted, part)
        return
    assert folder is not None
    folder.mkdir(parents=True)
    try:
        waiting: dict[int, Path] = {}
        following = 0
        for number, path in run(partial(_take_into, wanted, folder), parts):
            waiting[number] = path
            while following in waiting:
                path = waiting.pop(following)
                yield parts[following], taken_from(path)
                path.unlink()
                following += 1
        if following < len(parts):
            raise StoreError(
                f"{folder}: expected {len(parts)} parts, found no end of number {following}: run it once more"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take(wanted: WantedUnits, part: LogRangePart) -> Iterator[TakenUnits]:
    """What a part has, chunk by chunk. Raises StoreError where its segment cannot be read."""
    engine = engine_of(wanted.engine, part.segment)
    pos = part.start
    while pos < part.end:
        chunk = read_part(engine, part.segment, pos, min(part.end, pos + _CHUNK_BYTES), wanted.delays_ms)
        yield taken_of(engine, wanted, chunk)
        pos = chunk.end


def taken_of(engine: Engine, wanted: WantedUnits, chunk: LogPart) -> TakenUnits:
    """What queues and index take of the messages of a chunk."""
    queue, queue_offset, units = chunk.units()
    is_batch = (chunk.found.sys_flag & FLAG_INNER_BATCH) != 0
    of_batch_topic = np.array([topic in wanted.batch_topics for topic, _ in chunk.names.names], bool)
    if of_batch_topic.any():
        is_batch |= of_batch_topic[chunk.found.queue]
    if is_batch.any():
        is_single = ~is_batch[chunk.found.is_dispatched]
        queue, queue_offset, units = queue[is_single], queue_offset[is_single], units[is_single]
    keys = chunk.keys(engine) if wanted.index else Keys(*(np.empty(0, np.int64) for _ in range(3)))
    messages = len(chunk.found)
    counts = PartCounts(messages, chunk.skipped, chunk.first_skipped, int(is_batch.sum()), chunk.last_stored)
    return TakenUnits(chunk.end, chunk.names.names, queue, queue_offset, units, keys, counts)


# Parts that are read elsewhere


def _take_into(wanted: WantedUnits, folder: Path, part: LogRangePart) -> tuple[int, Path]:
    """Read a part and leave what it has in a file. Another attempt at the same part may run at the same time."""
    path = folder / f"{part.number:08d}"
    temporary = folder / f"{path.name}.{uuid.uuid4().hex}"
    with temporary.open("wb") as file:
        for taken in take(wanted, part):
            write_taken(file, taken)
    temporary.rename(path)
    return part.number, path


def write_taken(file: BinaryIO, taken: TakenUnits) -> None:
    """Leave what a chunk has: a line of JSON, then the arrays as numpy writes them. Raises OSError."""
    data = BytesIO()  # of a full disk numpy's own writing to a file does not say that it is full
    data.write(json.dumps([taken.end, taken.names, taken.counts]).encode() + b"\n")
    keys = taken.keys
    for array in (taken.queue, taken.queue_offset, taken.units, keys.offset, keys.stored, keys.key_hash):
        np.save(data, array, allow_pickle=False)
    file.write(data.getbuffer())


def taken_from(path: Path) -> Iterator[TakenUnits]:
    """What was left in a file, chunk by chunk."""
    with path.open("rb") as file:
        while line := file.readline():
            end, names, counts = json.loads(line)
            queue, queue_offset, units, offset, stored, key_hash = (np.load(file, allow_pickle=False) for _ in range(6))
            keys = Keys(offset, stored, key_hash)
            named = [(topic, number) for topic, number in names]
            yield TakenUnits(end, named, queue, queue_offset, units, keys, PartCounts(*counts))
