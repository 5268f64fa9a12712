"""Findings about ConsumeQueues: units that do not point to a message of their size and queue.

Offsets rise along a queue, so units for one segment are adjacent, and each segment is checked with its own units. A
binary search finds their bounds. It assigns each unit to exactly one segment, even in a damaged queue whose offsets do
not rise; units that do not match there are looked up one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.codec import decode_consume_queue_unit
from pyspark_dledger.format.column_values import numbers_of
from pyspark_dledger.format.distinct_numbers import distinct
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import has_message_magic, parse_properties
from pyspark_dledger.format.spec import COMMITLOG, Segment
from pyspark_dledger.log.io.entry_reads import entry_at, read_at, segment_at
from pyspark_dledger.log.io.files import OnUnreadable, OpenFile, open_file
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    Queue,
    QueueFile,
    Units,
    queues,
    read_units,
    written_units,
)
from pyspark_dledger.log.verify.broker_checks import message_at
from pyspark_dledger.log.verify.report import Report

Numbers = npt.NDArray[np.int64]

QUEUE_COLUMNS = ("topic", "queueId", "queueOffset")
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
"""The property with further queues of a message."""

# Bytes of the log whose units are in memory at the same time.
_WINDOW = 64 * 1024 * 1024


class WrittenUnits:
    """The units of one queue that were written at construction, numbered from 0 over all its files.

    `on_unreadable` is called for what cannot be read; those units are left out.
    """

    def __init__(self, queue: Queue, on_unreadable: OnUnreadable) -> None:
        self.queue = queue
        self._on_unreadable = on_unreadable
        written = [(file, self._written(file)) for file in queue.files]
        self.files = [(file, count) for file, count in written if count]
        self._starts = [0]
        for _, count in self.files:
            self._starts.append(self._starts[-1] + count)

    @property
    def count(self) -> int:
        return self._starts[-1]

    def _written(self, file: QueueFile) -> int:
        try:
            return written_units(file)
        except UnreadableError as error:
            self._on_unreadable(error)
            return 0

    def _read(self, file: QueueFile, start: int, stop: int) -> Iterator[Units]:
        try:
            yield from read_units(file, start, stop)
        except UnreadableError as error:
            self._on_unreadable(error)

    @cached_property
    def _first_offsets(self) -> list[int]:
        """The offset of each file's first unit."""
        return [_offset_in(file, 0) for file, _ in self.files]

    def lower_bound(self, offset: int) -> int:
        """The number of the first unit that points to `offset` or after it; it never falls as `offset` rises."""
        place = bisect_left(self._first_offsets, offset) - 1
        if place < 0:
            return 0
        file, count = self.files[place]
        try:
            opened = open_file(file.path)
        except OSError:
            return self._starts[place]
        with opened:
            return self._starts[place] + _lower_bound(opened, count, offset)

    def read(self, start: int, stop: int) -> UnitBatch:
        """The units ``[start, stop)``, without those that were never written."""
        parts = []
        for place, ((file, _), (first, end)) in enumerate(zip(self.files, pairwise(self._starts), strict=True)):
            low, high = max(start, first), min(stop, end)
            number = low - first
            for units in self._read(file, number, high - first) if low < high else ():
                offsets, sizes = units["commitLogOffset"].astype(np.int64), units["size"].astype(np.int64)
                batch = UnitBatch(
                    offsets, sizes, np.arange(number, number + len(units)), np.full(len(units), place, np.int64)
                )
                parts.append(batch.take(~_is_unused(batch)))
                number += len(units)
        return join(parts)


@dataclass(frozen=True)
class UnitBatch:
    """Units as columns: offset and size as stored, number in their file, and number of the file."""

    offsets: Numbers
    sizes: Numbers
    numbers: Numbers
    files: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice) -> UnitBatch:
        return UnitBatch(self.offsets[which], self.sizes[which], self.numbers[which], self.files[which])


