"""Reads the parts of a log in threads, as a stream of batches. The native engine works without the GIL.

Other libraries read a stream in threads of their own. Before Python 3.14 a thread that needs Python while it shuts down
aborts the process, or hangs. So streams end first.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar, cast

import pyarrow as pa

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.conditions import ALL_ROWS, Lookup
from pyspark_dledger.log.plan import WIDE_COLUMNS, Partition, split_partition

_streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
_changed = threading.Lock()
_is_exiting = threading.Event()
# Arrow's threads drop a stream soon after it ended, unless a variable keeps its consumer.
_MAX_EXIT_SECONDS = 0.5


def stream_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    """A reader of batches. It has at least one: Polars finds no schema without."""

    def at_least_one() -> Iterator[pa.RecordBatch]:
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            yield pa.RecordBatch.from_pylist([], schema)

    return pa.RecordBatchReader.from_batches(schema, _Stream(at_least_one()))


def check_running() -> None:
    """Raises StoreError if Python exits: a read ends soon after."""
    if _is_exiting.is_set():
        raise StoreError("the read was not finished when Python exited")


class _Stream(Iterator[pa.RecordBatch]):
    """The batches of a generator, which ends with it. ``is_shared``: another thread than its creator takes them."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._is_used = threading.Lock()
        self._owner = threading.get_ident()
        self.is_shared = False
        with _changed:
            _streams.add(self)

    def __next__(self) -> pa.RecordBatch:
        with self._is_used:
            check_running()
            self.is_shared = self.is_shared or threading.get_ident() != self._owner
            return next(self._batches)

    def close(self) -> None:
        """End the threads that read for this stream."""
        with self._is_used:
            self._batches.close()  # type: ignore[attr-defined]

    __del__ = close


@atexit.register
def _end_streams() -> None:
    """End all streams, and wait until other threads have dropped theirs."""
    _is_exiting.set()
    with _changed:
        streams = list(_streams)
    shared: weakref.WeakSet[_Stream] = weakref.WeakSet()
    while streams:
        stream = streams.pop()
        stream.close()
        if stream.is_shared:
            shared.add(stream)
        del stream
    ends = time.monotonic() + _MAX_EXIT_SECONDS
    while shared and time.monotonic() < ends:
        time.sleep(0.001)


_Part = TypeVar("_Part")
_Read = Callable[[_Part], Iterator[pa.RecordBatch]]

# Read ahead of the consumer, except by the part that it waits for: bounds memory.
_MAX_AHEAD_BYTES = 256 * 1024 * 1024
# Of the log. To find where a part can begin takes as long as reading a few MiB of it.
_PART_BYTES = 128 * 1024 * 1024
# Rows in order keep all threads busy only if a thread can read a whole part ahead.
_WIDE_PART_BYTES = 32 * 1024 * 1024


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
        size = _WIDE_PART_BYTES if WIDE_COLUMNS & set(names) else _PART_BYTES
        count = max(len(parts), sum(part.size for part in parts) // size)
        readers = min(threads or os.cpu_count() or 1, count)
        pieces = (piece for part in parts for piece in split_partition(part, size)) if readers > 1 else parts
        batches = read_parallel(pieces, read_running, readers, is_ordered=is_ordered)
        return stream_of(arrow_schema(names), batches)

    return open_reader


def read_parallel(
    parts: Iterable[_Part], read: _Read[_Part], threads: int, *, is_ordered: bool
) -> Iterator[pa.RecordBatch]:
    """The batches of all parts; without `is_ordered` in any order. An error of a part is raised in its place.

    One thread at a time takes a part. The threads end with the iterator.
    """
    if threads <= 1:
        return (batch for part in parts for batch in read(part))
    return _Reading(iter(parts), read, is_ordered).batches(threads)


class _Reading(Generic[_Part]):
    """The state that the threads share: batches that are read, and how far each part is."""

    def __init__(self, parts: Iterator[_Part], read: _Read[_Part], is_ordered: bool) -> None:
        self._parts, self._read, self._is_ordered = parts, read, is_ordered
        self._taking = threading.Lock()
        self._changed = threading.Condition()
        self._batches: list[deque[pa.RecordBatch]] = []  # of each part that was taken
        self._is_all_taken = False
        self._errors: dict[int, BaseException] = {}
        self._done: set[int] = set()
        self._wanted = 0  # the part that the consumer waits for, in order
        self._ahead = 0  # bytes of the batches
        self._is_stopped = False

    def batches(self, threads: int) -> Iterator[pa.RecordBatch]:
        """Start the threads, and yield what they read."""
        workers = [threading.Thread(target=self._work, daemon=True, name=f"dledger-read-{n}") for n in range(threads)]
        for worker in workers:
            worker.start()
        try:
            while (batch := self._next_batch()) is not None:
                yield batch
        finally:
            with self._changed:
                self._is_stopped = True
                self._batches = []
                self._changed.notify_all()
            for worker in workers:
                worker.join()

    def _next_batch(self) -> pa.RecordBatch | None:
        """The next batch; None after the last one. Raises the error of its part."""
        with self._changed:
            while True:
                number = self._place()
                if number < len(self._batches):
                    if self._batches[number]:
                        batch = self._batches[number].popleft()
                        self._ahead -= batch.get_total_buffer_size()
                        self._changed.notify_all()
                        return batch
                    if number in self._errors:
                        raise self._errors[number]
                elif self._is_all_taken:
                    return None
                self._changed.wait()

    def _place(self) -> int:
        """The part to take a batch from, or to wait for."""
        while self._wanted in self._done and not self._batches[self._wanted]:
            if self._wanted in self._errors:
                return self._wanted
            self._wanted += 1
            self._changed.notify_all()
        if not self._is_ordered:
            for number in range(self._wanted, len(self._batches)):
                if self._batches[number] or number in self._errors:
                    return number
        return self._wanted

    def _work(self) -> None:
        for number, part in iter(self._take, None):
            try:
                for batch in self._read(part):
                    if not self._put(number, batch):
                        return
            except BaseException as error:  # noqa: BLE001 - raised where the batches are taken
                self._errors[number] = error
            with self._changed:
                self._done.add(number)
                self._changed.notify_all()

    def _take(self) -> tuple[int, _Part] | None:
        """The next part and its number; None if there is none. An error of the parts is that of the next one."""
        with self._taking:
            part, error = None, None
            try:
                part = next(self._parts, None)
            except BaseException as raised:  # noqa: BLE001 - raised where the batches are taken
                error = raised
            with self._changed:
                self._is_all_taken = part is None
                self._changed.notify_all()
                if self._is_stopped or (part is None and error is None):
                    return None
                number = len(self._batches)
                self._batches.append(deque())
                if part is not None:
                    return number, part
                self._errors[number] = cast("BaseException", error)
                self._done.add(number)
                return None

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
