"""The batch readers, planned on the driver and read in tasks, and the part that they share with stream readers."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.common.fields import changed, changes
from pyspark_dledger.common.process_memory import collector_paused
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.spec import Fingerprint, FollowingEntry, ScanRequest
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.origin import Origin, check_origin, origin_of
from pyspark_dledger.log.plan import Partition, estimated_rows, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.schema import LOG, arrow_schema, column_names
from pyspark_dledger.spark.sent_to_tasks import SentToTasks

if TYPE_CHECKING:
    from pyspark_dledger.log.conditions import Lookup
    from pyspark_dledger.log.tables.table import Table


_Changes = tuple[dict[str, Any], dict[str, Any], list[tuple[Any, ...]], tuple[Any, ...] | None]
"""Values of a request and of its segment that another one does not have; its fingerprints and following entry."""


class LogPartition(InputPartition):
    """A partition of the log, which is pickled as its differences from the plan's first range.

    Spark pickles the partitions of a read one by one. What they have in common is pickled once, and each has its bytes.
    """

    def __init__(self, value: Partition, model: ScanRequest, common: bytes) -> None:
        super().__init__(value)
        self._model = model
        self._common = common

    def __reduce__(self) -> tuple[Any, ...]:
        ranges = [_changes(part, self._model) for part in self.value.ranges]
        return _unpickled, (self._common, ranges, self.__dict__.get("statistics"))


def log_parts(partitions: Sequence[Partition]) -> list[InputPartition]:
    """The partitions of one plan, for Spark."""
    ranges = (part for each in partitions for part in each.ranges)
    model = next((part for part in ranges if isinstance(part, ScanRequest)), None)
    if model is None:
        return [InputPartition(each) for each in partitions]
    common = pickle.dumps(replace(partitions[0], ranges=(model,)))
    return [LogPartition(each, model, common) for each in partitions]


def _changes(part: ScanRequest | FileGap, model: ScanRequest) -> FileGap | _Changes:
    if isinstance(part, FileGap):
        return part
    request, segment, after = changes(part, model), changes(part.segment, model.segment), part.segment.after
    for name, changed_values in (("segment", request), ("fingerprints", request), ("after", segment)):
        changed_values.pop(name, None)
    return request, segment, [tuple(each) for each in part.fingerprints], after and tuple(after)


def _unpickled(common: bytes, ranges: list[FileGap | _Changes], _statistics: str | None) -> InputPartition:
    """A partition as `LogPartition` pickles it. The statistics are for the optimizer's extension only."""
    partition: Partition = pickle.loads(common)  # noqa: S301  # from the driver
    (model,) = partition.ranges
    return InputPartition(replace(partition, ranges=tuple(_range(part, model) for part in ranges)))


def _range(part: FileGap | _Changes, model: Any) -> ScanRequest | FileGap:
    if isinstance(part, FileGap):
        return part
    request, segment, fingerprints, after = part
    return changed(
        model,
        **request,
        segment=changed(model.segment, **segment, after=after and FollowingEntry(*after)),
        fingerprints=tuple(Fingerprint(*each) for each in fingerprints),
    )


class PartReader(SentToTasks, ABC):
    """Reads the columns in `schema`, with the user's spelling of their names. It is pickled for the tasks."""

    is_for_sail = False
    """Whether the types of columns can differ from those of the schema: Sail names the time zone UTC otherwise."""

    def __init__(self, schema: StructType, table: str = LOG) -> None:
        self.columns = column_names(schema, table)
        self.schema = arrow_schema(schema, table)

    @abstractmethod
    def read_part(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows of one part, with at least ``self.columns``."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one partition. For an empty plan Spark makes one: without a value, or None in PySpark 4.0 and 4.1."""
        if partition is None or partition.value is None:
            return
        batches = iter(self.read_part(partition.value))
        next_batch = plain_errors(lambda: next(batches, None))
        while (batch := next_batch()) is not None:
            columns = [batch.column(name) for name in self.columns]
            if self.is_for_sail:
                columns = [column.cast(kind) for column, kind in zip(columns, self.schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def write_statistics(parts: list[InputPartition], rows: int, size: int) -> None:
    """Write into the first part what the optimizer's extension reads there: rows and bytes of the whole read."""
    written: Any = parts[0]
    written.statistics = f"dledger-statistics rows={rows} bytes={size};"


class _PlannedPart(NamedTuple):
    """A part of a table, and the stores that it was planned on."""

    part: Any
    origins: tuple[Origin, ...]


class TableReader(PartReader, DataSourceReader):
    """Reads any table but ``log``."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        super().__init__(schema, options.table)
        self.path = path
        self.options = options

    @plain_errors
    @collector_paused()
    def partitions(self) -> list[InputPartition]:
        store = StoreView(self.path, self.options)
        parts = self.plan(store)
        self.add_statistics(store, parts)
        return parts

    def add_statistics(self, store: StoreView, parts: list[InputPartition]) -> None:
        """Write the statistics of the whole read, if they are known."""

    def plan(self, store: StoreView) -> list[InputPartition]:
        """Return the parts of the table, one for each task."""
        origins = tuple(map(origin_of, (store, *store.replicas)))
        return [InputPartition(_PlannedPart(part, origins)) for part in self._table().plan(store, self.options)]

    def read_part(self, part: Any) -> Iterator[pa.RecordBatch]:
        for origin in part.origins:
            check_origin(origin)
        return self._table().read(part.part)

    def _table(self) -> Table:
        from pyspark_dledger.rocketmq.tables import TABLES

        return TABLES[self.options.table]


class UnknownTable(DataSourceReader):
    """Stands for a table without a path, which fails when it is read."""

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise OptionError(self.problem)


class LogReader(TableReader):
    """Reads the ``log`` table."""

    def __init__(self, path: str, options: ReadOptions, schema: StructType) -> None:
        super().__init__(path, options, schema)
        self.filters = option_filters(options)
        self.lookup: Lookup | None = None

    def plan(self, store: StoreView) -> list[InputPartition]:
        return log_parts(plan_read(store, self.columns, self.options, self.filters, self.lookup))

    def add_statistics(self, store: StoreView, parts: list[InputPartition]) -> None:
        if parts:
            size = sum(part.value.size for part in parts)
            write_statistics(parts, estimated_rows(store, size), size)

    def read_part(self, part: Partition) -> Iterator[pa.RecordBatch]:
        return read_partition(part)
