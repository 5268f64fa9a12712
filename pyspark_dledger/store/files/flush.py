"""The thread that makes appends durable and writes the checkpoint (``DLedgerMmapFileStore.FlushDataService``)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from pyspark_dledger.errors import StoreError

_LOG = logging.getLogger(__name__)


class FlushableStore(Protocol):
    """The methods of a store that the thread calls."""

    @property
    def flushed_index(self) -> int: ...

    @property
    def needs_flush(self) -> bool: ...

    def flush(self) -> int: ...

    def write_checkpoint(self) -> None: ...


class FlushDataService:
    """Flushes every `interval_ms`; without an interval, after each `wake`.

    One flush makes all earlier appends durable. `on_flushed` is called in this thread with each new flushed index.
    A failed flush ends the thread; the store rejects writes from then on.
    """

    def __init__(
        self,
        store: FlushableStore,
        interval_ms: int | None,
        check_point_interval_ms: int,
        on_flushed: Callable[[int], None],
    ) -> None:
        self._store = store
        self._interval = interval_ms / 1000 if interval_ms is not None else None
        self._check_point_interval = check_point_interval_ms / 1000
        self._on_flushed = on_flushed
        self._event = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="FlushDataService", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Entries were appended; called only without an interval."""
        self._event.set()

    def stop(self) -> None:
        """End the thread without a last flush."""
        self._is_stopping = True
        self._event.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic() + self._check_point_interval
        while not self._is_stopping:
            left = max(due - time.monotonic(), 0)
            self._event.wait(left if self._interval is None else min(left, self._interval))
            self._event.clear()
            try:
                self._flush()
            except StoreError as error:
                _LOG.error("flushing has stopped: %s", error)
                return
            if time.monotonic() >= due:
                self._check_point()
                due = time.monotonic() + self._check_point_interval

    def _flush(self) -> None:
        if self._store.needs_flush:
            before = self._store.flushed_index
            flushed = self._store.flush()
            if flushed != before:
                self._on_flushed(flushed)

    def _check_point(self) -> None:
        """Write the checkpoint. If that fails the old one stays, which is still correct."""
        try:
            self._store.write_checkpoint()
        except StoreError as error:
            _LOG.warning("the checkpoint was not written and will be retried: %s", error)
