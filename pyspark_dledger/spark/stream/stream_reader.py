"""The stream readers: Spark's interface to a tail, for PySpark 4.0 to 4.3, and the reader of a store on disk.

Spark keeps one reader on the driver while a query runs, and pickles another for the tasks. Offsets are JSON. Since
PySpark 4.2 `latestOffset` gets the start and a limit; before, nothing.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.common.uris import check_local
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, read_partition
from pyspark_dledger.log.tail.store_tail import StoreTail
from pyspark_dledger.log.tail.tail import NO_LIMITS, AnyOffset, Limits, Tail, TailOffset, offset_from_json
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.batch_reader import PartReader, log_parts
from pyspark_dledger.spark.schema import LOG

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.0 and 4.1 stop such a query after one batch

        class SupportsTriggerAvailableNow:
            """Since PySpark 4.2 the mark of a source that supports Trigger.AvailableNow."""


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False


class _OffsetTracker(Generic[AnyOffset]):
    """The offset that a query has reached, for PySpark 4.0 and 4.1, which ask for an end without the start.

    After a restart the first end is found without the start. It can be below the start if less is known to be committed
    than before. Then that batch is empty, and the next one begins at the real start.
    """

    def __init__(self) -> None:
        self.offset: AnyOffset | None = None
        self._planned: tuple[AnyOffset, AnyOffset] | None = None
        self._start: AnyOffset | None = None

    def start_of(self, first: AnyOffset, last: AnyOffset) -> AnyOffset:
        """Return the real start of the batch from `first` to `last`. A batch that is planned again has the same one."""
        if self._planned == (first, last) and self._start is not None:
            return self._start
        self._planned = (first, last)
        if self.offset is None:
            self.offset = first.furthest(last)
            self._start = first if self.offset == last else last
        else:
            self._start, self.offset = self.offset, last
        return self._start


class _TriggerDelay:
    """Delays a trigger until it has ``minOffsetsPerTrigger``, as Kafka's connector: the first one is not delayed."""

    def __init__(self, options: ReadOptions) -> None:
        self._min_entries = options.min_offsets_per_trigger or 1
        self._max_seconds = options.max_trigger_delay / 1000
        self._triggered_at = -math.inf

    def latest(self, tail: Tail[AnyOffset], start: AnyOffset, limits: Limits[AnyOffset]) -> AnyOffset:
        """Return the end of a trigger; `start` while it is delayed."""
        end = tail.latest(start, replace(limits, until=start) if self._is_too_early(tail, start) else limits)
        if end != start:
            self._triggered_at = time.monotonic()
        return end

    def _is_too_early(self, tail: Tail[AnyOffset], start: AnyOffset) -> bool:
        is_late = time.monotonic() - self._triggered_at >= self._max_seconds
        if self._min_entries == 1 or is_late or tail.only_pins_the_end(start):
            return False
        end = tail.latest(start, NO_LIMITS)
        # Without a new entry, too: the log can grow before its end is asked for again.
        return end == tail.latest(start, Limits(entries=self._min_entries - 1, until=end))


class StreamReader(PartReader, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[AnyOffset]):
    """What the stream readers share. `options` are those of a stream (`tail.stream_options`)."""

    def __init__(self, options: ReadOptions, schema: StructType, table: str = LOG) -> None:
        super().__init__(schema, table)
        self.options = options
        self._tail: Tail[AnyOffset] | None = None
        self._until: AnyOffset | None = None
        self._tracker: _OffsetTracker[AnyOffset] | None = _OffsetTracker() if not HAS_LIMITS else None
        self._delay = _TriggerDelay(options)
        limits = options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_offsets_per_trigger
        if not HAS_LIMITS and any(limits):
            raise OptionError(
                "minOffsetsPerTrigger, maxOffsetsPerTrigger and maxBytesPerTrigger need PySpark 4.2 or later, found "
                f"{pyspark.__version__}: leave them out, or upgrade"
            )

    @abstractmethod
    def open_tail(self) -> Tail[AnyOffset]:
        """Return the tail. Called once, on the driver."""

    @abstractmethod
    def offset(self, value: dict[str, Any] | None) -> AnyOffset:
        """Return the offset from a checkpoint; None is that nothing was read. Raises OptionError for anything else."""

    @property
    def tells_start(self) -> bool:
        """Return whether Spark says where a query is when it asks for the next end."""
        return self._tracker is None

    @property
    def tail(self) -> Tail[AnyOffset]:
        if self._tail is None:
            self._tail = self.open_tail()
        return self._tail

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tail": None}

    # What Spark calls.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return that nothing was read yet. A first batch that is retried begins at the same offset."""
        return dict(self.offset(None).to_json())

    @plain_errors
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` if nothing is new, or too little.

        A trigger that reads all that there is, as those of AvailableNow together, is not delayed.
        """
        begin = self.offset(start)
        if start is None and self._tracker is not None:
            begin = self._tracker.offset or begin
        limits = self._limits(limit)
        if limit is None or not HAS_LIMITS or isinstance(limit, ReadAllAvailable) or limits.until is not None:
            return dict(self.tail.latest(begin, limits).to_json())
        return dict(self._delay.latest(self.tail, begin, limits).to_json())

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the rows after `start` up to `end`."""
        first, last = self.offset(start), self.offset(end)
        if self._tracker is not None:
            first = self._tracker.start_of(first, last)
        return [] if first == last else self.parts(self.tail.plan(first, last))

    def parts(self, planned: list[Any]) -> Sequence[InputPartition]:
        """Return the parts of a tail's plan, for Spark."""
        return [InputPartition(part) for part in planned]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits: Spark takes only one. `latestOffset` applies all."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the present end of the log, up to which a query of Trigger.AvailableNow reads."""
        self._until = self.tail.available()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end of the log and the lag, for the query's progress."""
        return self.tail.progress().to_json()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a batch holds no resources."""

    def stop(self) -> None:
        """Close the tail."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _limits(self, limit: ReadLimit | None) -> Limits[AnyOffset]:
        """Return the limits of a trigger: none if Spark asks for all, else its own and the options'."""
        limits = replace(NO_LIMITS, until=self._until)
        if limit is None or not HAS_LIMITS or isinstance(limit, ReadAllAvailable):
            return limits
        entries, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            entries = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return replace(limits, entries=entries, size=size)


class StoreStreamReader(StreamReader[TailOffset]):
    """Tails a store on disk."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        check_local((path,), "to follow")
        super().__init__(options, schema)
        self.path = path

    def offset(self, value: dict[str, Any] | None) -> TailOffset:
        return offset_from_json(value)

    def open_tail(self) -> StoreTail:
        """See `StreamReader.open_tail`. The tail reads the store at its first call."""
        return StoreTail(self.path, self.options, self.columns)

    def parts(self, planned: list[Partition]) -> Sequence[InputPartition]:
        return log_parts(planned)

    def read_part(self, part: Partition) -> Iterator[pa.RecordBatch]:
        return read_partition(part)
