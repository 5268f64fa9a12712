"""What existing ConsumeQueues say of messages that have expired: it is told by nothing else, and kept."""

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
    """The units of messages before a position of the log, queue by queue.

    A queue whose messages are all gone has its end from them. `into` writes those of a queue, once, and says how many
    were units of messages. What is none of a message there, and no filler, becomes a filler.
    """

    def __init__(self, root: Path, begin: int) -> None:
        self._begin = begin
        self._queues = {(queue.topic, queue.queue_id): queue for queue in queues(root)}

    def __contains__(self, name: QueueName) -> bool:
        return name in self._queues

    @property
    def names(self) -> list[QueueName]:
        """The queues of which nothing was written yet."""
        return list(self._queues)

    def into(self, writer: QueueWriter, name: QueueName, end: int | None = None) -> int:
        """Write the units of a queue, up to a queueOffset, which is that of its first message in the log."""
        queue = self._queues.pop(name, None)
        if queue is None or not is_valid_queue(name):
            return 0
        units = QueueUnits(queue)
        stop = units.lower_bound(self._begin)
        if not any(self._is_expired(found).any() for _, found in _chunks(units, stop)):
            return 0
        kept = 0
        for places, found in _chunks(units, stop):
            if end is not None:
                places, found = places[places < end], found[places < end]
            is_message = self._is_expired(found)
            kept_units = found.astype(UNIT_DTYPE)
            kept_units[~is_message] = _FILLER
            writer.put([name], np.zeros(len(places), np.int64), places, kept_units)
            kept += int(is_message.sum())
        return kept

    def _is_expired(self, units: Units) -> npt.NDArray[np.bool_]:
        """Where a unit of a message before the log stands."""
        offset = units["commitLogOffset"]
        is_message = (units["size"] >= MIN_MESSAGE_SIZE) & ~is_filler(units)
        is_expired: npt.NDArray[np.bool_] = is_message & (offset >= 0) & (offset < self._begin)
        return is_expired


def _chunks(units: QueueUnits, stop: int) -> Iterator[tuple[Longs, Units]]:
    """The units of the first ranks, with their queueOffsets."""
    for start in range(0, stop, UNITS_AT_ONCE):
        yield units.read(start, min(start + UNITS_AT_ONCE, stop))
