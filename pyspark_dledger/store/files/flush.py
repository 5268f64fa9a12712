"""The thread that makes appends durable and notes the checkpoint (``DLedgerMmapFileStore.FlushDataService``)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from pyspark_dledger.errors import StoreError

_LOG = logging.getLogger(__name__)


class FlushableStore(Protocol):
    """What the thread needs of a store."""

    @property
    def flushed_index(self) -> int: ...

    @property
    def needs_flush(self) -> bool: ...

    def flush(self) -> int: ...

    def write_checkpoint(self) -> None: ...


class FlushDataService:
    """Flushes every `interval_ms`, or with None as soon as `wake` says that there is something.

    What was appended during one flush is made durable by the next one, all at once. `on_flushed` is called from this
    thread with the flushed index, whenever that has moved. A flush that fails ends the thread: the store refuses to be
    written from then on.
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
        """Something was appended; only called where there is no interval."""
        self._event.set()

    def stop(self) -> None:
        """Ends the thread; what is not flushed yet stays so."""
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
                _LOG.error("flushing has ended: %s", error)
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
        """A checkpoint that cannot be written stays the old one, which is as true as it was."""
        try:
            self._store.write_checkpoint()
        except StoreError as error:
            _LOG.warning("the checkpoint was not written, and is tried again: %s", error)