def join(parts: list[UnitBatch]) -> UnitBatch:
    columns = [(part.offsets, part.sizes, part.numbers, part.files) for part in parts]
    if not columns:
        empty = np.empty(0, np.int64)
        return UnitBatch(empty, empty, empty, empty)
    return UnitBatch(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _is_unused(units: UnitBatch) -> npt.NDArray[np.bool_]:
    """Which units are zeros, or the filler before the first unit of a queue that begins in the middle of a file."""
    return (units.offsets == 0) & ((units.sizes == 0) | (units.sizes == FILLER_SIZE))


def _offset_in(file: QueueFile, number: int) -> int:
    data = read_at(file.path, number * CONSUME_QUEUE_UNIT_SIZE, CONSUME_QUEUE_UNIT_SIZE)
    return decode_consume_queue_unit(data).commit_log_offset if len(data) == CONSUME_QUEUE_UNIT_SIZE else INT64_MAX


def _lower_bound(file: OpenFile, count: int, offset: int) -> int:
    """A unit that cannot be read counts as a later one; it is reported when its range is read."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        try:
            data = file.read(middle * CONSUME_QUEUE_UNIT_SIZE, CONSUME_QUEUE_UNIT_SIZE)
        except OSError:
            data = b""
        if len(data) == CONSUME_QUEUE_UNIT_SIZE and decode_consume_queue_unit(data).commit_log_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


class QueuePlaces(NamedTuple):
    """Where messages are in their queues: the number of each queue, -1 for none, and the queue offsets."""

    queue: Numbers
    offset: Numbers


class QueueCheck:
    """Compares the messages of ``[low, high)``, in order, with the units that point there."""

    def __init__(
        self, root: Path, list_segments: Callable[[], list[Segment]], low: int, high: int, report: Report
    ) -> None:
        self._list_segments = list_segments
        self._report = report
        on_unreadable = partial(report_failed_read, report)
        found = queues(root, on_unreadable) if low < high else []
        self._queues = [WrittenUnits(queue, on_unreadable) for queue in found]
        self._files = [file for queue in self._queues for file, _ in queue.files]
        self._numbers = {(one.queue.topic, one.queue.queue_id): n for n, one in enumerate(self._queues)}
        self._queue_of_file = np.array([n for n, one in enumerate(self._queues) for _ in one.files], np.int64)
        self._first_of_file = np.array([file.first for file in self._files], np.int64)
        self.contradicted: list[tuple[int, int]] = []
        """Where messages with the finding messageQueue begin and end."""
        borders = [*range(low, high, _WINDOW), high] if self._queues else []
        self._windows = iter(pairwise(borders))
        self._bounds = [queue.lower_bound(low) for queue in self._queues]
        self._units = join([])

    @cached_property
    def _segments(self) -> list[Segment]:
        return self._list_segments()

    def places_of(self, batch: pa.RecordBatch) -> QueuePlaces:
        """Where messages say that they are: columns `QUEUE_COLUMNS` of rows of the log."""
        topics = pc.dictionary_encode(batch.column("topic"))
        names = topics.dictionary.to_pylist()
        ids = sorted({queue_id for _, queue_id in self._numbers}) or [0]
        numbers = [[self._numbers.get((name, queue_id), -1) for queue_id in ids] for name in [*names, None]]
        name, queue_id, offset = (
            numbers_of(values, -1) for values in (topics.indices, batch.column("queueId"), batch.column("queueOffset"))
        )
        column = np.minimum(np.searchsorted(ids, queue_id), len(ids) - 1)
        is_known = np.array(ids)[column] == queue_id
        return QueuePlaces(np.where(is_known, np.array(numbers, np.int64)[name, column], -1), offset)

    def add(self, offsets: Numbers, sizes: Numbers, places: QueuePlaces) -> None:
        """Compare messages: their positions, ascending, their sizes, and where they say that they are."""
        if not len(offsets):
            return
        last = int(offsets[-1])
        while len(self._units) or self._load():
            count = int(np.searchsorted(self._units.offsets, last, "right"))
            units, self._units = self._units.take(slice(0, count)), self._units.take(slice(count, None))
            place = np.minimum(np.searchsorted(offsets, units.offsets), len(offsets) - 1)
            fits = (offsets[place] == units.offsets) & (sizes[place] == units.sizes)
            self._look_up(units.take(~fits))
            is_own = places.queue[place] == self._queue_of_file[units.files]
            is_own &= places.offset[place] == self._first_of_file[units.files] + units.numbers
            self._check_places(units.take(fits & ~is_own))
            if len(self._units):
                return

    def _check_places(self, units: UnitBatch) -> None:
        """Report units whose message says that it is elsewhere, if it is not there too."""
        for number, of_file, size, offset in zip(
            units.files.tolist(), units.numbers.tolist(), units.sizes.tolist(), units.offsets.tolist(), strict=True
        ):
            file, queue = self._files[number], self._queues[int(self._queue_of_file[number])].queue
            if self._report.is_full("messageQueue", file.path):
                self._report.add_uncounted("messageQueue", file.path, 1)
                continue
            found = message_at(self._segments, offset)
            if found is None:
                continue
            message, data = found
            topic = decode_utf8(data[message.topic_start : message.topic_start + message.topic_length])
            raw = data[message.properties_start : message.properties_start + message.properties_length]
            is_listed = queue.topic in parse_properties(raw).get(MULTI_DISPATCH, "").split(",")
            if is_listed or self._has_unit(topic, message.queue_id, message.queue_offset, offset):
                continue
            self.contradicted.append((offset, offset + size))
            self._report.add(
                "messageQueue",
                file.path,
                f"expected a message of {queue.topic}/{queue.queue_id} at queue offset {file.first + of_file}, found "
                f"{topic}/{message.queue_id} and {message.queue_offset} at commitLogOffset {offset}",
                offset=of_file * CONSUME_QUEUE_UNIT_SIZE,
                pos=offset,
            )

    def _has_unit(self, topic: str, queue_id: int, queue_offset: int, offset: int) -> bool:
        """Whether the unit at a queue offset points to the message at `offset`."""
        number = self._numbers.get((topic, queue_id))
        files = self._queues[number].queue.files if number is not None else ()
        return any(
            0 <= queue_offset - file.first < file.units and _offset_in(file, queue_offset - file.first) == offset
            for file in files
        )

    def finish(self) -> None:
        while len(self._units) or self._load():
            self._look_up(self._units)
            self._units = join([])

    def _load(self) -> bool:
        """Load the units of the next window with units, by offset; false after the last one."""
        for _, high in self._windows:
            bounds = [queue.lower_bound(high) for queue in self._queues]
            parts = []
            first_file = 0
            for queue, start, stop in zip(self._queues, self._bounds, bounds, strict=True):
                batch = queue.read(start, stop)
                parts.append(UnitBatch(batch.offsets, batch.sizes, batch.numbers, batch.files + first_file))
                first_file += len(queue.files)
            self._bounds = bounds
            units = join(parts)
            if len(units):
                self._units = units.take(np.argsort(units.offsets, kind="stable"))
                return True
        return False

    def _look_up(self, units: UnitBatch) -> None:
        if len(units):
            look_up(self._segments, self._files, units, self._report)


def look_up(segments: list[Segment], files: list[QueueFile], units: UnitBatch, report: Report) -> None:
    """Add a finding for each unit that does not point to a message of its size."""
    for number in distinct(units.files).tolist():
        file = files[number]
        of_file = units.take(units.files == number)
        for place in range(len(of_file)):
            if report.is_full("consumeQueueUnit", file.path):
                # A queue of another log has millions of such units.
                report.add_uncounted("consumeQueueUnit", file.path, len(of_file) - place)
                break
            offset, size = int(of_file.offsets[place]), int(of_file.sizes[place])
            _look_up_one(segments, file, int(of_file.numbers[place]), offset, size, report)


def _look_up_one(segments: list[Segment], file: QueueFile, number: int, offset: int, size: int, report: Report) -> None:
    found, index = _message_at(segments, offset)
    if found == size:
        return
    there = f"one of {found} bytes" if found is not None else "none"
    report.add(
        "consumeQueueUnit",
        file.path,
        f"expected a message of {size} bytes at commitLogOffset {offset} (queue offset {file.first + number}), "
        f"found {there}",
        offset=number * CONSUME_QUEUE_UNIT_SIZE,
        index=index,
        pos=offset,
    )


def _message_at(segments: list[Segment], offset: int) -> tuple[int | None, int | None]:
    """The size of the message at an offset, and the index of its entry; None without one."""
    segment = segment_at(segments, offset)
    if segment is None:
        return None, None
    if segment.source != COMMITLOG:
        header = entry_at(segment, offset - ENTRY_HEADER_SIZE)
        return (header.body_size, header.index) if header is not None else (None, None)
    head = read_at(segment.path, offset - segment.base, MIN_MESSAGE_SIZE)
    if not has_message_magic(head, 0, len(head)):
        return None, None
    return int.from_bytes(head[:4], "big", signed=True), None


def report_failed_read(report: Report, error: UnreadableError) -> None:
    """Report a read that failed. A file that cannot be opened is reported once, by the check of all files."""
    if error.offset is not None:
        report.add_unreadable(error)


def check_outside(
    found: list[WrittenUnits], segments: list[Segment], low: int | None, high: int, root: Path, report: Report
) -> None:
    """Check units that point below `low`, the beginning of the log (None: not known), or at or after its end `high`."""
    expired = 0
    for queue in found:
        bottom, top = queue.lower_bound(low) if low is not None else 0, queue.lower_bound(high)
        head = queue.read(0, bottom)
        if low is not None:
            is_below = (head.offsets < low) & (head.offsets >= 0) & (head.sizes > 0)
            expired += int(is_below.sum())
            look_up(segments, [file for file, _ in queue.files], head.take(~is_below), report)
        tail = queue.read(max(top, bottom), queue.count)
        is_beyond = (tail.offsets >= high) & (tail.sizes > 0)
        look_up(segments, [file for file, _ in queue.files], tail.take(~is_beyond), report)
        beyond = tail.take(is_beyond)
        if len(beyond):
            file = queue.files[int(beyond.files[0])][0]
            offset, number = int(beyond.offsets[0]), int(beyond.numbers[0])
            report.add(
                "consumeQueueBeyondEnd",
                file.path,
                f"expected units below the log's end at {high}, found {len(beyond)} from commitLogOffset {offset} "
                f"(queue offset {file.first + number})",
                offset=number * CONSUME_QUEUE_UNIT_SIZE,
                pos=offset,
            )
    if expired:
        report.add(
            "consumeQueueBelowStart",
            root / FOLDER,
            f"expected units from the log's beginning at {low}, found {expired} below",
        )
