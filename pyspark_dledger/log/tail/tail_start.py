"""Finds the first row of a stream from startingOffsets and startingTimestamp."""

from __future__ import annotations

from dataclasses import replace

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log.options import EARLIEST, LATEST, ReadOptions
from pyspark_dledger.log.plan import plan_between, plan_up_to, scan_range
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import whole_segments
from pyspark_dledger.log.tail.tail_view import TailView


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
