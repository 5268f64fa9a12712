"""Findings about ConsumeQueues: their files, and the disagreements of dispatched and stored units.

A binary search in each queue assigns each unit to exactly one segment, even in a damaged queue whose offsets do not
rise. So each segment is checked with its own units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.dispatched_rows import Longs, QueueName
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.broker_config import FOLDER as CONFIG
from pyspark_dledger.log.io.broker_config import TOPICS
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.queue_files import FOLDER, UNITS_AT_ONCE, Units, database_queues, file_queues
from pyspark_dledger.log.io.queue_units import QueueUnits, has_message, is_filler, is_written
from pyspark_dledger.log.io.rocks_queues import QueueBounds, UnitPlace, queue_bounds, rocks_folders
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units import comparison
from pyspark_dledger.log.units.comparison import UnitComparison, UnitDifference
from pyspark_dledger.log.units.dispatched import COLUMNS, MessageArrays, arrays_of_batches
from pyspark_dledger.log.units.stored import PassedEnd, StoredQueues, StoredUnits, Unwritten
from pyspark_dledger.log.verify.report import Report

# Bytes of the log whose units are in memory at the same time.
_WINDOW = 64 * 1024 * 1024


@dataclass(frozen=True)
class QueueScope:
    """The ConsumeQueues of a log below ``root``, for units that point to ``[low, high)``.

    Messages before ``dispatched`` must have a unit, because later ones have one, and those before ``committed`` get one
    when a broker starts.
    """

    root: Path
    low: int
    high: int
    dispatched: int
    committed: int


@dataclass
class _Missing:
    """Messages of a queue without a unit, with adjacent queueOffsets."""

    first: UnitDifference
    last: UnitDifference

    def joined(self, each: UnitDifference) -> bool:
        """Add a message if it is the next one."""
        if each.code != self.last.code or each.queue_offset != self.last.queue_offset + 1:
            return False
        self.last = each
        return True


@dataclass
class _Absent:
    """Messages of a queue that does not exist: the first one, and how many there are."""

    first: UnitDifference
    count: int = 0


class QueueCheck:
    """Compares the messages of a scope, in order, with the units that point there."""

    def __init__(
        self, scope: QueueScope, open_log: Callable[[], StoreView], engine: Engine, report: Report, log_end: int
    ) -> None:
        self._scope = scope
        self._engine = engine
        self._report = report
        self._log_end = log_end
        self._stored = StoredQueues(scope.root, partial(report_failed_read, report))
        self._comparison = UnitComparison(self._stored, open_log)
        self._low = scope.low
        self._bounds = self._stored.bounds(scope.low)
        self._batches: list[pa.RecordBatch] = []
        self._waiting: list[UnitDifference] = []
        self._wrong: set[tuple[QueueName, int]] = set()
        self._absent: dict[QueueName, _Absent] = {}
        """The messages of each queue that does not exist."""
        self.contradicted: dict[int, int] = {}
        """Where messages with the finding messageQueue begin, and their sizes."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Compare rows of the log, with `dispatched.COLUMNS`."""
        if batch.num_rows:
            self._batches.append(pc.filter(batch.select(COLUMNS), pc.is_valid(batch.column("topic"))))
            last = int(batch.column("pos")[-1].as_py())
            if last - self._low > _WINDOW:
                # The next row begins later, and so does its message.
                self._compare(last + ENTRY_HEADER_SIZE + 1)

    def finish(self) -> None:
        """Compare the rest."""
        self._compare(self._scope.high)
        self._report_absent()
        if self._waiting:
            first, count = self._waiting[0], len(self._waiting)
            self._report.add(
                "messagesNotDispatched",
                self._scope.root / FOLDER,
                f"expected units of the messages up to {self._scope.committed}, found none of "
                f"{counted(count, 'message')} from commitLogOffset {first.offset} on",
                pos=first.offset,
            )

    def _report_absent(self) -> None:
        """Report the queues that do not exist; if none does, together."""
        if not self._absent:
            return
        folder = self._scope.root / FOLDER
        if not self._stored.queues:
            each, *_ = sorted(self._absent.values(), key=lambda each: each.first.offset or 0)
            count = sum(each.count for each in self._absent.values())
            queues = counted(len(self._absent), "queue")
            text = f"expected units of {counted(count, 'message')} of {queues}, found no queue"
            self._report.add("messageNotInQueue", folder, text, pos=each.first.offset)
            return
        for (topic, queue_id), each in self._absent.items():
            text = f"expected units of {counted(each.count, 'message')} of {topic}/{queue_id}, found no queue"
            self._report.add("messageNotInQueue", folder / topic / str(queue_id), text, pos=each.first.offset)

    def _compare(self, high: int) -> None:
        """Compare the messages before a position with the units that point there."""
        stops = self._stored.bounds(high)
        units, unwritten = self._stored.between(self._bounds, stops)
        messages = arrays_of_batches(self._engine, self._batches, self._comparison.names)
        self._report_units(units, messages, min(high, self._scope.high))
        self._report_unwritten(unwritten)
        self._report_messages(messages, units)
        self._low, self._bounds = high, stops
        self._batches.clear()

    # Units

    def _report_units(self, units: StoredUnits, messages: MessageArrays, high: int) -> None:
        self._wrong.clear()
        for each in self._comparison.of_units(units, messages, self._low, high, self._log_end):
            place = each.queue, each.queue_offset
            if each.code in comparison.WITHOUT_MESSAGE or each.code == comparison.OTHER_SIZE:
                self._wrong.add(place)
                size = each.found if each.code == comparison.OTHER_SIZE else each.expected
                assert isinstance(size, int) and each.offset is not None
                look_up(
                    self._comparison.log.segments,
                    self._queue(each),
                    each.queue_offset,
                    (each.offset, size),
                    self._report,
                )
            elif each.code in (comparison.OTHER_TAGS, comparison.OTHER_DELIVERY):
                what = "tagsCode" if each.code == comparison.OTHER_TAGS else "a delivery time of whole seconds after"
                self._add("consumeQueueTags", each, f"expected {what} {each.expected}, found {each.found}")
            elif place not in self._wrong:
                self._report_place(each)

    def _report_place(self, each: UnitDifference) -> None:
        """Report a unit whose message says that it is elsewhere."""
        (topic, queue_id), offset = self._queue(each).name, each.offset
        assert offset is not None
        of_message = f"a message of {topic}/{queue_id} at queue offset {each.queue_offset}"
        if each.code == comparison.NOT_DISPATCHED:
            self._add("consumeQueuePlace", each, f"expected no unit of a message that is {each.expected}, found one")
            return
        path, _ = _place_of(self._stored, self._scope.root, each.queue, each.queue_offset)
        if self._report.only_counts("messageQueue", path):
            return
        found = self._comparison.message_at(offset)
        if found is None:
            return
        own = found.topic, found.queue_id
        of_found = f"{own[0]}/{own[1]} and {found.queue_offset} at commitLogOffset {offset}"
        is_listed = each.code == comparison.OTHER_PLACE and own != each.queue
        if is_listed or int(self._stored.units_at(own, found.queue_offset, 1)["commitLogOffset"][0]) == offset:
            self._add("consumeQueuePlace", each, f"expected {of_message}, found {of_found}")
        else:
            self.contradicted[offset] = found.total_size
            self._add("messageQueue", each, f"expected {of_message}, found {of_found}")

    def _queue(self, each: UnitDifference) -> QueueUnits:
        queue = self._stored.get(each.queue)
        assert queue is not None, each
        return queue

    def _add(self, code: str, each: UnitDifference, text: str) -> None:
        path, at = _place_of(self._stored, self._scope.root, each.queue, each.queue_offset)
        self._report.add(code, path, text, offset=at, pos=each.offset)

    def _report_unwritten(self, unwritten: Iterable[Unwritten]) -> None:
        for each in unwritten:
            path, at = _place_of(self._stored, self._scope.root, self._stored.queues[each.queue].name, each.first)
            units = f"unit {each.first}" if each.first == each.last else f"units {each.first} to {each.last}"
            self._report.add("consumeQueueGap", path, f"expected {units}, found zeros", offset=at)

    # Messages

    def _report_messages(self, messages: MessageArrays, units: StoredUnits) -> None:
        """Report messages without a unit, adjacent ones together."""
        wanted = messages.offset < max(self._scope.dispatched, self._scope.committed)
        missing: dict[QueueName, _Missing] = {}
        for each in self._comparison.of_messages(messages, units, wanted):
            assert each.offset is not None
            if each.offset in self.contradicted or (each.code == comparison.OTHER_UNIT and self._is_wrong(each)):
                continue  # another finding
            if each.offset >= self._scope.dispatched:
                self._waiting.append(each)
                continue
            if each.code == comparison.NO_QUEUE:
                self._absent.setdefault(each.queue, _Absent(each)).count += 1
                continue
            adjacent = missing.get(each.queue)
            if adjacent is None or not adjacent.joined(each):
                if adjacent is not None:
                    self._report_missing(adjacent)
                missing[each.queue] = _Missing(each, each)
        for adjacent in missing.values():
            self._report_missing(adjacent)

    def _is_wrong(self, each: UnitDifference) -> bool:
        """Whether the unit at a message's queueOffset points to no message of its size."""
        if (each.queue, each.queue_offset) in self._wrong:
            return True
        (unit,) = self._stored.units_at(each.queue, each.queue_offset, 1)
        return bool(unit["size"] != _size_at(self._comparison.log.segments, int(unit["commitLogOffset"]))[0])

    def _report_missing(self, missing: _Missing) -> None:
        first, last = missing.first, missing.last
        code, found = _MISSING[first.code]
        if first.code == comparison.BEFORE_FIRST:
            code = self._before_first(first.queue)
        path, at = _place_of(self._stored, self._scope.root, first.queue, first.queue_offset)
        offsets = f"{first.queue_offset}" if first is last else f"{first.queue_offset} to {last.queue_offset}"
        expected = f"units of {first.queue[0]}/{first.queue[1]} at queue offset {offsets}"
        self._report.add(code, path, f"expected {expected}, found {found.format(first)}", offset=at, pos=first.offset)

    def _before_first(self, name: QueueName) -> str:
        """The finding about messages that are before the first unit of their queue."""
        queue, segments = self._stored.get(name), self._comparison.log.segments
        if queue is not None and queue.files[0].database:
            return "messageBeforeDatabase"
        # The last file of a log does not expire.
        is_first = len(segments) > 1 and segments[0].source == DLEDGER and segments[0].base == self._scope.low
        return "expiredFileLeft" if is_first else "messageNotInQueue"


