"""How a broker's ConsumeQueues and IndexFiles are written."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_dledger.common.retention import Retention
from pyspark_dledger.rocketmq.consume_queue.queue_writer import UNITS_PER_FILE
from pyspark_dledger.rocketmq.dispatch.log_part import DELAYS_MS
from pyspark_dledger.rocketmq.index_file.index_writer import HASH_SLOTS, INDEX_UNITS


@dataclass(frozen=True)
class DispatchSettings:
    """RocketMQ's defaults; times in milliseconds, ``chunk_bytes`` in bytes of the log.

    ``units_per_file``, ``hash_slots`` and ``index_units`` apply to new files. ``delays_ms`` are the delay levels from 1
    on. Dispatched messages are on disk, and their keys can be found, after ``flush_interval_ms``. Entries committed
    within ``pause_ms`` are dispatched together.
    """

    units_per_file: int = UNITS_PER_FILE
    hash_slots: int = HASH_SLOTS
    index_units: int = INDEX_UNITS
    delays_ms: tuple[int, ...] = DELAYS_MS
    has_index: bool = True
    pause_ms: int = 5
    flush_interval_ms: int = 3_000
    clean_interval_ms: int = 10_000
    chunk_bytes: int = 16 * 1024 * 1024
    clean: Retention = field(default_factory=Retention)
    engine: str = "auto"
