"""Reads the units of a ConsumeQueue, found by rank, by queueOffset and by position in the log.

Source: RocketMQ 5.3.3 ``ConsumeQueue``, ``ConsumeQueueExt``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT, CONSUME_QUEUE_UNIT_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error, map_reads, raise_error
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    UNIT_DTYPE,
    UNITS_AT_ONCE,
    Queue,
    QueueFile,
    Units,
    open_units,
    queues,
    read_units,
    written_units,
)
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# A tagsCode is a hash of 32 bits, the time to deliver in milliseconds, or, up to this, an address in consumequeue_ext.
LAST_EXT_ADDRESS = -(2**31) - 1
# Units to read first when searching; each further read doubles.
_FIRST_READ_UNITS = 64
_PROBE = 1024
"""Units of one probe, 20 KiB: a damaged page of 4 KiB does not decide it."""
_MAX_EMPTY = 8
"""After so many probes without a message, nothing more is written."""
_NO_UNITS = np.empty(0, UNIT_DTYPE)


def is_written(units: Units) -> Bools:
    """Which units are not all zeros."""
    return np.asarray((units["commitLogOffset"] != 0) | (units["size"] != 0) | (units["tagsCode"] != 0))


def is_filler(units: Units) -> Bools:
    """Which units are RocketMQ's fillers."""
    return np.asarray((units["commitLogOffset"] == 0) & (units["size"] == FILLER_SIZE) & (units["tagsCode"] == 0))


def has_message(units: Units) -> Bools:
    """Which units point to a message: written, and no filler."""
    return np.asarray((units["size"] > 0) & ~is_filler(units))


def is_possible(units: Units) -> Bools:
    """Which units point to a message of a possible position and size."""
    pos, size = units["commitLogOffset"], units["size"]
    return np.asarray((pos >= 0) & (pos <= HIGHEST_BASE) & (size >= MIN_MESSAGE_SIZE) & (size < FILLER_SIZE))


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


_NO_MESSAGES = QueueMessages(*[np.empty(0, np.int64)] * 4)


