"""Finds the messages in a part of the log that a broker's ConsumeQueues know: what their units say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error, map_reads
from pyspark_dledger.log.io.queue_files import FILLER_SIZE, UNIT_DTYPE, Queue, QueueFile, Units, queues, read_units
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PROBE = 1024
"""Units of one probe, 20 KiB: a damaged page of 4 KiB does not decide it."""
_MAX_EMPTY = 8
"""After so many probes without a message, nothing more is written."""
_NO_UNITS = np.empty(0, UNIT_DTYPE)
_FIELDS = ("commitLogOffset", "size", "tagsCode")


class Messages(NamedTuple):
    """Messages that units point to: their positions, and their sizes in bytes."""

    pos: Longs
    size: Longs


class QueueMessages(NamedTuple):
    """Messages that the units of one queue point to: their positions, sizes in bytes, queue offsets and tags codes."""

    pos: Longs
    size: Longs
    queue_offset: Longs
    tags_code: Longs


_NOTHING = QueueMessages(*[np.empty(0, np.int64)] * 4)


def messages_in(start: int, end: int, root: Path) -> Messages:
    """The messages in ``[start, end)`` that units of any queue point to, by position; each once."""
    found = [_NOTHING, *(found for _, found in messages_by_queue(start, end, root))]
    pairs = np.unique(np.concatenate([np.stack([each.pos, each.size], axis=1) for each in found]), axis=0)
    pairs = pairs[pairs.sum(axis=1) <= end]
    return Messages(pairs[:, 0], pairs[:, 1])


def messages_by_queue(
    start: int, end: int, root: Path, on_unreadable: OnUnreadable = ignore_error
) -> Iterator[tuple[Queue, QueueMessages]]:
    """For each queue, the messages that begin in ``[start, end)``, as its units say."""
    found = queues(root, on_unreadable)
    messages = map_reads(lambda queue: _of_queue(queue, start, end, on_unreadable), found, str(root))
    return zip(found, messages, strict=True)


def _of_queue(queue: Queue, start: int, end: int, on_unreadable: OnUnreadable) -> QueueMessages:
    """The queue's messages that begin in ``[start, end)``."""
    probes = [(file, number) for file in queue.files for number in range(0, file.units, _PROBE)]
    low, high = 0, len(probes)
    while low < high:
        middle = (low + high) // 2
        if _is_before(*probes[middle], start):
            low = middle + 1
        else:
            high = middle
    parts = [_NOTHING, *_from(probes[max(low - 1, 0) :], start, end, on_unreadable)]
    return QueueMessages(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _from(
    probes: list[tuple[QueueFile, int]], start: int, end: int, on_unreadable: OnUnreadable
) -> Iterator[QueueMessages]:
    """The messages of the probes, up to one that mostly points after `end`, or to the end of what is written."""
    empty = 0
    for file, first in probes:
        units = _probe(file, first, on_unreadable)
        numbers = np.flatnonzero(_is_message(units))
        pos, size, tags_code = (units[name][numbers].astype(np.int64) for name in _FIELDS)
        inside = (pos >= start) & (pos < end)
        yield QueueMessages(pos[inside], size[inside], file.first + first + numbers[inside], tags_code[inside])
        empty = 0 if len(pos) else empty + 1
        if empty > _MAX_EMPTY or (len(pos) and np.median(pos) >= end):
            return


def _probe(file: QueueFile, start: int, on_unreadable: OnUnreadable = ignore_error) -> Units:
    try:
        return next(read_units(file, start, start + _PROBE), _NO_UNITS)
    except UnreadableError as error:
        on_unreadable(error)
        return _NO_UNITS


def _is_message(units: Units) -> Bools:
    pos, size = units["commitLogOffset"], units["size"]
    return np.asarray((pos >= 0) & (pos <= HIGHEST_BASE) & (size >= MIN_MESSAGE_SIZE) & (size < FILLER_SIZE))


def _is_before(file: QueueFile, start: int, pos: int) -> bool:
    """Whether most units of a probe point below a position."""
    units = _probe(file, start)
    found = units["commitLogOffset"][_is_message(units)]
    # Fillers stand before the first unit of a queue.
    return bool(np.median(found) < pos) if len(found) else bool((units["size"] == FILLER_SIZE).any())
