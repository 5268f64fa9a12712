"""Finds the part of a log that has some queue offsets, by ConsumeQueue units that the log confirms.

Queue offsets of a queue rise along the log. So messages with offsets between those of two confirmed units lie between
these units' messages, also if the units between them are damaged. Where no unit is confirmed, the log is read on.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.codec import ConsumeQueueUnit
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import message_in
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    QueueFile,
    queue_files,
    readable_units,
    written_units,
)
from pyspark_dledger.log.store_view import StoreView

# Each queue costs a few reads.
_MAX_QUEUES = 64
_MAX_TRIED = 64


def queue_window(store: StoreView, filters: Filters, offsets: IntFilter) -> tuple[int, int]:
    """Positions ``[start, end)`` that have all messages with these queue offsets in the queues of the filters.

    Entries begin at both. The whole log, if the filters do not name queues or the units do not show it.
    """
    whole = 0, INT64_MAX
    # Prepared messages have the offset 0, wherever they are.
    if filters.topic is None or filters.queue_id is None or filters.queue_id.values is None or offsets.low <= 0:
        return whole
    names = list(product(filters.topic, filters.queue_id.values))
    root = store.paths.root
    if root is None or not 0 < len(names) <= _MAX_QUEUES:
        return whole
    windows = [_Queue(store, *name).window(offsets) for name in names]
    return min(start for start, _ in windows), max(end for _, end in windows)


class _Queue:
    """The units of one queue of a store, and the messages that they point to."""

    def __init__(self, store: StoreView, topic: str, queue_id: int) -> None:
        self._store = store
        self._topic = topic
        self._queue_id = queue_id
        self._files = _files(store, topic, queue_id)

    def window(self, offsets: IntFilter) -> tuple[int, int]:
        """The positions that have all messages of the queue with these offsets."""
        if not self._files:
            return 0, INT64_MAX
        first, last = self._files[0].first, self._last_written()
        low, high = min(offsets.low, last), max(offsets.high, first)
        before = self._confirmed(range(low, max(low - _MAX_TRIED, first - 1), -1))
        after = self._confirmed(range(high, min(high + _MAX_TRIED, last + 1)))
        start, end = before[0] if before is not None else 0, after[1] if after is not None else INT64_MAX
        return (start, end) if start < end else (0, INT64_MAX)

    def _last_written(self) -> int:
        """The offset of the last unit; of files that cannot be read, -1."""
        for file in reversed(self._files):
            try:
                written = written_units(file)
            except UnreadableError:
                return -1
            if written:
                return file.first + written - 1
        return -1

    def _confirmed(self, numbers: Iterable[int]) -> tuple[int, int] | None:
        """Where the entry of the first of these queue offsets begins and ends of which the log confirms the unit."""
        found = (self._entry_of(number) for number in numbers)
        return next((each for each in found if each is not None), None)

    def _entry_of(self, number: int) -> tuple[int, int] | None:
        unit = self._unit(number)
        if unit is None or not MIN_MESSAGE_SIZE <= unit.size < FILLER_SIZE:
            return None
        offset, size = unit.commit_log_offset, unit.size
        row, segment = self._store.row_of_message(offset), segment_at(self._store.segments, offset)
        if row is None or segment is None or offset + size != row.end or row.end > self._store.segment_end(segment):
            return None
        data = segment.read(offset, size)
        message = message_in(data) if len(data) == size else None
        if message is None or message.physical_offset != offset:
            return None
        is_wanted = (message.topic, message.queue_id, message.queue_offset) == (self._topic, self._queue_id, number)
        return row if is_wanted else None

    def _unit(self, number: int) -> ConsumeQueueUnit | None:
        file = next((file for file in self._files if file.first <= number < file.first + file.units), None)
        if file is None:
            return None
        at = number - file.first
        units = next(readable_units(file, at, at + 1), None)
        return ConsumeQueueUnit(*units[0].tolist()) if units is not None else None


def _files(store: StoreView, topic: str, queue_id: int) -> tuple[QueueFile, ...]:
    if store.paths.root is None or "/" in topic:
        return ()
    try:
        return queue_files(store.paths.root / FOLDER / topic / str(queue_id), ignore_error)
    except StoreError:
        return ()
