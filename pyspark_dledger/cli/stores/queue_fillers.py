"""Counts units in ConsumeQueues that stand for messages missing from the log: fillers, and copies of the next unit."""

from __future__ import annotations

import numpy as np

from pyspark_dledger.log import Log
from pyspark_dledger.log.io.queue_files import Queue, queues, read_units
from pyspark_dledger.log.io.queue_units import has_message, is_filler
from pyspark_dledger.log.units.stored import is_selected, queue_root


def count_fillers(log: Log) -> int:
    """The number of fillers after the first message of their queue.

    Earlier ones do not count: a queue that begins in the middle of a file has them. Raises StoreError where the queues
    cannot be read.
    """
    wanted = (queue for queue in queues(queue_root(log)) if is_selected(queue.topic, queue.queue_id, log.options))
    return sum(map(_count_in, wanted))


def count_copies(log: Log) -> int:
    """The number of units that are copies of the next one; a rebuild makes them. Raises StoreError."""
    wanted = (queue for queue in queues(queue_root(log)) if is_selected(queue.topic, queue.queue_id, log.options))
    return sum(map(_copies_in, wanted))


def _copies_in(queue: Queue) -> int:
    count, last = 0, None
    for file in queue.files:
        for units in read_units(file):
            messages = units[has_message(units)]
            offsets = messages["commitLogOffset"]
            count += int(np.count_nonzero(offsets[1:] == offsets[:-1]))
            if len(offsets):
                count += int(offsets[0]) == last
                last = int(offsets[-1])
    return count


def _count_in(queue: Queue) -> int:
    count, has_begun = 0, False
    for file in queue.files:
        for units in read_units(file):
            fillers = is_filler(units)
            messages = np.flatnonzero(has_message(units))
            if has_begun or len(messages):
                count += int(fillers[0 if has_begun else messages[0] :].sum())
                has_begun = True
    return count