# The finding about messages without a unit, and what is found.
_MISSING = {
    comparison.AFTER_QUEUE: ("messageNotInQueue", "the queue's end at {0.found}"),
    comparison.TOO_FAR: ("queueOffsetTooFar", "the queue's end at {0.found}"),
    comparison.NO_UNIT: ("messageNotInQueue", "none"),
    comparison.BEFORE_FIRST: ("messageNotInQueue", "a queue that begins at {0.found}"),
    comparison.OTHER_UNIT: ("messageNotInQueue", "those of other messages, the first of commitLogOffset {0.found}"),
    comparison.REPEATED: ("queueOffsetRepeated", "those of earlier messages, the first of commitLogOffset {0.found}"),
    comparison.BEFORE_QUEUE: ("queueBeganAgain", "a queue that begins with a later message at {0.found}"),
    comparison.NO_TOPIC: ("topicDeleted", "no queue, and no such topic in config/topics.json"),
}


def _place_of(stored: StoredQueues, root: Path, name: QueueName, queue_offset: int) -> tuple[Path | str, int | None]:
    """The file of a unit and its offset there; without a file, the folder of the queue."""
    queue = stored.get(name)
    file = queue.file_of(queue_offset) if queue is not None else None
    if file is None:
        return root / FOLDER / name[0] / str(name[1]), None
    return file.path, file.offset_of(queue_offset)


