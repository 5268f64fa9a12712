"""The tail of a store on disk: what was committed since the last look, and whether what was read still stands there.

A look costs as much as there is new: the log is walked from its last known entry on, folders are listed again only
where they changed, and of the ConsumeQueues only what was written behind their last units is read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.uris import check_local
from pyspark_dledger.errors import DataLossError, StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters, IntFilter
from pyspark_dledger.log.committed import Bound, best, checkpoint_bound, proven_by_queues, queue_bound
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.options import EARLIEST, LATEST, ReadOptions, option_filters
from pyspark_dledger.log.plan import Partition, plan_between, plan_up_to, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import (
    NO_LIMITS,
    NOTHING,
    Limits,
    Tail,
    TailOffset,
    TailProgress,
    report_loss,
)
from pyspark_dledger.log.tail.tail_loss import Lost, Resumed, expired_positions, lost_entry, lost_message
from pyspark_dledger.log.tail.tail_view import EntryRef, View, message_of

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log.tail.queue_tail import QueueTails

_LOG = logging.getLogger(__name__)
# An entry that is being written is copied into the file within less.
_WRITING_SECONDS = 0.005
_MOST_ROWS_AT_ONCE = 100_000
# Files expire a few at a time.
_MOST_LOOKS = 10

_Result = TypeVar("_Result")


class StoreTail(Tail):
    """The tail of the store at `path`, for rows of `columns`. `options` are those of a stream (`tail.stream_options`).

    Nothing is read before the first call.
    """

    def __init__(self, path: str, options: ReadOptions, columns: tuple[str, ...]) -> None:
        check_local((path, *(options.data_dirs or ()), *(options.replicas or ())), "to follow")
        super().__init__(path, options)
        self._columns = columns
        self._store: StoreView | None = None
        self._view: View | None = None
        self._queues: QueueTails | None = None
        self._has_waited = False
        # The last entry of a log that nothing proves complete, as it was seen at the last look.
        self._unsettled: EntryRef | None = None
        self._first_row: int | None = None
        self._searched_to = 0
        self._given: tuple[TailOffset, int | None] = (NOTHING, None)
        self._until_instead: tuple[TailOffset, EntryRef] | None = None

    def latest(self, start: TailOffset, limits: Limits) -> TailOffset:
        """See `Tail.latest`."""
        return self._looking(lambda view: self._latest(view, start, limits))

    def _latest(self, view: View, start: TailOffset, limits: Limits) -> TailOffset:
        resumed = self._resume(view, start)
        last = self._up_to(view, limits.until)
        if resumed.pinned is not None:
            given = resumed.pinned
        elif self.only_pins_the_end(start):
            given = self._pinned_latest(view, last or view.end)
        elif last is None or resumed.pos is None or last.end <= resumed.pos:
            given = start
        else:
            given = self._within(view, start, resumed.pos, last, limits)
        self._given = (given, resumed.pos if given == start else None)
        return given

    def available(self) -> TailOffset:
        """See `Tail.available`."""
        return self._looking(lambda view: view.end.offset if view.end is not None else NOTHING)

    def plan(self, start: TailOffset, end: TailOffset) -> list[Partition]:
        """See `Tail.plan`."""
        if self.only_pins_the_end(start):
            return []
        # What was just looked at holds the batch that was just given.
        view = self._view if end == self._given[0] else None
        return self._looking(lambda view: self._plan(view, start, end), view)

    def _plan(self, view: View, start: TailOffset, end: TailOffset) -> list[Partition]:
        resumed, last = self._resume(view, start), self._planned_end(view, end)
        # PySpark 4.0 and 4.1 ask after a restart for a batch that ends behind the place where reading goes on.
        first = resumed.pos if resumed.pinned is None else self._check(view, resumed.pinned)[0]
        if first is None or last is None or last <= first:
            return []
        committed = view.bound.index
        if self.options.isolation_level == "read_committed" and end.index is not None:
            committed = max(end.index, -1 if committed is None else committed)
        return plan_between(view.store, self._columns, self.options, self._filters, committed, first, last)

    def progress(self) -> TailProgress:
        """See `Tail.progress`."""
        view = self._view
        if view is None:
            return TailProgress(None, None, None, None)
        end = view.store.end
        return TailProgress(view.bound.index, end.last_index if end.entries > 0 else None, *self._lag(view))

    def close(self) -> None:
        """See `Tail.close`."""
        self._store = self._view = self._queues = None

    # Looking.

    def _looking(self, action: Callable[[View], _Result], view: View | None = None) -> _Result:
        """What `action` finds in the store as it stands now, or in `view` where there is one.

        A file that expires while it is looked at is looked at no more.
        """
        for _ in range(_MOST_LOOKS):
            try:
                return action(view if view is not None else self._look())
            except DataLossError:
                raise
            except StoreError:
                if self._store is None or all(os.path.lexists(segment.path) for segment in self._store.segments):
                    raise
                view = None
        return action(self._look())

    def _look(self) -> View:
        """The store as it stands now. What is committed is read before the log is, which then holds all of it."""
        before = self._view
        store = self._store = StoreView(self.name, self.options) if self._store is None else self._store.refreshed()
        bound = self._bound(store)
        view = self._view = View(store, bound, before.end if before is not None else None)
        view.end = self._readable_end(view)
        return view

    def _bound(self, store: StoreView) -> Bound:
        """What is known to be committed, as `Log.bound` has it."""
        wanted = self.options.committed_bound
        if wanted == "end":
            return Bound(store.end.last_index, "end")
        bounds = [] if wanted == "consumeQueue" else [checkpoint_bound(store)]
        known = bounds[0].index if bounds else None
        # Queues need not be looked at where the checkpoint knows all that there is.
        if wanted != "checkpoint" and (known is None or known < store.end.last_index):
            bounds.append(self._queue_bound(store, self._committed_before(store)))
        return best(bounds, store.end.last_index)

    def _committed_before(self, store: StoreView) -> int | None:
        """The highest index that an earlier look knew to be committed; None if another log stands there now."""
        before = self._view
        if before is None or before.end is None or before.end.offset.index is None:
            return None
        is_there = View(store, before.bound, None).place(DLEDGER, before.end.pos) == before.end
        return before.bound.index if is_there else None

    def _queue_bound(self, store: StoreView, before: int | None) -> Bound:
        """What the queues prove; `before` is the highest index that was known to be committed already."""
        root, index = store.paths.root, None
        if root is not None and store.paths.node_dir is not None:
            from pyspark_dledger.log.tail.queue_tail import QueueTails  # needs numpy, which takes a while to load

            if self._queues is None or self._queues.root != root:
                self._queues = QueueTails(root)
            following = message_of(store, before + 1) if before is not None else None
            if following is not None and self._queues.has_unit_of(*following) is False:
                return queue_bound(before)
            self._queues.look()
            index = proven_by_queues(store, self._queues.proven_index)
        return queue_bound(index)

    def _readable_end(self, view: View) -> EntryRef | None:
        """The last entry or message that may be read."""
        store = view.store
        if self.options.isolation_level == "read_uncommitted" or self.options.committed_bound == "end":
            return self._settled_end(view)
        if not store.ledger_segments:
            return self._settled_end(view)
        if view.bound.index is None:
            self._wait(store, view.bound)
            return view.old_end()
        begin = view.begin_index
        if begin is None or view.bound.index < begin:
            return view.old_end()
        last = view.entry(view.bound.index)
        # Where damage took that entry, the one behind it is not known to be committed.
        is_behind = last is not None and last.offset.index is not None and last.offset.index > view.bound.index
        return self._before(view, last) if last is not None and is_behind else last

    def _wait(self, store: StoreView, bound: Bound) -> None:
        """Say once that nothing is known to be committed. Raises StoreError where nothing ever will be."""
        reason = f"{self.name}: expected a committed index, found none ({bound.reason})"
        if not self._has_waited and self._is_of_040(store):
            raise StoreError(
                f"{reason}: DLedger 0.4.0 keeps it in memory only, committedBound=end trusts the end of the log"
            )
        if not self._has_waited:
            self._has_waited = True
            _LOG.warning("%s: waiting for it; committedBound=end trusts the end of the log", reason)

    def _is_of_040(self, store: StoreView) -> bool:
        """Whether DLedger 0.4.0 wrote the store: it has a snapshot folder, or an entry of a kind that is new there."""
        if store.dialect == "0.4":
            return True
        end = max((store.segment_end(segment) for segment in store.ledger_segments), default=0)
        return self._first_row_of(store, store.ledger_segments[0].base, end, Filters(kind=("noop",))) is not None

    def _settled_end(self, view: View) -> EntryRef | None:
        """The last entry of the log that is surely written completely, where nothing says that it is committed.

        An entry is where its index unit stands, which is written behind it, or another entry. Where the index does not
        go on that far, it is where a second look finds the same bytes. A message of a plain CommitLog tells by itself.
        """
        end = view.store.end
        last = view.place(DLEDGER, end.last_pos) if end.entries > 0 else view.old_end()
        if last is None or (last.offset.index is not None and view.store.indexed(last.offset.index) == last.pos):
            return last
        if last.offset.index is None:
            return last if view.is_whole(last) else self._before(view, last)
        begin = view.begin_index
        before = view.entry(last.offset.index - 1) if begin is not None and begin < last.offset.index else None
        if (
            before is not None
            and before.offset.index is not None
            and view.store.indexed(before.offset.index) is not None
        ):
            return before
        if last != self._unsettled:
            time.sleep(_WRITING_SECONDS)
        self._unsettled = view.place(DLEDGER, last.pos)
        return last if self._unsettled == last else before

    def _before(self, view: View, last: EntryRef) -> EntryRef | None:
        """The message or entry before that one, looked for from the last known one on, else in the last two files."""
        known = view.known
        is_known = known is not None and (known.offset.index is None) == (last.offset.index is None)
        if known is None or not is_known or known.pos >= last.pos:
            segments = [segment for segment in view.store.segments if segment.base <= last.pos]
            low = segments[-2:][0].base
        else:
            low = known.pos
        found = self._walk(view, low, last.pos, NO_LIMITS) if low < last.pos else None
        return view.place(*found) if found is not None else None

    # Resuming.

    def _resume(self, view: View, start: TailOffset) -> Resumed:
        """Where reading goes on behind `start`. Raises DataLossError, or warns once."""
        if start == NOTHING:
            return Resumed(self._start_position(view))
        found, lost = self._check(view, start)
        if lost is None:
            return Resumed(found)
        self.report_loss(start, lost.problem, lost.resumed)
        return lost.to

    def _check(self, view: View, start: TailOffset) -> tuple[int | None, Lost | None]:
        """The position behind an offset, if that still stands in the log, else what is wrong."""
        assert start.pos is not None
        if not start.is_entry:
            return (start.pos, None) if start.pos >= view.begin else (None, expired_positions(view, start))
        source = DLEDGER if start.index is not None else COMMITLOG
        found = view.place(source, start.pos)
        # Java leaves the bytes of what it cut off behind the end of its log.
        if found is not None and found.offset == start and (source == COMMITLOG or found.end <= view.store.end.pos):
            return found.end, None
        if start.index is None:
            return None, lost_message(view, start)
        begin = view.begin_index
        if begin is not None and begin == start.index + 1 and view.position_of(begin) > start.pos:
            return view.position_of(begin), None  # it has expired, and what follows it has not
        return None, lost_entry(view, start, begin)

    def _planned_end(self, view: View, end: TailOffset) -> int | None:
        """The position behind a batch's last entry; None where nothing of the batch can be told to be there."""
        if not end.is_entry:
            return end.pos
        position, lost = self._check(view, end)
        if lost is None:
            return position
        self.report_loss(end, lost.problem, lost.resumed)
        return view.position_of(lost.cut_at) if lost.cut_at is not None else None

    # Starting.

    def _start_position(self, view: View) -> int | None:
        """Where the first row to read stands, as the options say; None where it is not there yet."""
        options = self.options
        if options.starting_offsets == LATEST:
            return None
        if options.starting_offsets == EARLIEST and options.starting_timestamp is None:
            return view.begin
        if self._first_row is not None and self._first_row >= view.begin:
            return self._first_row
        if view.end is None:
            return None
        self._first_row = self._find_start(view, view.end.end)
        return self._first_row

    def _find_start(self, view: View, end: int) -> int | None:
        offset, low = self.options.starting_offsets, view.begin
        if offset.kind == "index":
            self._check_start(view.begin_index, "index", "entry with index")
            last = view.end.offset.index if view.end is not None else None
            if last is None or offset.value > last:
                return None
            low = view.position_of(max(offset.value, view.begin_index or 0))
        if offset.kind == "pos":
            self._check_start(view.begin, "pos", "row at pos")
            if offset.value >= end:
                return None
            found = self._first_row_of(view.store, low, end, Filters(pos=IntFilter(low=offset.value)))
            if found is None:
                return None
            low = found
        if self.options.starting_timestamp is None:
            return low
        wanted = Filters(store_timestamp=IntFilter(low=self.options.starting_timestamp))
        found = self._first_row_of(view.store, max(low, self._searched_to), end, wanted)
        self._searched_to = end
        return found

    def _check_start(self, begin: int | None, kind: str, what: str) -> None:
        value = self.options.starting_offsets.value
        if begin is not None and value < begin and self.options.fail_on_data_loss:
            raise StoreError(
                f"{self.name}: startingOffsets: expected {kind} {value}, found the first {what} {begin}: start there "
                "or later, or set failOnDataLoss=false"
            )

    def _first_row_of(self, store: StoreView, low: int, end: int, filters: Filters) -> int | None:
        """Where the first row of ``[low, end)`` that passes begins."""
        options = replace(_whole_segments(self.options), max_batch_rows=1)
        if filters.pos is not None:
            parts = plan_up_to(store, ("pos",), replace(options, starting_offsets=EARLIEST), filters, None)
        else:
            parts = plan_between(store, ("pos",), options, filters, None, low, end)
        batches = (batch for part in parts for batch in read_partition(part))
        first = next((batch for batch in batches if batch.num_rows), None)
        pos = first.column(0)[0].as_py() if first is not None else None
        return pos if pos is not None and pos < end else None

    def _pinned_latest(self, view: View, last: EntryRef | None) -> TailOffset:
        """Where a stream that begins with what comes next begins; `NOTHING` where that cannot be told yet."""
        if last is not None and (view.bound.index is not None or not view.store.end.entries):
            return last.offset
        if last is not None and self.options.isolation_level == "read_uncommitted":
            return last.offset
        if view.store.end.entries and view.bound.index is None:
            return NOTHING
        return TailOffset(pos=view.begin)

    # Limits.

    def _within(self, view: View, start: TailOffset, pos: int, last: EntryRef, limits: Limits) -> TailOffset:
        """The last entry from `pos` on, up to `last`, that keeps all limits; at least the first."""
        if limits.size is None or last.end - pos <= limits.size:
            if limits.entries is None:
                return last.offset
            found = self._counted(view, start, last, limits.entries)
            if found is not None:
                return found
        walked = self._walk(view, pos, last.end, limits)
        found_place = view.place(*walked) if walked is not None else None
        return found_place.offset if found_place is not None else last.offset

    def _counted(self, view: View, start: TailOffset, last: EntryRef, entries: int) -> TailOffset | None:
        """So many entries behind `start`, at most `last`, by their indexes; None where those do not tell."""
        if start.index is None or last.offset.index is None or view.begin_index is None:
            return None
        index = max(start.index + 1, view.begin_index) + entries - 1
        if index >= last.offset.index:
            return last.offset
        pos = view.store.indexed(index)
        found = view.place(DLEDGER, pos) if pos is not None else None
        return found.offset if found is not None else None

    def _walk(self, view: View, start: int, end: int, limits: Limits) -> tuple[str, int] | None:
        """Source and position of the last entry within the limits; damage counts, but no batch ends with it."""
        import numpy as np  # takes a while to load

        rows_left = INT64_MAX if limits.entries is None else limits.entries
        bytes_left = INT64_MAX if limits.size is None else limits.size
        at_once = min(rows_left, bytes_left // ENTRY_HEADER_SIZE + 1, _MOST_ROWS_AT_ONCE)
        options = replace(_whole_segments(self.options), max_batch_rows=at_once)
        found: tuple[str, int] | None = None
        for part in plan_between(view.store, ("pos", "size", "kind", "source"), options, Filters(), None, start, end):
            for batch in filter(len, read_partition(part)):
                used = np.cumsum(batch.column(1).to_numpy(), dtype=np.int64)
                fitting = min(rows_left, int(np.searchsorted(used, bytes_left, side="right")))
                entries = np.flatnonzero([kind != "corrupt" for kind in batch.column(2).to_pylist()])
                within = entries[entries < fitting]
                if len(within) or (found is None and len(entries)):
                    row = int(within[-1] if len(within) else entries[0])
                    found = batch.column(3)[row].as_py(), batch.column(0)[row].as_py()
                if fitting < batch.num_rows and found is not None:
                    return found
                rows_left, bytes_left = max(rows_left - batch.num_rows, 0), max(bytes_left - int(used[-1]), 0)
        return found

    @property
    def _filters(self) -> Filters:
        """The row filters of the options; a start says where a stream begins, and filters nothing behind it."""
        return option_filters(replace(self.options, starting_timestamp=None))

    def _lag(self, view: View) -> tuple[int | None, int | None]:
        """Entries and bytes that may be read behind the offset that was given last."""
        offset, pos = self._given
        if view.end is None:
            return None, None
        if pos is None:
            found = view.place(DLEDGER if offset.index is not None else COMMITLOG, offset.pos or 0)
            pos = found.end if found is not None and offset.is_entry else offset.pos
        entries = None
        if view.end.offset.index is not None and offset.index is not None:
            entries = max(view.end.offset.index - offset.index, 0)
        return entries, max(view.end.end - pos, 0) if pos is not None else None

    def _up_to(self, view: View, until: TailOffset | None) -> EntryRef | None:
        """The last entry that may be read, at most `until`."""
        end = view.end
        if until is None or end is None:
            return end
        if not until.is_entry or until.pos is None:
            return None
        found = view.place(DLEDGER if until.index is not None else COMMITLOG, until.pos)
        if found is not None and found.offset == until:
            return found if until.pos < end.pos else end
        # It is gone: the query ends where the log ended when that was noticed, or it would never end.
        if self._until_instead is None or self._until_instead[0] != until:
            self._until_instead = until, end
        return self._until_instead[1]


def read_planned(partition: Partition, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a planned partition. A file that has expired since it was planned is lost data; see `report_loss`."""
    for part in partition.ranges:
        try:
            yield from read_partition(replace(partition, ranges=(part,)))
        except StoreError:
            if isinstance(part, FileGap) or os.path.lexists(part.segment.path):
                raise
            problem = f"{part.segment.path}: expected positions {part.start} to {part.end - 1}, found the file deleted"
            report_loss(problem, "they are skipped", fail_on_data_loss)


def _whole_segments(options: ReadOptions) -> ReadOptions:
    """Options for a walk in one piece, over damage and all."""
    return replace(options, max_partition_bytes=INT64_MAX, min_partitions=None, mode="PERMISSIVE")
