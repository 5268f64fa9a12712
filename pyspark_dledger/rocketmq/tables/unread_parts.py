"""What cannot be read of a log and its ConsumeQueues, and what is left to compare without it."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.log.io.files import OnUnreadable, path_of, raise_error
from pyspark_dledger.log.io.queue_files import FOLDER, queues
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.consume_queue.queue_units import QueueUnits, batch_queues
from pyspark_dledger.rocketmq.message_arrays import Longs


class UnreadParts:
    """Collects what cannot be read: `on_unreadable` is called with it, and raises it by default.

    ``log`` is a view of the log without the segments `unread`, by their base; None for the whole log.
    """

    def __init__(
        self, log: StoreView | None = None, unread: Container[int] = (), on_unreadable: OnUnreadable = raise_error
    ) -> None:
        self.log = log
        self._on_unreadable = on_unreadable
        self._queues: set[tuple[str, ...]] = set()
        segments = log.segments if log is not None else []
        self._extents = [
            (max(segment.base, 0), after.base if after is not None else INT64_MAX)
            for segment, after in zip(segments, [*segments[1:], None], strict=False)
            if segment.base in unread
        ]
        if log is not None:
            log.segments = [segment for segment in segments if segment.base not in unread]

    def units_of(self, root: Path) -> list[QueueUnits]:
        """The units of all queues that can be read."""
        found = []
        for queue in queues(root, lambda error: self._add_in(root, error)):
            try:
                found.append(QueueUnits(queue))
            except UnreadableError as error:
                self.add(error, (queue.topic, queue.queue_id))
        return found

    def add(self, error: UnreadableError, queue: tuple[str, int]) -> None:
        """Note a queue of which a file cannot be read."""
        self._on_unreadable(error)
        self._queues.add((queue[0], str(queue[1])))

    def _add_in(self, root: Path, error: UnreadableError) -> None:
        """Note what cannot be listed below the folder of all queues: all, those of a topic, or one."""
        self._on_unreadable(error)
        path = path_of(error.path)
        self._queues.add(path.relative_to(root / FOLDER).parts[:2])

    def batch_topics(self, root: Path) -> set[str]:
        """The topics of batch messages. Without them no message can be missed in its queue."""
        try:
            return {queue.topic for queue in batch_queues(root)}
        except UnreadableError as error:
            self._on_unreadable(error)
            self._queues.add(())
            return set()

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether a queue cannot be read as a whole."""
        return not self._queues.isdisjoint(((), (topic,), (topic, str(queue_id))))

    def is_readable(self, offsets: Longs) -> npt.NDArray[np.bool_]:
        """Which positions of the log are in a segment that can be read, or in none."""
        found = np.ones(len(offsets), bool)
        for start, end in self._extents:
            found &= (offsets < start) | (offsets >= end)
        return found
