"""The stream readers: what Spark asks of a tail, in PySpark 4.0 to 4.3 alike, and the reader of a store on disk.

Spark keeps one reader in one process on the driver for as long as a query runs, and pickles a second one for the tasks.
Offsets are JSON. From PySpark 4.2 on it gives `latestOffset` the start and a limit; before, it asks for the end alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.common.uris import check_local
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition
from pyspark_dledger.log.tail.store_tail import StoreTail, read_planned
from pyspark_dledger.log.tail.tail import (
    NO_LIMITS,
    NOTHING,
    Limits,
    Tail,
    TailOffset,
    furthest,
    offset_from_json,
)
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.log_reader import plain_batches
from pyspark_dledger.spark.schema import arrow_schema, column_names

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.0 and 4.1 stop a query of Trigger.AvailableNow by themselves, after one batch

        class SupportsTriggerAvailableNow:
            """What newer versions know a source by that can stop where it was when the query began."""


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False


class _Reached:
    """How far a query is, for PySpark 4.0 and 4.1, which ask where a batch ends without saying where it starts.

    After a restart the first end is found without knowing the start. It can lie below it, where less is known to be
    committed than before: such a batch is empty, and the next one begins where the query really was.
    """

    def __init__(self) -> None:
        self.offset: TailOffset | None = None
        self._planned: tuple[TailOffset, TailOffset] | None = None
        self._start = NOTHING

    def start_of(self, first: TailOffset, last: TailOffset) -> TailOffset:
        """Where the batch that Spark calls `first` to `last` begins; the same again when it is planned again."""
        if self._planned == (first, last):
            return self._start
        self._planned = (first, last)
        if self.offset is None:
            self.offset = furthest(first, last)
            self._start = first if self.offset == last else last
        else:
            self._start, self.offset = self.offset, last
        return self._start


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What the streams of a store and of a live group share. A subclass opens the tail, and reads a part of its plan.

    `options` are those of a stream (`tail.stream_options`). The tail is opened by the first call that needs it, never
    in a task.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = column_names(schema)
        self.schema = arrow_schema(schema)
        self._tail: Tail | None = None
        self._until: TailOffset | None = None
        self._reached = _Reached() if not HAS_LIMITS else None
        if not HAS_LIMITS and (options.max_offsets_per_trigger or options.max_bytes_per_trigger):
            raise OptionError(
                "maxOffsetsPerTrigger and maxBytesPerTrigger need PySpark 4.2 or later, which asks a Python source for "
                f"no more than a limit, found {pyspark.__version__}: leave them out, or upgrade"
            )

    @abstractmethod
    def open_tail(self) -> Tail:
        """The tail of what is streamed; called once, on the driver."""

    @abstractmethod
    def read_part(self, part: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one part of `Tail.plan`, in a task, where there is no tail; columns as in ``self.columns``."""

    @property
    def tail(self) -> Tail:
        if self._tail is None:
            self._tail = self.open_tail()
        return self._tail

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tail": None}

    # What Spark calls.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Nothing read yet: always the same, so that a first batch that is tried again begins where it began."""
        return NOTHING.to_json()

    @plain_errors
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` where there is nothing new."""
        begin = offset_from_json(start)
        if start is None and self._reached is not None:
            begin = self._reached.offset or NOTHING
        return self.tail.latest(begin, self._limits(limit)).to_json()

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the rows behind `start` up to `end`."""
        first, last = offset_from_json(start), offset_from_json(end)
        if self._reached is not None:
            first = self._reached.start_of(first, last)
        return [] if first == last else [InputPartition(part) for part in self.tail.plan(first, last)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one partition; Spark makes one of an empty plan, without a value."""
        if partition is None or partition.value is None:
            return
        for batch in plain_batches(self.read_part(partition.value)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits that are given, as Spark takes only one; `latestOffset` keeps both."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now: a query of Trigger.AvailableNow reads up to there."""
        self._until = self.tail.available()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the log is, and how much of it is left to read; for the query's progress."""
        return self.tail.progress().to_json()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: nothing is held for a batch."""

    def stop(self) -> None:
        """Free what the tail holds."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _limits(self, limit: ReadLimit | None) -> Limits:
        """The limits of a trigger: none where Spark asks for all there is, else its own and those of the options."""
        limits = replace(NO_LIMITS, until=self._until)
        if limit is None or not HAS_LIMITS or isinstance(limit, ReadAllAvailable):
            return limits
        entries, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            entries = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return replace(limits, entries=entries, size=size)


class StoreStreamReader(StreamReader):
    """Tails a store on disk. `options` are those of a stream."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        check_local((path,), "to follow")
        super().__init__(options, schema)
        self.path = path

    def open_tail(self) -> Tail:
        """See `StreamReader.open_tail`. Nothing of the store is read before the first call of the tail."""
        return StoreTail(self.path, self.options, self.columns)

    def read_part(self, part: Partition) -> Iterator[pa.RecordBatch]:
        """See `StreamReader.read_part`."""
        return read_planned(part, self.options.fail_on_data_loss)
