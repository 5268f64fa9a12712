"""Keeps the units of expired messages, which exist only in the ConsumeQueues and not in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.log.io.queue_files import FILLER_SIZE, UNIT_DTYPE, UNITS_AT_ONCE, Units, queues
from pyspark_dledger.rocketmq.consume_queue.queue_units import QueueUnits, is_filler
from pyspark_dledger.rocketmq.consume_queue.queue_writer import QueueWriter, is_valid_queue
from pyspark_dledger.rocketmq.message_arrays import Longs, QueueName

_FILLER = np.array((0, FILLER_SIZE, 0), UNIT_DTYPE)


class ExpiredUnits:
    """The units of messages before the position `begin` of the log, by queue.

    They also give the end of a queue whose messages have all expired. Invalid units become fillers.
    """

    def __init__(self, root: Path, begin: int) -> None:
        self._begin = begin
        self._queues = {(queue.topic, queue.queue_id): queue for queue in queues(root)}

    def __contains__(self, name: QueueName) -> bool:
        return name in self._queues

    @property
    def names(self) -> list[QueueName]:
        """The queues that are not written yet."""
        return list(self._queues)

    def write_to(self, writer: QueueWriter, name: QueueName, end: int | None = None) -> int:
        """Write the units of a queue, if not done yet, up to the queueOffset of its first message in the log.

        Returns the number of units of messages.
        """
        queue = self._queues.pop(name, None)
        if queue is None or not is_valid_queue(name):
            return 0
        units = QueueUnits(queue)
        stop = units.lower_bound(self._begin)
        if not any(self._is_expired(found).any() for _, found in _chunks(units, stop)):
            return 0
        kept = 0
        for offsets, found in _chunks(units, stop):
            if end is not None:
                offsets, found = offsets[offsets < end], found[offsets < end]
            is_message = self._is_expired(found)
            kept_units = found.astype(UNIT_DTYPE)
            kept_units[~is_message] = _FILLER
            writer.put([name], np.zeros(len(offsets), np.int64), offsets, kept_units)
            kept += int(is_message.sum())
        return kept

    def _is_expired(self, units: Units) -> npt.NDArray[np.bool_]:
        """Which units are of messages before the log's beginning."""
        offset = units["commitLogOffset"]
        is_message = (units["size"] >= MIN_MESSAGE_SIZE) & ~is_filler(units)
        is_expired: npt.NDArray[np.bool_] = is_message & (offset >= 0) & (offset < self._begin)
        return is_expired


def _chunks(units: QueueUnits, stop: int) -> Iterator[tuple[Longs, Units]]:
    """The first `stop` units with their queueOffsets."""
    for start in range(0, stop, UNITS_AT_ONCE):
        yield units.read(start, min(start + UNITS_AT_ONCE, stop))
