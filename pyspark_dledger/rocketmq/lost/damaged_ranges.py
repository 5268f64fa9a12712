"""Finds the damaged and missing places of a log, each with the intact rows around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.facts import ProblemCode
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters
from pyspark_dledger.log.copies.segment_copy import is_damage
from pyspark_dledger.log.io.salvage_fillers import PROBLEM, SalvageFillers
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_between, plan_up_to, read_judged
from pyspark_dledger.log.store_view import StoreView

COLUMNS = (
    *("kind", "source", "pos", "size", "index", "problem", "problemCode", "storeTimestamp", "topic", "queueId"),
    "queueOffset",
)
_CONTRADICTED = "expected what another replica has, or what units say, found other bytes"

Progress = Callable[[int, int], None]


class Neighbour(NamedTuple):
    """What an intact row next to a damaged place shows: its index, and its store time in microseconds since 1970."""

    index: int | None = None  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    stored: int | None = None


@dataclass(frozen=True)
class DamagedRange:
    """Positions ``[start, end)`` of the log whose bytes are damaged or missing.

    ``row`` is set where an entry or message has its header, but its content is damaged: the values of `COLUMNS`.
    ``is_end`` is set for what follows the end of the log, which may have been longer.
    """

    start: int
    end: int
    source: str
    problem: str
    before: Neighbour
    after: Neighbour
    row: dict[str, Any] | None = None
    is_end: bool = False

    @property
    def header(self) -> int:
        """Bytes of an entry before its message."""
        return ENTRY_HEADER_SIZE if self.source == DLEDGER else 0

    @property
    def has_log_end(self) -> bool:
        """Whether no entry of the log is known after these bytes, and none in them."""
        return self.row is None and self.after == Neighbour()


def damaged_ranges(
    log: StoreView, start: int = 0, end: int = INT64_MAX, progress: Progress | None = None
) -> list[DamagedRange]:
    """The damaged places and fillers of a salvage among the rows that begin in ``[start, end)``, in log order.

    Row boundaries are expected at both positions. Adjacent corrupt rows are one place. Raises StoreError.
    """
    options = ReadOptions(engine=log.options.engine)
    if (start, end) == (0, INT64_MAX):
        partitions = plan_up_to(log, COLUMNS, options, Filters(), None)
    else:
        partitions = plan_between(log, COLUMNS, options, Filters(), None, start, end)
    total, done = sum(partition.size for partition in partitions), 0
    found = _Collector(SalvageFillers(log.paths), log.unread.extents)
    for partition in partitions:
        for batch in read_judged(partition):
            found.add(batch)
        done += partition.size
        if progress is not None:
            progress(done, total)
    return found.ranges


def contradicted_ranges(log: StoreView, places: Iterable[tuple[int, int]]) -> Iterator[DamagedRange]:
    """The rows in places of the log that look whole, although the comparison with replicas says that they are damaged.

    Row boundaries are expected at both positions of a place.
    """
    options = ReadOptions(engine=log.options.engine)
    for start, end in places:
        partitions = plan_between(log, COLUMNS, options, Filters(), None, start, end)
        for batch in (batch for partition in partitions for batch in read_judged(partition)):
            for number in sorted({*range(batch.num_rows)} - {*damaged_rows(batch)}):
                row = row_at(batch, number)
                here, stop = Neighbour(row["index"], row["storeTimestamp"]), row["pos"] + row["size"]
                yield DamagedRange(row["pos"], stop, row["source"], _CONTRADICTED, here, here, row)


def end_range(log: StoreView, ranges: list[DamagedRange]) -> DamagedRange:
    """What follows the end of the log and its damaged `ranges`."""
    last = log.ends.get(DLEDGER)
    index = last[1].last_index if last is not None else None
    without_files = DLEDGER if log.paths.node_dir is not None else COMMITLOG
    source = log.segments[-1].source if log.segments else without_files
    text = f"the log ends at {log.max_offset}"
    start = max([log.max_offset, *(each.end for each in ranges[-1:])])
    return DamagedRange(start, INT64_MAX, source, text, Neighbour(index), Neighbour(), is_end=True)


class _Collector:
    def __init__(self, fillers: SalvageFillers, unread: list[tuple[int, int]]) -> None:
        self._fillers = fillers
        self._unread = [start for start, _ in unread]
        self.ranges: list[DamagedRange] = []
        self._before = Neighbour()
        self._waiting = 0
        """The number of ranges that have no row after them yet; they are the last ones."""

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        while self._unread and self._unread[0] < batch["pos"][0].as_py():
            # Rows on both sides of an unreadable file are no neighbours.
            del self._unread[0]
            self._end_waiting(Neighbour())
            self._before = Neighbour()
        at = 0
        fillers = set(self._fillers.numbers(batch))
        for number in sorted({*damaged_rows(batch), *fillers}):
            self._pass(batch, at, number)
            row = row_at(batch, number)
            if number in fillers:
                # Its own time is that of the filler.
                row.update(self._fillers.known_at(row["pos"]), problem=PROBLEM, storeTimestamp=None)
            self._add_row(row)
            at = number + 1
        self._pass(batch, at, batch.num_rows)

    def _pass(self, batch: pa.RecordBatch, start: int, stop: int) -> None:
        """Intact rows: the first one follows the waiting ranges, the last one may precede others."""
        if start >= stop:
            return
        self._end_waiting(Neighbour(batch["index"][start].as_py(), _stored(batch, start)))
        stored = _stored(batch, stop - 1)
        self._before = Neighbour(batch["index"][stop - 1].as_py(), self._before.stored if stored is None else stored)

    def _end_waiting(self, after: Neighbour) -> None:
        for number in range(len(self.ranges) - self._waiting, len(self.ranges)):
            self.ranges[number] = replace(self.ranges[number], after=after)
        self._waiting = 0

    def _add_row(self, row: dict[str, Any]) -> None:
        start, end = row["pos"], row["pos"] + row["size"]
        last = self.ranges[-1] if self._waiting else None
        if row["kind"] != "corrupt":
            row["index"] = self._credible(row)
            # Its header is intact, so its index counts for the places around it.
            here = Neighbour(row["index"], row["storeTimestamp"])
            self._end_waiting(here)
            before, self._before = self._before, here
            self.ranges.append(DamagedRange(start, end, row["source"], row["problem"], before, Neighbour(), row))
            self._waiting = 1
        elif last is not None and last.row is None and last.end == start and last.source == row["source"]:
            self.ranges[-1] = replace(last, end=end)
        else:
            self.ranges.append(DamagedRange(start, end, row["source"], row["problem"], self._before, Neighbour()))
            self._waiting += 1

    def _credible(self, row: dict[str, Any]) -> int | None:
        """The index in a header; of one that is too high, the next index, None if that is unknown."""
        before = self._before.index
        index: int | None = row["index"]
        start = self.ranges[-self._waiting].start if self._waiting else row["pos"]
        most = (row["pos"] - start) // ENTRY_HEADER_SIZE
        if before is None or index is None or index <= before + 1 + most:
            return index
        return None if most else before + 1


def damaged_rows(batch: pa.RecordBatch) -> list[int]:
    """The numbers of the rows with a column problemCode whose bytes are damaged."""
    numbers: list[int] = np.flatnonzero(is_damage(batch["problemCode"], {ProblemCode.BORN_TIME})).tolist()
    return numbers


def row_at(batch: pa.RecordBatch, number: int) -> dict[str, Any]:
    """The values of a row of `COLUMNS`; its time in microseconds since 1970."""
    row = {name: batch[name][number].as_py() for name in COLUMNS if name != "storeTimestamp"}
    return {**row, "storeTimestamp": _stored(batch, number)}


def _stored(batch: pa.RecordBatch, number: int) -> int | None:
    value: int | None = batch["storeTimestamp"][number].value
    return value
