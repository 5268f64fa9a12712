"""Reads rows at known positions of a log, without walking the log to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import option_filters
from pyspark_dledger.log.plan import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.spec import ScanRequest
    from pyspark_dledger.log.gaps import FileGap


class RowReader:
    """Reads ranges that begin and end where a row does.

    `options` are fields of `ReadOptions` that replace those of the log.
    """

    def __init__(self, log: Log, columns: tuple[str, ...], **options: Any) -> None:
        chosen = replace(log.options, **{"max_partition_bytes": INT64_MAX, **options})
        self._partitions = log.plan(columns, chosen, option_filters(chosen))

    def between(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows at the positions ``[start, end)``."""
        for partition in self._partitions:
            yield from read_partition(partition.with_ranges(lambda part: _clipped(part, start, end)))


def _clipped(part: ScanRequest | FileGap, start: int, end: int) -> ScanRequest | FileGap | None:
    if part.start >= end or start >= part.end:
        return None
    return replace(part, start=max(part.start, start), end=min(part.end, end))
