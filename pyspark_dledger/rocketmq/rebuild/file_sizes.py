"""Finds the sizes of a store's ConsumeQueue and index files from the existing ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.rocketmq.index_file.index_file import hash_slots, index_capacity, index_files

MAX_UNITS = 2**31 // CONSUME_QUEUE_UNIT_SIZE
"""A broker maps whole files, of at most 2 GiB."""


def common_units_per_file(root: Path) -> int | None:
    """How many units most ConsumeQueue files below a storePathRootDir have; None without files."""
    sizes = Counter(file.units for queue in queues(root) for file in queue.files if 0 < file.units <= MAX_UNITS)
    return sizes.most_common(1)[0][0] if sizes else None


def last_index_sizes(root: Path) -> tuple[int, int] | None:
    """The numbers of slots and units of the last index file that shows them; None without one."""
    for path in reversed(index_files(root)):
        slots = hash_slots(path)
        if slots is not None:
            return slots, index_capacity(path.stat().st_size, slots)
    return None
