"""The tail of a store on disk: which entries were committed since, and whether the entries that were read still exist.

A refresh reads only what is new: the log is walked from its last known entry, folders are listed again only if they
changed, and ConsumeQueues are read from their last known units.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.uris import check_local
from pyspark_dledger.errors import DataLossError, StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters, IntFilter
from pyspark_dledger.log.committed import Bound
from pyspark_dledger.log.options import EARLIEST, LATEST, ReadOptions, option_filters
from pyspark_dledger.log.plan import Partition, plan_between, plan_up_to, scan_range
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import NO_LIMITS, NOTHING, Limits, Tail, TailOffset, TailProgress, whole_segments
from pyspark_dledger.log.tail.tail_view import (
    DataLoss,
    EntryRef,
    ResumePoint,
    TailBound,
    TailView,
    expired_positions,
    is_complete_message,
    lost_entry,
    lost_message,
)


class TailStart:
    """The start of a stream; positions that were searched are not searched again."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        self._path = path
        self._options = options
        self._first_row: int | None = None
        self._searched_to = 0

    def position(self, view: TailView) -> int | None:
        """The position of the first row to read; None if it is not written yet."""
        options = self._options
        if options.starting_offsets == LATEST:
            return None
        if options.starting_offsets == EARLIEST and options.starting_timestamp is None:
            return view.begin
        if self._first_row is not None and self._first_row >= view.begin:
            return self._first_row
        if view.end is None:
            return None
        self._first_row = self._find(view, view.end.end)
        return self._first_row

    def _find(self, view: TailView, end: int) -> int | None:
        offset, low = self._options.starting_offsets, view.begin
        if offset.kind == "index":
            self._check(view.begin_index, "entry with index")
            last = view.end.offset.index if view.end is not None else None
            if last is None or offset.value > last:
                return None
            low = view.position_of(max(offset.value, view.begin_index or 0))
        if offset.kind == "pos":
            self._check(view.begin, "row at pos")
            if offset.value >= end:
                return None
            found = first_row_in(view.store, self._options, low, end, Filters(pos=IntFilter(low=offset.value)))
            if found is None:
                return None
            low = found
        if self._options.starting_timestamp is None:
            return low
        filters = Filters(store_timestamp=IntFilter(low=self._options.starting_timestamp))
        found = first_row_in(view.store, self._options, max(low, self._searched_to), end, filters)
        self._searched_to = end
        return found

    def _check(self, begin: int | None, what: str) -> None:
        """Raises StoreError if the stream starts before the log and failOnDataLoss is set."""
        offset = self._options.starting_offsets
        if begin is not None and offset.value < begin and self._options.fail_on_data_loss:
            raise StoreError(
                f"{self._path}: startingOffsets: expected {offset}, found the first {what} {begin}: start there or "
                "later, or set failOnDataLoss=false"
            )


def first_row_in(store: StoreView, options: ReadOptions, low: int, end: int, filters: Filters) -> int | None:
    """The position of the first row in ``[low, end)`` that passes the filters."""
    options = replace(whole_segments(options), max_batch_rows=1)
    if filters.pos is not None:
        parts = plan_up_to(store, ("pos",), replace(options, starting_offsets=EARLIEST), filters, None)
    else:
        parts = plan_between(store, ("pos",), options, filters, None, low, end)
    batches = (batch for part in parts for each in part.ranges for batch in scan_range(each, part.engine))
    first = next((batch for batch in batches if batch.num_rows), None)
    pos = first.column(0)[0].as_py() if first is not None else None
    return pos if pos is not None and pos < end else None


_LOG = logging.getLogger(__name__)
# Copying an entry into the file takes less.
_WRITING_SECONDS = 0.005
_MAX_BATCH_ROWS = 100_000
# Each retry follows an expired file; few expire at a time.
_MAX_TRIES = 10

_Result = TypeVar("_Result")


