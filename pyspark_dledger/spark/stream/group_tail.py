"""Tailing a live group: which committed entries are new, whether what was read is still there, and who reads what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, final

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import IndexRangeError, OptionError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log.options import LATEST, ReadOptions
from pyspark_dledger.log.tail.tail import NOTHING, Limits, Tail, TailOffset, TailProgress, report_loss
from pyspark_dledger.raft.client import MemberStatus
from pyspark_dledger.spark.group_address import GroupAddress
from pyspark_dledger.spark.stream.group_log import GroupLog, NotCommittedError, PlacedEntry, begin_of
from pyspark_dledger.spark.stream.group_read import GroupPartition, scan_template
from pyspark_dledger.spark.stream.group_start import GroupStart

# All bytes of a range travel to the task, whichever of their rows and columns it sends on.
_MAX_PARTITION_BYTES = 128 * 1024 * 1024


class _Checked(NamedTuple):
    """What a trigger begins with: the first index that was not read, and the highest known to be committed."""

    first: int
    committed: int


@final
class GroupTail(Tail):
    """A live group as one stream sees it. A trigger asks its members a few times, however long the log is.

    `columns` are those that the tasks read.
    """

    def __init__(self, address: GroupAddress, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._address = address
        self._options = options
        self._log = GroupLog(address)
        self._start = GroupStart(self._log, options)
        self._scan = scan_template(columns, options)
        self._engine = get_engine(options.engine).NAME
        self._begins_at_end = options.starting_offsets == LATEST
        self._warned: set[TailOffset] = set()
        self._reached = NOTHING

    def close(self) -> None:
        self._log.close()

    # What `Tail` asks for.

    def latest(self, start: TailOffset, limits: Limits) -> TailOffset:
        """See `Tail.latest`. A committed index that stands still for long, as after an election, is nothing new."""
        self._reached = self._latest(start, limits)
        return self._reached

    def available(self) -> TailOffset:
        """See `Tail.available`: the last entry that any member which answers knows to be committed."""
        return self._end(_committed(self._log.statuses()))

    def plan(self, start: TailOffset, end: TailOffset) -> list[GroupPartition]:
        """See `Tail.plan`: ranges of indexes, each of which takes at most ``maxPartitionBytes`` of the log."""
        if end.index is None or (start == NOTHING and self._begins_at_end):
            return []
        last = self._last(end)
        checked = self._check(start)
        if isinstance(checked, TailOffset):
            # PySpark 4.0 and 4.1 ask after a restart for a batch that ends behind the place where reading goes on.
            checked = self._check(checked)
        if last is None or isinstance(checked, TailOffset):
            return []
        ranges = self._ranges(checked.first, last) if checked.first <= last.index else iter(())
        fails = self._options.fail_on_data_loss
        return [
            GroupPartition(self._address, low, high, self._scan, self._engine, fails, number)
            for number, (low, high) in enumerate(ranges)
        ]

    def progress(self) -> TailProgress:
        """See `Tail.progress`."""
        statuses = self._log.statuses()
        end = max(status.end_index for status in statuses.values())
        committed = self._end(_committed(statuses))
        read = self._reached
        if committed.index is None or committed.pos is None:
            return TailProgress(None, end if end >= 0 else None, 0, 0)
        lag_entries = committed.index - read.index if read.index is not None else None
        lag_bytes = committed.pos - read.pos if read.pos is not None else None
        return TailProgress(committed.index, end, lag_entries, lag_bytes)

    # Where a trigger ends.

    def _latest(self, start: TailOffset, limits: Limits) -> TailOffset:
        if start == NOTHING and self._begins_at_end:
            return limits.until or self.available()
        checked = self._check(start)
        if isinstance(checked, TailOffset):
            return checked
        committed = checked.committed
        if limits.until is not None:
            committed = min(committed, -1 if limits.until.index is None else limits.until.index)
        if committed < checked.first:
            return start
        last = self._log.entry(min(committed, checked.first + (limits.entries or INT64_MAX) - 1))
        if limits.size is not None and last.index > checked.first:
            last = self._log.last_within(self._log.entry(checked.first), last, limits.size)
        return _offset(last)

    def _end(self, committed: int) -> TailOffset:
        """The offset of the last committed entry; in an empty log the place where reading begins."""
        return _offset(self._log.entry(committed)) if committed >= 0 else TailOffset(pos=0)

    # Whether what was read is still there.

    def _check(self, start: TailOffset) -> _Checked | TailOffset:
        """What is new behind `start`.

        Where what was read no longer stands there, it is an offset of the log as it is now. A batch up to there is
        empty, so that the checkpoint holds it, and reading goes on behind it.
        """
        if not start.is_entry:
            return self._check_unread(start)
        index = self._index_of(start)
        try:
            found, committed = self._log.entry_and_committed(index)
        except NotCommittedError:
            return self._check_behind(start, index)
        except IndexRangeError:
            return self._check_expired(start, index + 1)
        if _offset(found) != start:
            problem = f"expected {start} with CRC {start.crc}, found {_offset(found)} with CRC {found.crc}"
            return self._pinned(start, problem)
        # A member that knows of nothing new may be cut off, or slow.
        return _Checked(index + 1, committed if committed > index else _committed(self._log.statuses()))

    def _check_unread(self, start: TailOffset) -> _Checked:
        statuses = self._log.statuses()
        begin, committed = begin_of(statuses), _committed(statuses)
        if start.pos is None:
            return _Checked(self._start.first(begin, committed), committed)
        if 0 < begin <= committed and self._log.entry(begin).pos > start.pos:
            return self._check_expired(start, None)
        return _Checked(self._start.at_pos(start.pos, begin, committed), committed)

    def _check_expired(self, start: TailOffset, first: int | None) -> _Checked:
        """Nothing is lost where only what was read has expired. `first` is None where it is not known."""
        statuses = self._log.statuses()
        begin, committed = begin_of(statuses), _committed(statuses)
        if first is not None and begin <= first:
            return _Checked(first, committed)
        wanted, skipped = f"the entry at {start}", f"all before index {begin}"
        if first is not None:
            wanted, skipped = f"entry {first}", f"indexes {first} to {begin - 1}"
        problem = f"expected {wanted}, found all before index {begin} expired at every member"
        self._report(start, problem, f"reading goes on with index {begin}: {skipped} are skipped")
        return _Checked(begin, committed)

    def _check_behind(self, start: TailOffset, index: int) -> _Checked | TailOffset:
        """What is committed is on a majority: where one lacks it, it was lost, and else it will show again."""
        shorter = [status.end_index for status in self._log.statuses().values() if status.end_index < index]
        if 2 * len(shorter) <= self._log.size:
            return _Checked(index + 1, index)
        return self._pinned(
            start, f"expected {start}, found logs that end at index {max(shorter)} on a majority of its members"
        )

    def _pinned(self, start: TailOffset, problem: str) -> TailOffset:
        """Where reading goes on in a log that was cut, or replaced by another.

        Terms rise with every election, so entries of later terms are what was written since. Of others nobody can tell
        whether they were read.
        """
        statuses = self._log.statuses()
        begin, committed = begin_of(statuses), _committed(statuses)
        same = self._end(min(committed, self._index_of(start)))
        if same.term is None or start.term is None or same.term <= start.term:
            self._report(start, problem, f"reading goes on behind {same}: what is there up to it is skipped")
            return same
        first = self._start.with_term_above(start.term, begin, min(committed, self._index_of(start)))
        self._report(start, problem, f"reading goes on with index {first}, the first of a later term")
        return self._end(first - 1) if first > begin else TailOffset(pos=self._log.entry(first).pos)

    def _report(self, start: TailOffset, problem: str, resumed: str) -> None:
        """Raise, or warn once. Raises DataLossError."""
        fails = self._options.fail_on_data_loss
        if fails or start not in self._warned:
            report_loss(f"group {self._log.group}: {problem}", resumed, fails)
        self._warned.add(start)

    def _last(self, end: TailOffset) -> PlacedEntry | None:
        """The entry with which a batch was planned to end; None where the log lost it, and nothing is to be read."""
        found: PlacedEntry | None = None
        index = self._index_of(end)
        try:
            found = self._log.entry(index)
        except IndexRangeError as error:
            problem = f"expected {end}, with which a batch ends, found none: {error}"
        else:
            problem = f"expected {end} with CRC {end.crc}, with which a batch ends, found CRC {found.crc}"
        if found is not None and _offset(found) == end:
            return found
        resumed = f"reading goes on behind the batch, which is skipped up to index {end.index}"
        report_loss(f"group {self._log.group}: {problem}", resumed, self._options.fail_on_data_loss)
        return None

    def _index_of(self, offset: TailOffset) -> int:
        if offset.index is None:
            raise OptionError(
                f"group {self._log.group}: expected the checkpoint of a DLedger log, found {offset} of an old "
                "CommitLog, which a group does not hold: tail the store by its path until it has crossed "
                "dividedCommitlogOffset"
            )
        return offset.index

    # Who reads what.

    def _ranges(self, first: int, last: PlacedEntry) -> Iterator[tuple[int, int]]:
        low = self._log.entry(first)
        target = self._options.max_partition_bytes or _MAX_PARTITION_BYTES
        if self._options.min_partitions is not None:
            target = max(min(target, -(-(last.end - low.pos) // self._options.min_partitions)), 1)
        while True:
            high = self._log.last_within(low, last, target)
            yield low.index, high.index
            if high.index == last.index:
                return
            low = self._log.entry(high.index + 1)


def _offset(entry: PlacedEntry) -> TailOffset:
    return TailOffset(entry.index, entry.term, entry.pos, entry.crc)


def _committed(statuses: Mapping[str, MemberStatus]) -> int:
    """The highest index that a member knows to be committed; -1 without one."""
    return max(status.committed_index for status in statuses.values())
