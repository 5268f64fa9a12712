"""The batch reader of a live group, and its plan: where it begins and ends, and a part for each task."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import message_in
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import EARLIEST, LATEST, ReadOptions, option_filters
from pyspark_dledger.log.plan import matches_nothing, partition_size, scan_template
from pyspark_dledger.spark.group.group_address import GroupAddress, group_address
from pyspark_dledger.spark.group.group_log import GroupEntry, GroupLog, begin_index, committed_index
from pyspark_dledger.spark.group.group_partition import GroupPartition, GroupScan, read_group_partition
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.batch_reader import PartReader, write_statistics

# Bytes of a request that searches a message.
_REQUEST_BYTES = 4 * 1024 * 1024


@final
class GroupStart:
    """The first index to read. It does not depend on how much of the log is committed."""

    def __init__(self, log: GroupLog, options: ReadOptions) -> None:
        self._log = log
        self._options = options
        # These committed entries hold no message; they are not read again.
        self._without_message = range(0)

    def first_index(self, begin: int, committed: int) -> int:
        """Return it, for a log from `begin` to `committed`; at least ``committed + 1`` if it is not committed yet.

        Raises StoreError for a start before `begin`, unless failOnDataLoss is false.
        """
        first = self.offset_index(begin, committed)
        if self._options.starting_timestamp is None:
            return first
        return self.stored_at(self._options.starting_timestamp // 1000, first, committed)

    def offset_index(self, begin: int, committed: int) -> int:
        """Return the index of startingOffsets, `begin` for ``earliest`` and ``latest``. Raises as `first_index`."""
        offset = self._options.starting_offsets
        if offset.kind == "index":
            return self._not_before("index", offset.value, begin)
        if offset.kind != "pos":
            return begin
        begin_pos = self._log.entry(begin).pos if begin <= committed else 0
        self._not_before("pos", offset.value, begin_pos)
        return self.index_at(offset.value, begin, committed)

    def index_at(self, pos: int, begin: int, committed: int) -> int:
        """Return the first index whose entry begins at or after `pos`."""
        if committed < begin or self._log.entry(committed).end <= pos:
            return committed + 1
        return _first_index(begin, committed, lambda index: self._log.entry(index).pos >= pos)

    def index_after_term(self, term: int, begin: int, last: int) -> int:
        """Return the first index with a term above `term`, as `last` has one."""
        return _first_index(begin, last, lambda index: self._log.entry(index).term > term)

    def _not_before(self, unit: str, start: int, begin: int) -> int:
        if start < begin and self._options.fail_on_data_loss:
            raise StoreError(
                f"{self._log.name}: startingOffsets: expected {unit} {start}, found the first entry with {unit} "
                f"{begin}: start there or later, or set failOnDataLoss=false"
            )
        return max(start, begin)

    def stored_at(self, milliseconds: int, begin: int, committed: int) -> int:
        """Return the first message from `begin` on stored at or after that time, if times rise; else ``committed + 1``.

        If times do not rise, it is one of the messages after which they pass that time. The search always reads the
        same indexes, so the result does not depend on how much is committed.
        """
        first = 0
        for bit in reversed(range((committed + 1).bit_length())):
            probe = first + (1 << bit)
            if probe - 1 <= committed and self._is_stored_before(milliseconds, max(probe - 1, begin), committed):
                first = probe
        message = self._next_message(max(first, begin), committed)
        return message[0] if message is not None else committed + 1

    def _is_stored_before(self, milliseconds: int, index: int, committed: int) -> bool:
        """Return whether the first message from `index` on was stored before that time."""
        message = self._next_message(index, committed)
        return message is not None and message[1] < milliseconds

    def _next_message(self, index: int, committed: int) -> tuple[int, int] | None:
        """Return index and storeTimestamp (ms since 1970) of the first committed message from `index` on."""
        start, size = index, 1
        while index <= committed:
            if index in self._without_message:
                index = self._without_message.stop
                continue
            data = memoryview(self._log.read(index, size).data)
            at, size = 0, _REQUEST_BYTES
            while at < len(data) and index <= committed:
                end = at + decode_entry_header(bytes(data[at : at + ENTRY_HEADER_SIZE])).size
                stored = _store_timestamp(bytes(data[at + ENTRY_HEADER_SIZE : end]))
                if stored is not None:
                    return index, stored
                at, index = end, index + 1
        known = self._without_message
        self._without_message = range(min(start, known.start) if start <= known.stop else start, index)
        return None


def _first_index(low: int, high: int, is_reached: Callable[[int], bool]) -> int:
    """Return the first index from `low` on for which `is_reached` is true; from there on it is, up to `high`."""
    return low + bisect_left(range(low, high), True, key=is_reached)


def _store_timestamp(body: bytes) -> int | None:
    """Return when a message was stored, in ms since 1970; None for any other entry."""
    message = message_in(body)
    return message.store_timestamp if message is not None else None


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