class StoreTail(Tail[TailOffset]):
    """The tail of the store at `path`, for rows of `columns`. `options` come from `tail.stream_options`.

    The store is opened at the first call.
    """

    def __init__(self, path: str, options: ReadOptions, columns: tuple[str, ...]) -> None:
        check_local((path, *(options.data_dirs or ()), *(options.replicas or ())), "to follow")
        super().__init__(path, options)
        self._columns = columns
        self._store: StoreView | None = None
        self._view: TailView | None = None
        self._start = TailStart(path, options)
        self._bound = TailBound(options)
        self._has_waited = False
        # The last entry at the last refresh, if nothing proves that it is complete.
        self._unproven: EntryRef | None = None
        # The last result of `latest`, and the position after it, if known; the index and position of the first row.
        self._latest_offset: tuple[TailOffset, int | None] = (NOTHING, None)
        self._latest_start: tuple[int | None, int | None] = (None, None)
        # An offset `until` that is no longer in the log, and the end that replaces it.
        self._replaced_until: tuple[TailOffset, EntryRef] | None = None

    def latest(self, start: TailOffset, limits: Limits[TailOffset]) -> TailOffset:
        """See `Tail.latest`."""
        return self._on_fresh_view(lambda view: self._find_latest(view, start, limits))

    def _find_latest(self, view: TailView, start: TailOffset, limits: Limits[TailOffset]) -> TailOffset:
        resumed = self._resume(view, start)
        last = self._up_to(view, limits.until)
        if resumed.pinned is not None:
            found = resumed.pinned
        elif self.only_pins_the_end(start):
            found = self._pinned_latest(view, last or view.end)
        elif last is None or resumed.pos is None or last.end <= resumed.pos:
            found = start
        else:
            found = self._within(view, start, resumed.pos, last, limits)
        self._latest_offset = (found, resumed.pos if found == start else None)
        reads_rows = resumed.pinned is None and not self.only_pins_the_end(start)
        self._latest_start = (start.index, resumed.pos) if reads_rows else (None, None)
        return found

    def available(self) -> TailOffset:
        """See `Tail.available`."""
        return self._on_fresh_view(lambda view: view.end.offset if view.end is not None else NOTHING)

    def plan(self, start: TailOffset, end: TailOffset) -> list[Partition]:
        """See `Tail.plan`."""
        if self.only_pins_the_end(start):
            return []
        # The view that `latest` used has the batch that it returned.
        view = self._view if end == self._latest_offset[0] else None
        return self._on_fresh_view(lambda view: self._plan(view, start, end), view)

    def _plan(self, view: TailView, start: TailOffset, end: TailOffset) -> list[Partition]:
        resumed, last = self._resume(view, start), self._planned_end(view, end)
        # After a restart, PySpark 4.0 and 4.1 request a batch that ends after the position where reading continues.
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
        offset, pos = self._latest_offset
        if pos is None:
            found = view.entry_ref(DLEDGER if offset.index is not None else COMMITLOG, offset.pos or 0)
            pos = found.end if found is not None and offset.is_entry else offset.pos
        end = view.store.end
        return TailProgress(
            view.bound.index,
            end.last_index if end.entries > 0 else None,
            *self._lag(view, offset, pos),
            *self._added(view, offset, pos),
            self._expired,
        )

    def close(self) -> None:
        """See `Tail.close`."""
        self._store = self._view = None
        self._bound = TailBound(self.options)

    # Views of the store.

    def _on_fresh_view(self, action: Callable[[TailView], _Result], view: TailView | None = None) -> _Result:
        """The result of `action` on `view`, by default a new one. It is repeated if a file expires meanwhile."""
        for _ in range(_MAX_TRIES):
            try:
                return action(view if view is not None else self._refresh())
            except DataLossError:
                raise
            except StoreError:
                if self._store is None or all(os.path.lexists(segment.path) for segment in self._store.segments):
                    raise
                view = None
        return action(self._refresh())

    def _refresh(self) -> TailView:
        """A new view. The committed index is read before the log, so that the log has all committed entries."""
        before = self._view
        store = self._store = StoreView(self.name, self.options) if self._store is None else self._store.refreshed()
        bound = self._bound.find(store, before)
        view = self._view = TailView(store, bound, before.end if before is not None else None)
        view.end = self._readable_end(view)
        return view

    def _readable_end(self, view: TailView) -> EntryRef | None:
        """The last entry or message that may be read."""
        store = view.store
        if self.options.isolation_level == "read_uncommitted" or self.options.committed_bound == "end":
            return self._settled_end(view)
        if not store.ledger_segments:
            return self._settled_end(view)
        if view.bound.index is None:
            self._wait(store, view.bound)
            return view.last_old_message()
        begin = view.begin_index
        if begin is None or view.bound.index < begin:
            return view.last_old_message()
        last = view.entry(view.bound.index)
        # If that entry is damaged, this is a later one, which is not known to be committed.
        is_later = last is not None and last.offset.index is not None and last.offset.index > view.bound.index
        return self._before(view, last) if last is not None and is_later else last

    def _wait(self, store: StoreView, bound: Bound) -> None:
        """Warn once that no committed index is known. Raises StoreError if none ever will be."""
        reason = f"{self.name}: expected a committed index, found none ({bound.reason})"
        if not self._has_waited and self._is_of_040(store):
            raise StoreError(
                f"{reason}: DLedger 0.4.0 keeps it in memory only, committedBound=end trusts the end of the log"
            )
        if not self._has_waited:
            self._has_waited = True
            _LOG.warning("%s: waiting for it; committedBound=end trusts the end of the log", reason)

    def _is_of_040(self, store: StoreView) -> bool:
        """Whether DLedger 0.4.0 wrote the store: it has a snapshot folder or a NOOP entry."""
        if store.dialect == "0.4":
            return True
        end = max((store.segment_end(segment) for segment in store.ledger_segments), default=0)
        begin = store.ledger_segments[0].base
        return first_row_in(store, self.options, begin, end, Filters(kind=("noop",))) is not None

    def _settled_end(self, view: TailView) -> EntryRef | None:
        """The last entry that is proven to be written completely, if no committed index is used.

        An entry is complete if it has an index unit or a following entry, which are written after it; without an index
        that reaches so far, if a second read finds the same bytes. A message of a plain CommitLog proves itself.
        """
        end = view.store.end
        last = view.entry_ref(DLEDGER, end.last_pos) if end.entries > 0 else view.last_old_message()
        if last is None or (last.offset.index is not None and view.store.indexed(last.offset.index) == last.pos):
            return last
        if last.offset.index is None:
            return last if is_complete_message(view.store, last) else self._before(view, last)
        begin = view.begin_index
        before = view.entry(last.offset.index - 1) if begin is not None and begin < last.offset.index else None
        if (
            before is not None
            and before.offset.index is not None
            and view.store.indexed(before.offset.index) is not None
        ):
            return before
        if last != self._unproven:
            time.sleep(_WRITING_SECONDS)
        self._unproven = view.entry_ref(DLEDGER, last.pos)
        return last if self._unproven == last else before

    def _before(self, view: TailView, last: EntryRef) -> EntryRef | None:
        """The entry or message before `last`; searched from the last known one, else in the last two files."""
        known = view.last_known
        is_known = known is not None and (known.offset.index is None) == (last.offset.index is None)
        if known is None or not is_known or known.pos >= last.pos:
            segments = [segment for segment in view.store.segments if segment.base <= last.pos]
            low = segments[-2:][0].base
        else:
            low = known.pos
        found = self._walk(view, low, last.pos, NO_LIMITS) if low < last.pos else None
        return view.entry_ref(*found) if found is not None else None

    # Resuming.

    def _resume(self, view: TailView, start: TailOffset) -> ResumePoint:
        """Where reading continues after `start`. Raises DataLossError, or warns once."""
        if start == NOTHING:
            return ResumePoint(self._start.position(view))
        found, lost = self._check(view, start)
        if lost is None:
            return ResumePoint(found)
        self.report_loss(start, lost.problem, lost.resumed, lost.expired)
        return lost.resume

    def _check(self, view: TailView, start: TailOffset) -> tuple[int | None, DataLoss | None]:
        """The position after an offset if its entry is still in the log, else the loss."""
        assert start.pos is not None
        if not start.is_entry:
            return (start.pos, None) if start.pos >= view.begin else (None, expired_positions(view, start))
        source = DLEDGER if start.index is not None else COMMITLOG
        found = view.entry_ref(source, start.pos)
        # Java leaves the bytes of truncated entries after the end of its log.
        if found is not None and found.offset == start and (source == COMMITLOG or found.end <= view.store.end.pos):
            return found.end, None
        if start.index is None:
            return None, lost_message(view, start)
        begin = view.begin_index
        if begin is not None and begin == start.index + 1 and view.position_of(begin) > start.pos:
            return view.position_of(begin), None  # the entry has expired, the next one has not
        return None, lost_entry(view, start, begin)

    def _planned_end(self, view: TailView, end: TailOffset) -> int | None:
        """The position after a batch's last entry; None if no entry of the batch is known to be there."""
        if not end.is_entry:
            return end.pos
        position, lost = self._check(view, end)
        if lost is None:
            return position
        self.report_loss(end, lost.problem, lost.resumed)
        return view.position_of(lost.truncated_at) if lost.truncated_at is not None else None

    def _pinned_latest(self, view: TailView, last: EntryRef | None) -> TailOffset:
        """The offset for startingOffsets=latest; `NOTHING` if it is not known yet."""
        if last is not None and (view.bound.index is not None or not view.store.end.entries):
            return last.offset
        if last is not None and self.options.isolation_level == "read_uncommitted":
            return last.offset
        if view.store.end.entries and view.bound.index is None:
            return NOTHING
        return TailOffset(pos=view.begin)

    # Limits.

    def _within(
        self, view: TailView, start: TailOffset, pos: int, last: EntryRef, limits: Limits[TailOffset]
    ) -> TailOffset:
        """The last entry from `pos` up to `last` within all limits; at least the first entry."""
        if limits.size is None or last.end - pos <= limits.size:
            if limits.entries is None:
                return last.offset
            found = self._counted(view, start, last, limits.entries)
            if found is not None:
                return found
        walked = self._walk(view, pos, last.end, limits)
        entry = view.entry_ref(*walked) if walked is not None else None
        return entry.offset if entry is not None else last.offset

    def _counted(self, view: TailView, start: TailOffset, last: EntryRef, entries: int) -> TailOffset | None:
        """The offset `entries` entries after `start`, at most `last`; None if the index file does not have it."""
        if start.index is None or last.offset.index is None or view.begin_index is None:
            return None
        index = max(start.index + 1, view.begin_index) + entries - 1
        if index >= last.offset.index:
            return last.offset
        pos = view.store.indexed(index)
        found = view.entry_ref(DLEDGER, pos) if pos is not None else None
        return found.offset if found is not None else None

    def _walk(self, view: TailView, start: int, end: int, limits: Limits[TailOffset]) -> tuple[str, int] | None:
        """Source and position of the last entry within the limits; damage counts, but a batch does not end with it."""
        import numpy as np  # slow to load

        rows_left = INT64_MAX if limits.entries is None else limits.entries
        bytes_left = INT64_MAX if limits.size is None else limits.size
        batch_rows = min(rows_left, bytes_left // ENTRY_HEADER_SIZE + 1, _MAX_BATCH_ROWS)
        options = replace(whole_segments(self.options), max_batch_rows=batch_rows)
        found: tuple[str, int] | None = None
        parts = plan_between(view.store, ("pos", "size", "kind", "source"), options, Filters(), None, start, end)
        for each, engine in ((each, part.engine) for part in parts for each in part.ranges):
            for batch in filter(len, scan_range(each, engine)):
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
        """The row filters of the options. startingTimestamp is the start of the stream, not a filter."""
        return option_filters(replace(self.options, starting_timestamp=None))

    def _lag(self, view: TailView, offset: TailOffset, pos: int | None) -> tuple[int | None, int | None]:
        """Entries and bytes that may be read after the last result of `latest`."""
        if view.end is None:
            return None, None
        entries = None
        if view.end.offset.index is not None and offset.index is not None:
            entries = max(view.end.offset.index - offset.index, 0)
        return entries, max(view.end.end - pos, 0) if pos is not None else None

    def _added(self, view: TailView, offset: TailOffset, pos: int | None) -> tuple[int | None, int | None]:
        """Entries and bytes that the last result of `latest` adds."""
        read_index, start_pos = self._latest_start
        if start_pos is None or pos is None:
            return None, None
        if pos <= start_pos:
            return 0, 0
        first = view.entry_ref(DLEDGER, start_pos)
        if first is not None:
            read_index = first.offset.index - 1 if first.offset.index is not None else None
        entries = offset.index - read_index if offset.index is not None and read_index is not None else None
        return entries, pos - start_pos

    def _up_to(self, view: TailView, until: TailOffset | None) -> EntryRef | None:
        """The last entry that may be read, at most `until`."""
        end = view.end
        if until is None or end is None:
            return end
        if not until.is_entry or until.pos is None:
            return None
        found = view.entry_ref(DLEDGER if until.index is not None else COMMITLOG, until.pos)
        if found is not None and found.offset == until:
            return found if until.pos < end.pos else end
        # It is no longer in the log: the query ends at the end of the log at this moment, or it would never end.
        if self._replaced_until is None or self._replaced_until[0] != until:
            self._replaced_until = until, end
        return self._replaced_until[1]
