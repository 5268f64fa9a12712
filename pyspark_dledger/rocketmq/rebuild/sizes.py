"""How large the files of a store's ConsumeQueues and index are, as they show it themselves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.rocketmq.index_file.index_file import hash_slots, index_capacity, index_files

MOST_UNITS = 2**31 // CONSUME_QUEUE_UNIT_SIZE
"""A broker maps whole files, which can have no more bytes than that."""


def usual_units(root: Path) -> int | None:
    """How many units most ConsumeQueue files below a storePathRootDir have room for; None without files."""
    sizes = Counter(file.units for queue in queues(root) for file in queue.files if 0 < file.units <= MOST_UNITS)
    return sizes.most_common(1)[0][0] if sizes else None


def usual_index(root: Path) -> tuple[int, int] | None:
    """How many slots and units the last index file has that tells it; None without one."""
    for path in reversed(index_files(root)):
        slots = hash_slots(path)
        if slots is not None:
            return slots, index_capacity(path.stat().st_size, slots)
    return None
