"""How many bytes of the log a partition has."""

from __future__ import annotations

import os

from pyspark_dledger.log.options import ReadOptions

_MAX_BYTES = 128 * 1024 * 1024
# A Spark task costs about 30 ms; in that time a scan that yields few bytes reads a gigabyte.
_MAX_SELECTIVE_BYTES = 1024 * 1024 * 1024
# Smaller tasks cost more than they gain; as Spark's files.
_MIN_BYTES = 4 * 1024 * 1024


def partition_size(total: int, options: ReadOptions, selective: bool = False) -> int:
    """The bytes of a partition of a read of `total` bytes; a `selective` scan yields few of them."""
    size = options.max_partition_bytes or _usual_size(total, options.default_parallelism, selective)
    return size_for(size, total, options.min_partitions)


def size_for(size: int, total: int, min_partitions: int | None) -> int:
    """The bytes of a partition: `size`, or less for a minimum number of partitions; at least 1."""
    return size if min_partitions is None else max(min(size, -(-total // min_partitions)), 1)


def _usual_size(total: int, cores: int | None, selective: bool) -> int:
    """By default a partition is small enough for one on each core; a selective scan knows those of this machine."""
    if selective:
        return min(max(total // (cores or os.cpu_count() or 1), _MAX_BYTES), _MAX_SELECTIVE_BYTES)
    return _MAX_BYTES if cores is None else min(max(-(-total // cores), _MIN_BYTES), _MAX_BYTES)