def look_up(
    segments: list[Segment], queue: QueueUnits, queue_offset: int, unit: tuple[int, int], report: Report
) -> None:
    """Add a finding for a unit, given as offset and size, if the log has no message of its size there."""
    file = queue.file_of(queue_offset)
    assert file is not None, queue.name
    if report.only_counts("consumeQueueUnit", file.path):
        return  # a queue of another log has millions of such units
    offset, size = unit
    found, index = _size_at(segments, offset)
    if found != size:
        there = f"one of {found} bytes" if found is not None else "none"
        report.add(
            "consumeQueueUnit",
            file.path,
            f"expected a message of {size} bytes at commitLogOffset {offset} (queue offset {queue_offset}), "
            f"found {there}",
            offset=file.offset_of(queue_offset),
            index=index,
            pos=offset,
        )


def _size_at(segments: list[Segment], offset: int) -> tuple[int | None, int | None]:
    """The size of the message at an offset, None without one, and the index of its entry, if there is one."""
    segment = segment_at(segments, offset)
    if segment is None:
        return None, None
    head = segment.read(offset, MIN_MESSAGE_SIZE)
    size = int.from_bytes(head[:4], "big", signed=True) if has_message_magic(head, 0, len(head)) else None
    if segment.source == COMMITLOG:
        return size, None
    header = entry_at(segment, offset - ENTRY_HEADER_SIZE)
    return (size, header.index) if header is not None else (None, None)


