"""Readers of batches, which other libraries read in threads of their own.

Before Python 3.14 a thread that needs Python while it shuts down aborts the process, or hangs. So streams end first.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pyspark_dledger.errors import StoreError

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
