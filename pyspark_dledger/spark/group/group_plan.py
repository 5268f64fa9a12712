"""The batch reader of a live group, and its plan: parts of its committed entries, one for each task."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import EARLIEST, LATEST, ReadOptions, option_filters
from pyspark_dledger.log.plan import matches_nothing, partition_size, scan_template
from pyspark_dledger.spark.group.group_address import GroupAddress, group_address
from pyspark_dledger.spark.group.group_log import GroupEntry, GroupLog, begin_index, committed_index
from pyspark_dledger.spark.group.group_partition import GroupPartition, GroupScan, read_group_partition
from pyspark_dledger.spark.group.group_start import GroupStart
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.batch_reader import PartReader, write_statistics

# Times of messages are those of their leaders' clocks, which differ by less than this, in ms.
_MAX_CLOCK_SKEW = 10 * 60 * 1000


def address_of(options: ReadOptions) -> GroupAddress:
    """Return the group's address. Raises OptionError if it is incomplete."""
    return group_address(options.group, options.peers, options.tls_cert, options.tls_key, options.tls_ca)


def check_group_options(options: ReadOptions) -> None:
    """Raises OptionError for options that do not apply to a live group. Connects to nothing."""
    address_of(options)
    if options.isolation_level == "read_uncommitted":
        raise OptionError(
            "isolationLevel=read_uncommitted: a live group gives committed entries only: leave it out, or read the "
            "store of a member by its path"
        )


def group_parts(
    log: GroupLog, scan: GroupScan, options: ReadOptions, first: GroupEntry, last: GroupEntry
) -> list[GroupPartition]:
    """Return parts of at most ``maxPartitionBytes`` of the log, that together have the entries `first` to `last`."""
    ranges = enumerate(_ranges(log, options, first, last))
    return [GroupPartition(scan, low.index, high, number) for number, (low, high) in ranges]


def _ranges(
    log: GroupLog, options: ReadOptions, low: GroupEntry, last: GroupEntry
) -> Iterator[tuple[GroupEntry, GroupEntry]]:
    # No scan is selective: a task receives all bytes of its range, also those of rows and columns that it drops.
    size = partition_size(last.end - low.pos, options)
    while True:
        high = log.last_within(low, last, size)
        yield low, high
        if high.index == last.index:
            return
        low = log.entry(high.index + 1)


def batch_bounds(log: GroupLog, options: ReadOptions, filters: Filters) -> tuple[GroupEntry, GroupEntry] | None:
    """Return the first and the last entry that a batch read plans; None if there is nothing to read.

    The end is at most the last entry that a member knows to be committed. Indexes and times of the filters narrow the
    range. Raises StoreError for a start that has expired, unless failOnDataLoss is false.
    """
    statuses = log.statuses()
    begin, committed = begin_index(statuses), committed_index(statuses)
    start = GroupStart(log, options)
    first, end = begin, committed + 1
    if options.starting_offsets != EARLIEST:
        first = end if options.starting_offsets == LATEST else start.offset_index(begin, committed)
    if options.ending_offsets != LATEST:
        offset = options.ending_offsets
        end = min(end, start.index_at(offset.value, begin, committed) if offset.kind == "pos" else offset.value)
    if filters.index is not None:
        first, end = max(first, filters.index.low), min(end, filters.index.high + 1)
    times = filters.store_timestamp
    if times is not None and times.low > INT64_MIN and first < end:
        first = start.stored_at(times.low // 1000 - _MAX_CLOCK_SKEW, first, end - 1)
    if times is not None and times.high < INT64_MAX and first < end:
        end = start.stored_at(times.high // 1000 + 1 + _MAX_CLOCK_SKEW, first, end - 1)
    return (log.entry(first), log.entry(end - 1)) if first < end and not matches_nothing(filters) else None


class GroupReader(PartReader, DataSourceReader):
    """Reads what is committed when the read is planned. Tasks connect to members themselves."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(schema)
        self.options = options
        self.filters = option_filters(options)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the entries. Raises GroupError with the error of each member if none responds."""
        options, address = self.options, address_of(self.options)
        request = scan_template(self.columns, options, self.filters)
        engine = get_engine(options.engine).NAME
        scan = GroupScan(address, request, engine, options.fail_on_data_loss, is_stream=False)
        with GroupLog(address) as log:
            bounds = batch_bounds(log, options, self.filters)
            if bounds is None:
                return []
            first, last = bounds
            parts = [InputPartition(part) for part in group_parts(log, scan, options, first, last)]
        write_statistics(parts, last.index - first.index + 1, last.end - first.pos)
        return parts

    def read_part(self, part: GroupPartition) -> Iterator[pa.RecordBatch]:
        return read_group_partition(part)