def dispatched_end(stored: StoredQueues, segments: list[Segment], log_end: int) -> int:
    """Where the last message ends that has a unit: a broker dispatches in the order of the log. 0 without one."""
    lasts = []
    for queue in stored.queues:
        rank = queue.lower_bound(log_end)
        _, units = queue.read(max(rank - 1, 0), rank)
        if len(units) and has_message(units)[0]:
            lasts.append((int(units["commitLogOffset"][0]), int(units["size"][0])))
    # Units that a truncation left point to no message.
    ends = (offset + size for offset, size in sorted(lasts, reverse=True) if _size_at(segments, offset)[0] == size)
    return next(ends, 0)


def report_failed_read(report: Report, error: UnreadableError) -> None:
    """Report a read that failed. A file that cannot be opened is reported once, by the check of all files."""
    if error.offset is not None:
        report.add_unreadable(error)


def check_queue_files(stored: StoredQueues, report: Report) -> None:
    """Check that all files have one size and a unit, and that their topics are known."""
    for _, file, usual in stored.files_of_other_sizes():
        text = f"expected {usual} bytes, found {file.size}"
        report.add("consumeQueueFileSize", file.path, text, offset=min(file.size, usual))
    for file in stored.files_after_the_end():
        report.add("consumeQueueEmptyFile", file.path, "expected a unit in the queue's last file, found none")
    for topic in stored.topics_without_config():
        report.add(
            "topicWithoutConfig", stored.root / CONFIG / TOPICS, f"expected the topic {topic}, found it only in queues"
        )


def check_consumer_offsets(found: Iterable[PassedEnd], report: Report) -> None:
    """Report the consumer groups that have passed the end of a queue."""
    for each in found:
        text = (
            f"expected an offset of {each.group} in {each.topic}/{each.queue_id} up to "
            f"{each.end}, where the queue ends, found {each.offset}"
        )
        report.add("consumerOffsetBeyondEnd", each.path, text)


def check_databases(root: Path, report: Report) -> None:
    """Check that the queues that are in files and in a RocksDB have the same units."""
    files = {queue.name: queue for queue in file_queues(root, ignore_error)}
    for queue in database_queues(root, ignore_error):
        if queue.name in files:
            ours, theirs = QueueUnits(files[queue.name], ignore_error), QueueUnits(queue, ignore_error)
            offset = _first_difference(ours, theirs)
            if offset is not None:
                units = [each.at(offset, 1)[0].tolist()[:2] for each in (ours, theirs)]
                text = f"expected commitLogOffset and size {units[1]} of the RocksDB at queue offset {offset}"
                report.add("consumeQueuesDiffer", files[queue.name].files[0].path, f"{text}, found {units[0]}")


