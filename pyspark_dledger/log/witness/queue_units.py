"""Finds the messages in a part of the log that a broker's ConsumeQueues know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.log.io.files import ignore_error, map_reads
from pyspark_dledger.log.io.queue_files import FILLER_SIZE, Queue, QueueFile, Units, queues, readable_units
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PROBE = 1024
"""Units of one probe, 20 KiB: a damaged page of 4 KiB does not decide it."""
_NO_PAIRS = np.empty((0, 2), np.int64)


class Messages(NamedTuple):
    """Messages that units point to: their positions, and their sizes in bytes."""

    pos: Longs
    size: Longs


def messages_in(start: int, end: int, root: Path) -> Messages:
    """The messages in ``[start, end)`` that units of any queue point to, by position; each once."""
    pairs = np.unique(np.concatenate([*(found for _, found in messages_by_queue(start, end, root)), _NO_PAIRS]), axis=0)
    return Messages(pairs[:, 0], pairs[:, 1])


def messages_by_queue(start: int, end: int, root: Path) -> Iterator[tuple[Queue, Longs]]:
    """For each queue, position and size of the messages in ``[start, end)`` that its units point to."""
    found = queues(root, ignore_error)
    return zip(found, map_reads(lambda queue: _of_queue(queue, start, end), found, str(root)), strict=True)


def _of_queue(queue: Queue, start: int, end: int) -> Longs:
    """Position and size of the queue's messages in ``[start, end)``."""
    probes = [(file, number) for file in queue.files for number in range(0, file.units, _PROBE)]
    low, high = 0, len(probes)
    while low < high:
        middle = (low + high) // 2
        if _is_before(*probes[middle], start):
            low = middle + 1
        else:
            high = middle
    return np.concatenate([*_from(probes[max(low - 1, 0) :], start, end), _NO_PAIRS])


def _from(probes: list[tuple[QueueFile, int]], start: int, end: int) -> Iterator[Longs]:
    is_found = False
    for number, (file, first) in enumerate(probes):
        for units in readable_units(file, first, first + _PROBE):
            units = units[_is_message(units)]
            pos = units["commitLogOffset"].astype(np.int64)
            size = units["size"].astype(np.int64)
            is_inside = (pos >= start) & (pos + size <= end)
            if not is_inside.any() and (is_found or number > 1):
                return
            is_found = is_found or bool(is_inside.any())
            yield np.stack([pos[is_inside], size[is_inside]], axis=1)


def _is_message(units: Units) -> Bools:
    pos, size = units["commitLogOffset"], units["size"]
    return np.asarray((pos >= 0) & (pos <= HIGHEST_BASE) & (size >= MIN_MESSAGE_SIZE) & (size < FILLER_SIZE))


def _is_before(file: QueueFile, start: int, pos: int) -> bool:
    """Whether most units of a probe point below a position."""
    for units in readable_units(file, start, start + _PROBE):
        found = units["commitLogOffset"][_is_message(units)]
        # Fillers stand before the first unit of a queue.
        return bool(np.median(found) < pos) if len(found) else bool((units["size"] == FILLER_SIZE).any())
    return False
