"""The stream reader of a live group, and its tail.

The tail finds new committed entries, checks those already read, and plans the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, final

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import IndexRangeError, OptionError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.plan import scan_template
from pyspark_dledger.log.tail.tail import NOTHING, Limits, Tail, TailOffset, TailProgress, offset_from_json
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.group.group_log import GroupEntry, GroupLog, NotCommittedError, begin_index, committed_index
from pyspark_dledger.spark.group.group_partition import GroupPartition, GroupScan, read_group_partition
from pyspark_dledger.spark.group.group_plan import GroupStart, address_of, group_parts
from pyspark_dledger.spark.stream.stream_reader import StreamReader


class _Unread(NamedTuple):
    """The committed indexes that were not read yet: from `first` to `last`; none if `last` is smaller."""

    first: int
    last: int


@final
class GroupTail(Tail[TailOffset]):
    """The tail of a live group, for rows of `columns`. A trigger sends each member a few requests."""

    def __init__(self, address: GroupAddress, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._log = GroupLog(address)
        super().__init__(self._log.name, options)
        self._start = GroupStart(self._log, options)
        # startingTimestamp is where a stream begins, no filter.
        request = scan_template(columns, options, replace(option_filters(options), store_timestamp=None))
        self._scan = GroupScan(address, request, get_engine(options.engine).NAME, options.fail_on_data_loss)
        self._latest = NOTHING
        # Entries and bytes that it adds.
        self._added = 0, 0

    def close(self) -> None:
        self._log.close()

    def latest(self, start: TailOffset, limits: Limits[TailOffset]) -> TailOffset:
        """See `Tail.latest`. If the committed index stands still, as after an election, nothing is new."""
        self._latest = self._end_of_trigger(start, limits)
        return self._latest

    def available(self) -> TailOffset:
        """See `Tail.available`: the last entry that a member knows to be committed."""
        return self._end_offset(committed_index(self._log.statuses()))

    def plan(self, start: TailOffset, end: TailOffset) -> list[GroupPartition]:
        """See `Tail.plan`: ranges of indexes of at most ``maxPartitionBytes`` of the log."""
        if end.index is None or self.only_pins_the_end(start):
            return []
        last = self._planned_end(end)
        unread = self._check(start)
        if isinstance(unread, TailOffset):
            # After a restart PySpark 4.0 and 4.1 ask for a batch that ends after the position where reading continues.
            unread = self._check(unread)
        if last is None or isinstance(unread, TailOffset) or unread.first > last.index:
            return []
        return group_parts(self._log, self._scan, self.options, self._log.entry(unread.first), last)

    def progress(self) -> TailProgress:
        statuses = self._log.statuses()
        end = max(status.end_index for status in statuses.values())
        committed, latest = self._end_offset(committed_index(statuses)), self._latest
        if committed.index is None or committed.pos is None:
            return TailProgress(None, end if end >= 0 else None, 0, 0, *self._added, self._expired)
        lag_entries = committed.index - latest.index if latest.index is not None else None
        lag_bytes = committed.pos - latest.pos if latest.pos is not None else None
        return TailProgress(committed.index, end, lag_entries, lag_bytes, *self._added, self._expired)

    # The end of a trigger.

    def _end_of_trigger(self, start: TailOffset, limits: Limits[TailOffset]) -> TailOffset:
        self._added = 0, 0
        if self.only_pins_the_end(start):
            return limits.until or self.available()
        unread = self._check(start)
        if isinstance(unread, TailOffset):
            return unread
        first, last = unread
        if limits.until is not None:
            last = min(last, -1 if limits.until.index is None else limits.until.index)
        if last < first:
            return start
        end = self._log.entry(min(last, first + (limits.entries or INT64_MAX) - 1))
        if limits.size is not None and end.index > first:
            end = self._log.last_within(self._log.entry(first), end, limits.size)
        # Positions of last entries, as for the lag.
        size = end.pos - start.pos if start.is_entry and start.pos is not None else end.end - self._log.entry(first).pos
        self._added = end.index - first + 1, size
        return end.offset

    def _end_offset(self, committed: int) -> TailOffset:
        """Return the offset of the last committed entry; in an empty log the position where reading begins."""
        return self._log.entry(committed).offset if committed >= 0 else TailOffset(pos=0)

    # Whether the entries that were read are still there.

    def _check(self, start: TailOffset) -> _Unread | TailOffset:
        """Return what is new after `start`.

        If the entry there is another one now, return an offset of the present log instead. The batch to it is empty,
        so that the checkpoint stores it, and reading continues after it. Raises DataLossError.
        """
        if not start.is_entry:
            return self._check_position(start)
        index = self._index_of(start)
        try:
            found, committed = self._log.entry_and_committed(index)
        except NotCommittedError:
            return self._check_not_committed(start, index)
        except IndexRangeError:
            return self._check_expired(start, index + 1)
        if found.offset != start:
            problem = f"expected {start} with CRC {start.crc}, found {found.offset} with CRC {found.crc}"
            return self._continue_in(start, problem)
        # A member with nothing new may be cut off, or slow: ask all.
        return _Unread(index + 1, committed if committed > index else committed_index(self._log.statuses()))

    def _check_position(self, start: TailOffset) -> _Unread:
        begin, committed = self._bounds()
        if start.pos is None:
            return _Unread(self._start.first_index(begin, committed), committed)
        if 0 < begin <= committed and self._log.entry(begin).pos > start.pos:
            return self._check_expired(start, None)
        return _Unread(self._start.index_at(start.pos, begin, committed), committed)

    def _check_expired(self, start: TailOffset, first: int | None) -> _Unread:
        """Nothing is lost if only entries that were read have expired. `first` is the first unread index, if known."""
        begin, committed = self._bounds()
        if first is not None and begin <= first:
            return _Unread(first, committed)
        wanted, skipped = f"the entry at {start}", f"all entries before index {begin}"
        if first is not None:
            wanted, skipped = f"entry {first}", f"indexes {first} to {begin - 1}"
        problem = f"expected {wanted}, found all before index {begin} expired at every member"
        expired = begin - first if first is not None else 0
        self.report_loss(start, problem, f"reading continues with index {begin}; {skipped} are skipped", expired)
        return _Unread(begin, committed)

    def _check_not_committed(self, start: TailOffset, index: int) -> _Unread | TailOffset:
        """A committed entry is on a majority. If a majority lacks it, it was lost; else it will be committed again."""
        shorter = [status.end_index for status in self._log.statuses().values() if status.end_index < index]
        if 2 * len(shorter) <= self._log.size:
            return _Unread(index + 1, index)
        return self._continue_in(
            start, f"expected {start}, found logs that end at index {max(shorter)} on a majority of its members"
        )

    def _continue_in(self, start: TailOffset, problem: str) -> TailOffset:
        """Return where reading continues in a log that was truncated or replaced.

        Each election raises the term: entries of later terms were written since. Of others it is unknown whether they
        were read.
        """
        begin, committed = self._bounds()
        end = min(committed, self._index_of(start))
        same = self._end_offset(end)
        if same.term is None or start.term is None or same.term <= start.term:
            self.report_loss(start, problem, f"reading continues after {same}; entries up to it are skipped")
            return same
        first = self._start.index_after_term(start.term, begin, end)
        self.report_loss(start, problem, f"reading continues with index {first}, the first of a later term")
        return self._end_offset(first - 1) if first > begin else TailOffset(pos=self._log.entry(first).pos)

    def _bounds(self) -> tuple[int, int]:
        """Return the lowest index that a member has, and the highest that one knows to be committed."""
        statuses = self._log.statuses()
        return begin_index(statuses), committed_index(statuses)

    def _planned_end(self, end: TailOffset) -> GroupEntry | None:
        """Return the last entry of a batch; None if it was lost: then the batch is skipped."""
        index = self._index_of(end)
        try:
            found = self._log.entry(index)
        except IndexRangeError as error:
            problem = f"the batch ends with {end}, which is not there: {error}"
        else:
            if found.offset == end:
                return found
            problem = f"the batch ends with {end}: expected CRC {end.crc} there, found {found.crc}"
        self.report_loss(end, problem, f"reading continues after the batch, which is skipped up to index {end.index}")
        return None

    def _index_of(self, offset: TailOffset) -> int:
        if offset.index is None:
            raise OptionError(
                f"{self.name}: expected the checkpoint of a DLedger log, found {offset} of an old CommitLog, which a "
                "group does not have: tail the store by its path until the query has passed dividedCommitlogOffset"
            )
        return offset.index


class GroupStreamReader(StreamReader[TailOffset]):
    """Reads committed entries of a live group from any member. Tasks connect to members themselves.

    `options` are those of a stream, checked by `check_group_options`.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.address = address_of(options)

    def offset(self, value: dict[str, Any] | None) -> TailOffset:
        return offset_from_json(value)

    def open_tail(self) -> GroupTail:
        """See `StreamReader.open_tail`. The tail connects at its first call."""
        return GroupTail(self.address, self.options, self.columns)

    def read_part(self, part: GroupPartition) -> Iterator[pa.RecordBatch]:
        return read_group_partition(part)
