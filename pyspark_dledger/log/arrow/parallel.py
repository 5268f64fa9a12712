"""Reads the parts of a log in threads, as a stream of batches. The native engine works without the GIL."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.arrow.stream import check_running, stream_of
from pyspark_dledger.log.conditions import ALL_ROWS
from pyspark_dledger.log.lookups import Lookup
from pyspark_dledger.log.plan import Partition

_Part = TypeVar("_Part")
_Read = Callable[[_Part], Iterator[pa.RecordBatch]]

# Read ahead of the consumer, except by the part that it waits for: bounds memory.
_MAX_AHEAD_BYTES = 256 * 1024 * 1024
# Of the log. Rows in order keep all threads busy only if a thread can read a whole part ahead.
_PART_BYTES = 16 * 1024 * 1024


class PlanParts(Protocol):
    """Plans a scan, in parts of about so many bytes."""

    def __call__(
        self,
        names: tuple[str, ...],
        filters: Filters = ...,
        lookup: Lookup | None = ...,
        part_bytes: int | None = ...,
    ) -> list[Partition]: ...


class OpenReader(Protocol):
    """Opens a reader of columns, for rows that pass filters; `lookup` can leave out rows that do not meet it."""

    def __call__(
        self, names: tuple[str, ...], filters: Filters = ..., lookup: Lookup | None = ...
    ) -> pa.RecordBatchReader: ...


def reader_opener(plan: PlanParts, read: _Read[Partition], threads: int | None, is_ordered: bool) -> OpenReader:
    """Opens readers on `threads`, by default one for each core. Raises OptionError for less than one."""
    if threads is not None and threads < 1:
        raise OptionError(f"threads: expected 1 or more, found {threads}")

    def read_running(part: Partition) -> Iterator[pa.RecordBatch]:
        check_running()
        return read(part)

    def open_reader(
        names: tuple[str, ...], filters: Filters = ALL_ROWS, lookup: Lookup | None = None
    ) -> pa.RecordBatchReader:
        parts = plan(names, filters, lookup, _PART_BYTES)
        batches = read_parallel(parts, read_running, threads or os.cpu_count() or 1, is_ordered=is_ordered)
        return stream_of(arrow_schema(names), batches)

    return open_reader


def read_parallel(
    parts: Sequence[_Part], read: _Read[_Part], threads: int, *, is_ordered: bool
) -> Iterator[pa.RecordBatch]:
    """The batches of all parts; without `is_ordered` in any order. An error of a part is raised in its place.

    The threads end with the iterator.
    """
    if threads <= 1 or len(parts) <= 1:
        return (batch for part in parts for batch in read(part))
    return _Reading(parts, read, is_ordered).batches(min(threads, len(parts)))


class _Reading:
    """The state that the threads share: batches that are read, and how far each part is."""

    def __init__(self, parts: Sequence[_Part], read: _Read[_Part], is_ordered: bool) -> None:
        self._parts, self._read, self._is_ordered = parts, read, is_ordered
        self._changed = threading.Condition()
        self._batches: list[deque[pa.RecordBatch]] = [deque() for _ in parts]
        self._errors: dict[int, BaseException] = {}
        self._done: set[int] = set()
        self._next = 0  # the part that the next free thread takes
        self._wanted = 0  # the part that the consumer waits for, in order
        self._ahead = 0  # bytes of the batches
        self._is_stopped = False

    def batches(self, threads: int) -> Iterator[pa.RecordBatch]:
        """Start the threads, and yield what they read."""
        workers = [threading.Thread(target=self._work, daemon=True, name=f"dledger-read-{n}") for n in range(threads)]
        for worker in workers:
            worker.start()
        try:
            while (batch := self._take()) is not None:
                yield batch
        finally:
            with self._changed:
                self._is_stopped = True
                self._batches = []
                self._changed.notify_all()
            for worker in workers:
                worker.join()

    def _take(self) -> pa.RecordBatch | None:
        """The next batch; None after the last one. Raises the error of its part."""
        with self._changed:
            while True:
                number = self._place()
                if number is None:
                    return None
                if self._batches[number]:
                    batch = self._batches[number].popleft()
                    self._ahead -= batch.get_total_buffer_size()
                    self._changed.notify_all()
                    return batch
                if number in self._errors:
                    raise self._errors[number]
                self._changed.wait()

    def _place(self) -> int | None:
        """The part to take a batch from, or to wait for; None if all are done."""
        while self._wanted < len(self._parts) and self._wanted in self._done and not self._batches[self._wanted]:
            if self._wanted in self._errors:
                return self._wanted
            self._wanted += 1
            self._changed.notify_all()
        if self._wanted == len(self._parts):
            return None
        if not self._is_ordered:
            for number in range(self._wanted, self._next):
                if self._batches[number] or number in self._errors:
                    return number
        return self._wanted

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_stopped or self._next == len(self._parts):
                    return
                number = self._next
                self._next += 1
            try:
                for batch in self._read(self._parts[number]):
                    if not self._put(number, batch):
                        return
            except BaseException as error:  # noqa: BLE001 - raised where the batches are taken
                self._errors[number] = error
            with self._changed:
                self._done.add(number)
                self._changed.notify_all()

    def _put(self, number: int, batch: pa.RecordBatch) -> bool:
        """Hand over a batch; False if nobody wants it."""
        with self._changed:
            while self._ahead >= _MAX_AHEAD_BYTES and number != self._wanted and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped:
                return False
            self._batches[number].append(batch)
            self._ahead += batch.get_total_buffer_size()  # `nbytes` takes 30 times as long
            self._changed.notify_all()
        return True