def check_bounds(root: Path, low: int, report: Report) -> None:
    """Check the bounds of queues in a RocksDB, by which a broker goes, against their units; the log begins at `low`."""
    for folder in rocks_folders(root):
        try:
            known = queue_bounds(folder)
        except UnreadableError as error:
            report.add_unreadable(error)
            continue
        units = {each.name: QueueUnits(each, ignore_error) for each in database_queues(root, ignore_error)}
        for name, bounds in sorted(known.items()):
            for text in _wrong_bounds(bounds, units[name].bounds(low)[0] if name in units else None, low):
                report.add("consumeQueueBounds", folder / name[0] / str(name[1]), text)


def _wrong_bounds(bounds: QueueBounds, begin: int | None, low: int) -> Iterator[str]:
    """What is wrong with the bounds of a queue whose units begin with the queueOffset `begin`; None without units."""
    first, last, unit = bounds
    # Units of expired messages are deleted, but the last one stays known.
    if last != unit and (unit is not None or (last is not None and last.position >= low)):
        yield f"expected a maximum {_place_text(unit)}, found {_place_text(last)}"
    if first is not None and begin is not None:
        # When a broker needs the minimum, it moves one that points before the log.
        is_before = first.queue_offset < begin and first.position >= low
        if is_before or first.queue_offset > begin:
            yield f"expected a minimum {begin}, found {_place_text(first)}"


def _place_text(place: UnitPlace | None) -> str:
    return f"{place.queue_offset} at commitLogOffset {place.position}" if place is not None else "none"


def _first_difference(ours: QueueUnits, theirs: QueueUnits) -> int | None:
    """The first queueOffset at which two copies of a queue differ, where both have begun."""
    start = max(each.queue_offset(0) if each.count else 0 for each in (ours, theirs))
    end = min(ours.end, theirs.end)
    for first in range(start, end, UNITS_AT_ONCE):
        count = min(UNITS_AT_ONCE, end - first)
        different = np.flatnonzero(ours.at(first, count) != theirs.at(first, count))
        if len(different):
            return first + int(different[0])
    return max(start, end) if ours.end != theirs.end else None


def check_outside(
    stored: StoredQueues, segments: list[Segment], low: int | None, high: int, root: Path, report: Report
) -> None:
    """Check units that point below `low`, the beginning of the log (None: not known), or at or after its end `high`."""
    expired = 0
    for queue in stored.queues:
        bottom, top = queue.lower_bound(low) if low is not None else 0, queue.lower_bound(high)
        for queue_offsets, units in queue.chunks(0, bottom):
            is_below = (units["commitLogOffset"] < (low or 0)) & (units["commitLogOffset"] >= 0) & (units["size"] > 0)
            others = np.flatnonzero(is_written(units) & ~is_filler(units) & ~is_below)
            expired += int(np.count_nonzero(is_below & ~is_filler(units)))
            _look_up_all(segments, queue, queue_offsets[others], units[others], report)
        beyond: list[tuple[int, int]] = []
        for queue_offsets, units in queue.chunks(max(top, bottom), queue.count):
            is_beyond = (units["commitLogOffset"] >= high) & (units["size"] > 0)
            others = np.flatnonzero(is_written(units) & ~is_filler(units) & ~is_beyond)
            _look_up_all(segments, queue, queue_offsets[others], units[others], report)
            offsets = units["commitLogOffset"][is_beyond].tolist()
            beyond += zip(queue_offsets[is_beyond].tolist(), offsets, strict=True)
        if beyond:
            queue_offset, offset = beyond[0]
            path, at = _place_of(stored, root, queue.name, queue_offset)
            report.add(
                "consumeQueueBeyondEnd",
                path,
                f"expected units below the log's end at {high}, found {len(beyond)} from commitLogOffset {offset} "
                f"(queue offset {queue_offset})",
                offset=at,
                pos=offset,
            )
    if expired:
        report.add(
            "consumeQueueBelowStart",
            root / FOLDER,
            f"expected units from the log's beginning at {low}, found {expired} below",
        )


def _look_up_all(
    segments: list[Segment], queue: QueueUnits, queue_offsets: Longs, units: Units, report: Report
) -> None:
    for queue_offset, offset, size in zip(
        queue_offsets.tolist(), units["commitLogOffset"].tolist(), units["size"].tolist(), strict=True
    ):
        look_up(segments, queue, queue_offset, (offset, size), report)
