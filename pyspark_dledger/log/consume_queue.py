"""What a broker's ConsumeQueue proves: a broker dispatches committed messages only (`DLedgerCommitLog.getData`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pyspark_dledger.format.codec import ConsumeQueueUnit, decode_consume_queue_unit
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.entries import entry_at, segment_at


def proven_index(root: Path, segments: list[Segment], end: int) -> int | None:
    """The highest index whose message a ConsumeQueue of `root` points to, below the log's `end`; None if there is none.

    A unit that points nowhere proves nothing (a queue can be ahead of a log that was cut).
    """
    units = sorted(last_units(root), key=lambda unit: unit.commit_log_offset, reverse=True)
    for unit in units:
        pos = unit.commit_log_offset - ENTRY_HEADER_SIZE
        segment = segment_at(segments, pos) if pos < end else None
        header = entry_at(segment, pos) if segment is not None else None
        if header is not None and header.body_size == unit.size:
            return header.index
    return None


def last_units(root: Path) -> Iterator[ConsumeQueueUnit]:
    """The last unit that was written to each queue."""
    for queue in _folders(root / "consumequeue", 2):
        for file in sorted(_entries(queue), key=lambda entry: entry.name, reverse=True):
            unit = _last_unit(file)
            if unit is not None:
                yield unit
                break


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder but FIFOs and the like; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir() or entry.is_file()]
    except OSError:
        return []


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """The folders `depth` levels below: topic, then queue."""
    for entry in _entries(folder):
        if entry.is_dir():
            yield from [Path(entry.path)] if depth == 1 else _folders(Path(entry.path), depth - 1)


def _last_unit(file: os.DirEntry[str]) -> ConsumeQueueUnit | None:
    """The last unit of a file, which is filled from its start; found by halving, because most of it may be a hole."""
    try:
        with open(file.path, "rb", buffering=0) as stream:
            return _last_written(stream.fileno())
    except OSError:
        return None


def _last_written(descriptor: int) -> ConsumeQueueUnit | None:
    low, high = 0, os.fstat(descriptor).st_size // CONSUME_QUEUE_UNIT_SIZE
    last = None
    while low < high:
        middle = (low + high) // 2
        data = os.pread(descriptor, CONSUME_QUEUE_UNIT_SIZE, middle * CONSUME_QUEUE_UNIT_SIZE)
        unit = decode_consume_queue_unit(data) if len(data) == CONSUME_QUEUE_UNIT_SIZE else None
        if unit is not None and unit.size > 0:
            last, low = unit, middle + 1
        else:
            high = middle
    return last
