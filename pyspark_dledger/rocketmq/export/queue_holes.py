"""Places in queues whose message is gone, so that a broker passes over them and over nothing else.

A filler points to position 0. A broker that finds no message where a unit points to passes over every unit of the same
pull that points into that file, and consumers never get those messages. So in a log whose first file begins at 0 a
filler becomes what the unit behind it is: consumers get that message once more. Source: RocketMQ 4.9.8 and 5.3.3
``DefaultMessageStore.getMessage``, ``CommitLog.rollNextFile``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.consume_queue import UNIT_DTYPE, UNITS_AT_ONCE, QueueFile, Units, queues, written_units
from pyspark_dledger.log.entries import read_at
from pyspark_dledger.rocketmq.consume_queue import is_filler


def lead_over_holes(root: Path, first_file_size: int) -> int:
    """Make fillers copies of the unit behind them, if that points into the log's first file; how many, durably.

    The log begins at 0. Raises OSError.
    """
    count = 0
    for queue in queues(root):
        behind: Units = np.zeros(0, UNIT_DTYPE)
        for file in reversed(queue.files):
            changed, behind = _lead_over(file, behind, first_file_size)
            count += changed
    return count


def _lead_over(file: QueueFile, behind: Units, first_file_size: int) -> tuple[int, Units]:
    """Change a file, of which `behind` is the next unit behind it, if any; how many units, and its first one."""
    count = 0
    for stop in range(written_units(file), 0, -UNITS_AT_ONCE):
        start = max(stop - UNITS_AT_ONCE, 0)
        size = (stop - start) * CONSUME_QUEUE_UNIT_SIZE
        data = read_at(file.path, start * CONSUME_QUEUE_UNIT_SIZE, size)
        units = np.concatenate([np.frombuffer(data, UNIT_DTYPE), behind]).astype(UNIT_DTYPE)
        places = np.arange(len(units))
        is_real = ~is_filler(units)
        # Of each place the next one that is no filler; behind the last of those none.
        nexts = np.minimum.accumulate(np.where(is_real, places, len(units))[::-1])[::-1]
        which = np.flatnonzero(~is_real & (nexts < len(units)))
        which = which[units["commitLogOffset"][nexts[which]] < first_file_size]
        if len(which):
            units[which] = units[nexts[which]]
            _write(file, start, units[: stop - start])
            count += len(which)
        behind = units[:1]
    return count, behind


def _write(file: QueueFile, start: int, units: Units) -> None:
    descriptor = os.open(file.path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        view, at = memoryview(units.tobytes()), start * CONSUME_QUEUE_UNIT_SIZE
        while view:
            wrote = os.pwrite(descriptor, view, at)
            view, at = view[wrote:], at + wrote
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