class QueueUnits:
    """The units of a queue by rank: 0 is the first unit of the first file, ranks continue over gaps between files.

    Counted are all units that its files have room for, up to the last written one. `on_unreadable` is called for what
    cannot be read; those units are left out. A search takes a unit that cannot be read for a later one: ``has_failed``
    says that there was one.
    """

    def __init__(self, queue: Queue, on_unreadable: OnUnreadable = raise_error) -> None:
        self.queue = queue
        self._on_unreadable = on_unreadable
        self.has_failed = False
        files = list(queue.files)
        written = 0
        while files and not (written := self._written(files[-1])):
            files.pop()
        self.files = files
        sizes = [*(file.units for file in files[:-1]), written] if files else []
        self._ranks = [0, *accumulate(sizes)]
        self.count = self._ranks[-1]

    def _written(self, file: QueueFile) -> int:
        try:
            return written_units(file)
        except UnreadableError as error:
            self._on_unreadable(error)
            return 0

    @property
    def name(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.queue.name

    @property
    def end(self) -> int:
        """The queueOffset after the last unit; 0 for a queue without units (RocketMQ's maxOffset)."""
        return self.queue_offset(self.count - 1) + 1 if self.count else 0

    def queue_offset(self, rank: int) -> int:
        """The queueOffset of the unit with a rank."""
        number = self._file_of(rank)
        return self.files[number].first + rank - self._ranks[number]

    def _file_of(self, rank: int) -> int:
        return min(bisect_right(self._ranks, rank) - 1, len(self.files) - 1)

    def bounds(self, min_offset: int) -> tuple[int, int]:
        """The first queueOffset whose message is at or after `min_offset` in the log, and the end of the queue."""
        rank = self.lower_bound(min_offset)
        return self.queue_offset(rank) if rank < self.count else self.end, self.end

    def rank_of(self, queue_offset: int) -> int | None:
        """The rank of the unit at `queue_offset`, None if no file has room for it."""
        for file, first, end in zip(self.files, self._ranks, self._ranks[1:], strict=False):
            if file.first <= queue_offset < file.first + end - first:
                return first + queue_offset - file.first
        return None

    def file_of(self, queue_offset: int) -> QueueFile | None:
        """The file with room for the unit at `queue_offset`; None without one."""
        place = bisect_right(self.queue.files, queue_offset, key=lambda file: file.first) - 1
        file = self.queue.files[place] if place >= 0 else None
        return file if file is not None and queue_offset < file.first + file.units else None

    def read(self, start: int, stop: int) -> tuple[Longs, Units]:
        """The queueOffsets and units of the ranks ``[start, stop)``, including unwritten ones."""
        numbers, parts = [np.empty(0, np.int64)], [_NO_UNITS]
        for offset, units in self._blocks(start, stop, self._on_unreadable):
            parts.append(units)
            numbers.append(np.arange(offset, offset + len(units), dtype=np.int64))
        return np.concatenate(numbers), np.concatenate(parts)

    def chunks(self, start: int, stop: int) -> Iterator[tuple[Longs, Units]]:
        """As `read`, in blocks of bounded size."""
        for first in range(start, stop, UNITS_AT_ONCE):
            yield self.read(first, min(first + UNITS_AT_ONCE, stop))

    def _blocks(self, start: int, stop: int, on_unreadable: OnUnreadable) -> Iterator[tuple[int, Units]]:
        """Adjacent units of the ranks ``[start, stop)``, each with the queueOffset of the first one."""
        for file, first, end in zip(self.files, self._ranks, self._ranks[1:], strict=False):
            yield from _blocks_of(file, max(start, first) - first, min(stop, end) - first, on_unreadable)

    def at(self, first: int, count: int) -> Units:
        """`count` units from a queueOffset on, of all files; zeros for those that were not written or read."""
        found = np.zeros(count, UNIT_DTYPE)
        files = self.queue.files
        start_file = max(bisect_right(files, first, key=lambda file: file.first) - 1, 0)
        end_file = bisect_left(files, first + count, key=lambda file: file.first)
        for file in files[start_file:end_file]:
            start, stop = max(first - file.first, 0), min(first + count - file.first, file.units)
            for offset, units in _blocks_of(file, start, stop, self._on_unreadable):
                found[offset - first : offset - first + len(units)] = units
        return found

    def lower_bound(self, offset: int) -> int:
        """The rank of the first unit of a message at or after `offset` in the log; leading fillers are skipped.

        A binary search, because the units of a queue ascend. The result never falls as `offset` rises, even if the
        units do not ascend.
        """
        with ExitStack() as opened:
            files: dict[int, OpenFile] = {}

            def file(number: int) -> OpenFile:
                if number not in files:
                    files[number] = opened.enter_context(open_units(self.files[number]))
                return files[number]

            # Leading fillers are skipped.
            low, _ = self._first(0, file, lambda units: ~is_filler(units))
            high = self.count
            while low < high:
                middle = (low + high) // 2
                rank, pos = self._first(middle, file, has_message)
                if pos is not None and pos < offset:
                    low = rank + 1
                else:
                    high = middle
        return low

    def _first(
        self, rank: int, file: Callable[[int], OpenFile], is_wanted: Callable[[Units], Bools]
    ) -> tuple[int, int | None]:
        """The rank and commitLogOffset of the first wanted unit from `rank` on; without one, where the search ended."""
        count = _FIRST_READ_UNITS
        while rank < self.count:
            units = self._read_in_file(rank, count, file)
            found = np.flatnonzero(is_wanted(units))
            if len(found):
                return rank + int(found[0]), int(units["commitLogOffset"][found[0]])
            if not len(units):
                break
            rank, count = rank + len(units), min(2 * count, UNITS_AT_ONCE)
        return rank, None

    def _read_in_file(self, rank: int, count: int, file: Callable[[int], OpenFile]) -> Units:
        """Up to `count` units of one file, from a rank on; none where they cannot be read."""
        number = self._file_of(rank)
        first, end = self._ranks[number], self._ranks[number + 1]
        at, wanted = (rank - first) * CONSUME_QUEUE_UNIT_SIZE, min(count, end - rank) * CONSUME_QUEUE_UNIT_SIZE
        try:
            data = file(number).read(at, wanted)
        except (OSError, UnreadableError):
            self.has_failed = True
            return _NO_UNITS
        return decode_records(data, CONSUME_QUEUE_UNIT)

    def pointing_into(self, start: int, end: int) -> QueueMessages:
        """The possible messages that begin in ``[start, end)`` of the log, found although units may be damaged."""
        low = bisect_left(range(-(-self.count // _PROBE)), start, key=self._median)
        parts = [_NO_MESSAGES, *self._messages_from(max(low - 1, 0), start, end)]
        return QueueMessages(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _messages_from(self, probe: int, start: int, end: int) -> Iterator[QueueMessages]:
        """The messages of the probes, up to one that mostly points after `end`, or to the end of what is written."""
        empty = 0
        for number in range(probe, -(-self.count // _PROBE)):
            offsets, units = self.read(number * _PROBE, (number + 1) * _PROBE)
            which = is_possible(units)
            pos = units["commitLogOffset"][which].astype(np.int64)
            inside = (pos >= start) & (pos < end)
            size, tags_code = (units[name][which].astype(np.int64) for name in ("size", "tagsCode"))
            yield QueueMessages(pos[inside], size[inside], offsets[which][inside], tags_code[inside])
            empty = 0 if len(pos) else empty + 1
            if empty > _MAX_EMPTY or (len(pos) and np.median(pos) >= end):
                return

    def _median(self, probe: int) -> int:
        """The position to which most units of a probe point at least."""
        blocks = [units for _, units in self._blocks(probe * _PROBE, (probe + 1) * _PROBE, ignore_error)]
        units = np.concatenate([_NO_UNITS, *blocks])
        found = units["commitLogOffset"][is_possible(units)]
        # Fillers stand before the first unit of a queue.
        without = -1 if (units["size"] == FILLER_SIZE).any() else INT64_MAX
        return int(np.median(found)) if len(found) else without


def _blocks_of(file: QueueFile, start: int, stop: int, on_unreadable: OnUnreadable) -> Iterator[tuple[int, Units]]:
    """The units ``[start, stop)`` of a file, each block with the queueOffset of the first one."""
    try:
        for units in read_units(file, start, stop) if start < stop else ():
            yield file.first + start, units
            start += len(units)
    except UnreadableError as error:
        on_unreadable(error)


def messages_by_queue(
    start: int, end: int, root: Path, on_unreadable: OnUnreadable = ignore_error
) -> Iterator[tuple[Queue, QueueMessages]]:
    """For each queue, the messages that begin in ``[start, end)``, as its units say."""

    def of_queue(queue: Queue) -> QueueMessages:
        return QueueUnits(queue, on_unreadable).pointing_into(start, end)

    found = queues(root, on_unreadable)
    return zip(found, map_reads(of_queue, found, str(root)), strict=True)


def messages_in(start: int, end: int, root: Path) -> Messages:
    """The messages in ``[start, end)`` that units of any queue point to, by position; each once."""
    found = [_NO_MESSAGES, *(found for _, found in messages_by_queue(start, end, root))]
    pairs = np.unique(np.concatenate([np.stack([each.pos, each.size], axis=1) for each in found]), axis=0)
    pairs = pairs[pairs.sum(axis=1) <= end]
    return Messages(pairs[:, 0], pairs[:, 1])
