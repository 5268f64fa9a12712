"""How far a ConsumeQueue is written, and what its last units prove about the dispatch of the log."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyspark_dledger.log.io.queue_files import UNITS_AT_ONCE, Queue, QueueFile, Units, read_units, written_units
from pyspark_dledger.rocketmq.consume_queue.queue_units import QueueUnits, has_message, is_filler


class DispatchedMessage(NamedTuple):
    """A message that a unit points to: its position in the log, and its size in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class DispatchProgress(NamedTuple):
    """How far the queues prove that the log was dispatched.

    ``complete_to``: the last message up to which no queue has a hole; None without one. ``end``: where the last message
    of any queue ends in the log.
    """

    complete_to: DispatchedMessage | None
    end: int


class QueueState:
    """How far a queue is written. ``end`` is the next queueOffset; -1 if the queue may begin with any.

    ``last`` is the message of the last unit. ``before_hole`` is the one before the first unwritten unit, if it
    `has_hole`.
    """

    def __init__(self, queue: Queue) -> None:
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self.files = list(queue.files)
        self.end = -1
        self.last: DispatchedMessage | None = None
        self.has_hole = False
        self.before_hole: DispatchedMessage | None = None

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id, tuple(self.files))

    def read_last_units(self) -> None:
        """Set ``last``, and look for holes: unwritten units, and units that do not ascend."""
        if not self.files:
            return
        units = QueueUnits(self.queue)
        _, tail = units.read(max(0, units.count - UNITS_AT_ONCE), units.count)
        is_message = has_message(tail)
        is_hole = ~is_message & ~is_filler(tail)
        falls = np.diff(tail["commitLogOffset"].astype(np.int64)) < 0
        is_hole[1:] |= is_message[1:] & is_message[:-1] & falls
        self.last = _last_message(tail)
        self.has_hole = bool(is_hole.any())
        if self.has_hole:
            self.before_hole = _last_message(tail[: int(np.argmax(is_hole))])


def progress_of(states: list[QueueState]) -> DispatchProgress:
    """What queues prove together, once each has read its last units."""
    furthest = max((state.last for state in states if state.last is not None), default=None)
    proven = [furthest, *(state.before_hole for state in states if state.has_hole)]
    complete_to = None if None in proven else min(message for message in proven if message is not None)
    return DispatchProgress(complete_to, furthest.end if furthest is not None else 0)


def _last_message(units: Units) -> DispatchedMessage | None:
    units = units[has_message(units)]
    return DispatchedMessage(int(units["commitLogOffset"][-1]), int(units["size"][-1])) if len(units) else None


def units_before(file: QueueFile, log_end: int) -> int:
    """How many units of a file stay if the log ends at `log_end`: up to the last of a message before; 0 for none."""
    written = written_units(file)
    for start in reversed(range(0, written, UNITS_AT_ONCE)):
        units = next(read_units(file, start, min(start + UNITS_AT_ONCE, written)), None)
        if units is None:
            continue
        offsets = units["commitLogOffset"]
        stays = np.flatnonzero(has_message(units) & (offsets >= 0) & (offsets < log_end))
        if len(stays):
            return start + int(stays[-1]) + 1
    return 0


def last_offset(file: QueueFile) -> int | None:
    """The commitLogOffset of a file's last unit; None for a file that is not full, or cannot be read."""
    units = next(read_units(file, max(file.units - 1, 0), file.units), None)
    if units is None or not len(units) or not int(units["size"][0]):
        return None
    return int(units["commitLogOffset"][0])
