"""Rows at known places of a log, read without walking to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log.options import option_filters
from pyspark_dledger.log.plan import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log import Log


class KnownRows:
    """A planned read, of which any part can be read that begins and ends where a row does.

    `options` are those of a read, by the names of `ReadOptions`, beside those that the log was opened with.
    """

    def __init__(self, log: Log, columns: tuple[str, ...], **options: Any) -> None:
        chosen = replace(log.options, **{"max_partition_bytes": INT64_MAX, **options})
        self._partitions = log.plan(columns, chosen, option_filters(chosen))

    def between(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows of ``[start, end)``."""
        for partition in self._partitions:
            ranges = tuple(
                replace(part, start=max(part.start, start), end=min(part.end, end))
                for part in partition.ranges
                if part.start < end and start < part.end
            )
            if ranges:
                yield from read_partition(replace(partition, ranges=ranges))
