"""A broker's ConsumeQueues: their files, their units, and the index that they prove committed.

A broker dispatches only committed messages (`DLedgerCommitLog.getData`), so a unit proves that its message is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import ConsumeQueueUnit, decode_records, record_dtype
from pyspark_dledger.format.layout import (
    CONSUME_QUEUE_UNIT,
    CONSUME_QUEUE_UNIT_SIZE,
    ENTRY_HEADER_SIZE,
    is_segment_name,
)
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import FolderEntry, last_data, map_reads, open_file, scan_folder

Units = npt.NDArray[Any]
"""Units as a numpy array with the fields of `layout.CONSUME_QUEUE_UNIT`, big-endian as on disk."""

FOLDER = "consumequeue"
UNIT_DTYPE = record_dtype(CONSUME_QUEUE_UNIT)
# 1.25 MiB in memory.
UNITS_AT_ONCE = 64 * 1024
# ConsumeQueue.fillPreBlank: (0, this, 0) fills a file before the first unit of a queue that begins in its middle.
FILLER_SIZE = 0x7FFFFFFF
# Among the last units that were written, at least one of so many is intact.
_LAST_UNITS = 1024
_NO_UNITS = np.empty(0, UNIT_DTYPE)


@dataclass(frozen=True)
class QueueFile:
    """One file of a queue: ``first`` is the queue offset of its first unit, ``units`` its capacity in units."""

    path: str
    name: str
    first: int
    units: int


@dataclass(frozen=True)
class Queue:
    """One queue of a topic, with its files by name."""

    topic: str
    queue_id: int
    files: tuple[QueueFile, ...]


def queues(root: Path) -> list[Queue]:
    """The queues below ``root/consumequeue`` that have files, by topic and queue id.

    Other folders, and folders that cannot be listed, are ignored. No file is read.
    """
    found = []
    folder = root / FOLDER
    for topic in folder_entries(folder):
        for queue in folder_entries(folder / topic.name) if topic.is_dir() else []:
            is_queue = queue.name.isdecimal() and queue.is_dir()
            files = queue_files(folder / topic.name / queue.name) if is_queue else ()
            if files:
                found.append(Queue(topic.name, int(queue.name), files))
    return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))


def queue_files(folder: Path) -> tuple[QueueFile, ...]:
    """The files of the queue in a folder, in order; empty if the folder cannot be read."""
    files = []
    for entry in folder_entries(folder):
        if is_segment_name(entry.name) and entry.is_file():
            try:
                units = entry.stat().st_size // CONSUME_QUEUE_UNIT_SIZE
            except OSError:
                continue
            files.append(QueueFile(entry.path, entry.name, int(entry.name) // CONSUME_QUEUE_UNIT_SIZE, units))
    return tuple(sorted(files, key=lambda file: file.first))


def read_units(file: QueueFile, start: int = 0, stop: int | None = None) -> Iterator[Units]:
    """The units ``[start, stop)`` of a file, counted from its beginning, in chunks of at most `UNITS_AT_ONCE`.

    Without `stop`, up to the last written unit. Units before it that were never written are zeros. Ends early if the
    file becomes shorter or cannot be read.
    """
    stop = written_units(file) if stop is None else min(stop, file.units)
    try:
        opened = open_file(file.path)
    except OSError:
        return
    with opened:
        while start < stop:
            size = min(UNITS_AT_ONCE, stop - start) * CONSUME_QUEUE_UNIT_SIZE
            try:
                data = opened.read(start * CONSUME_QUEUE_UNIT_SIZE, size)
            except OSError:
                return
            units = decode_records(data, CONSUME_QUEUE_UNIT)
            if not len(units):
                return
            yield units
            start += len(units)


def written_units(file: QueueFile) -> int:
    """The number of units up to the last one that is not zeros. Searched from the end; holes are skipped."""
    try:
        with open_file(file.path) as opened:
            end = last_data(opened, 0, opened.size())
    except OSError:
        return 0
    return min(-(-end // CONSUME_QUEUE_UNIT_SIZE), file.units)


def proven_index(root: Path, segments: list[Segment], end: int) -> int | None:
    """The highest index below the log's `end` whose message a ConsumeQueue of `root` points to, or None.

    Units without a message are ignored: a queue can be ahead of a truncated log.
    """
    return index_proven_by(((unit.commit_log_offset, unit.size) for unit in last_units(root)), segments, end)


def index_proven_by(messages: Iterable[tuple[int, int]], segments: list[Segment], end: int) -> int | None:
    """The highest index of the messages (position and size in bytes) that are entries below `end`, or None."""
    for offset, size in sorted(messages, reverse=True):
        pos = offset - ENTRY_HEADER_SIZE
        segment = segment_at(segments, pos) if pos < end else None
        header = entry_at(segment, pos) if segment is not None else None
        if header is not None and header.body_size == size:
            return header.index
    return None


def last_units(root: Path) -> Iterator[ConsumeQueueUnit]:
    """The last written unit of each queue."""
    for unit in map_reads(_last_unit, queues(root), str(root)):
        if unit is not None:
            yield unit


def _last_unit(queue: Queue) -> ConsumeQueueUnit | None:
    for file in reversed(queue.files):
        written = written_units(file)
        units = next(read_units(file, max(0, written - _LAST_UNITS), written), _NO_UNITS)
        units = units[(units["size"] > 0) & (units["size"] < FILLER_SIZE)]
        if len(units):
            return ConsumeQueueUnit(*units[-1].tolist())
    return None


def folder_entries(folder: Path) -> list[FolderEntry]:
    """The files and folders in a folder; empty if it cannot be read. Raises StoreError for a remote folder."""
    try:
        return [entry for entry in scan_folder(folder) if entry.is_dir() or entry.is_file()]
    except OSError:
        return []
