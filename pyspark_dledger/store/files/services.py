"""The threads of a store: one makes appends durable, one deletes old data files (``DLedgerMmapFileStore``)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pyspark_dledger.common.clock import SteadyClock
from pyspark_dledger.common.retention import used_ratio
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import is_segment_name
from pyspark_dledger.store.store_config import StoreConfig

_LOG = logging.getLogger(__name__)
_CLEAN_SECONDS = 0.1


class _FlushableStore(Protocol):
    flushed_index: int

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
        store: _FlushableStore,
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


class _CleanableStore(Protocol):
    @property
    def ledger_begin_index(self) -> int: ...

    def delete_expired(self, changed_before: float, force: bool) -> int: ...

    def set_disk_state(self, is_full: bool, full_dirs: frozenset[Path]) -> None: ...


class CleanSpaceService:
    """Runs every 100 ms. `now` returns seconds since 1970, `used` the used part of a folder's disk, from 0 to 1.

    The default clock is a `SteadyClock`. After a start it also doubts a time by which the whole log has expired.
    """

    def __init__(
        self,
        store: _CleanableStore,
        config: StoreConfig,
        now: Callable[[], float] | None = None,
        used: Callable[[Path], float] = used_ratio,
    ) -> None:
        self._store = store
        self._config = config
        self._now = now or SteadyClock(_changed_at(config), 3600.0 * config.file_reserved_hours)
        self._used = used
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="CleanSpaceService", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.run_once()
            except (OSError, StoreError) as error:
                _LOG.warning("cleaning failed and will be retried: %s", error)
            self._stopping.wait(_CLEAN_SECONDS)

    def run_once(self) -> int:
        """Report full disks to the store, and delete expired files. Returns the number of deleted files."""
        config = self._config
        ratios = {path: self._used(path) for path in config.all_data_dirs if path.is_dir()}
        fullest = max(self._used(config.base_dir), min(ratios.values(), default=0.0))
        is_full = fullest > config.disk_full_ratio
        full_dirs = frozenset(path for path, used in ratios.items() if used > config.force_clean_ratio)
        self._store.set_disk_state(is_full, full_dirs)
        force = fullest > config.force_clean_ratio and config.enable_disk_force_clean
        now = self._now()
        if not config.is_due(now, fullest):
            return 0
        old_files = config.old_log_dir.iterdir() if config.old_log_dir and config.old_log_dir.is_dir() else ()
        if any(is_segment_name(path.name) for path in old_files):
            return 0  # the files of the old CommitLog are deleted first (DLedgerCommitLog.disableDeleteDledger)
        begin = self._store.ledger_begin_index
        count = self._store.delete_expired(config.expires_before(now), force)
        if count:
            self._report(count, begin, fullest, force)
        return count

    def _report(self, count: int, begin: int, fullest: float, force: bool) -> None:
        """Log which entries were deleted: a warning if the disk needed room."""
        is_pressed = force or fullest > self._config.disk_space_ratio_to_check_expired
        _LOG.log(
            logging.WARNING if is_pressed else logging.INFO,
            "deleted %d data files with entries %d to %d %s: disk used %.0f %%, expired files only %s",
            count,
            begin,
            self._store.ledger_begin_index - 1,
            "to make room" if is_pressed else "that have expired",
            100 * fullest,
            not force,
        )


def _changed_at(config: StoreConfig) -> float | None:
    """The time of the last change of the data files, in seconds since 1970; None without files."""
    folders = [path for path in config.all_data_dirs if path.is_dir()]
    files = [path for folder in folders for path in folder.iterdir() if is_segment_name(path.name)]
    return max((path.stat().st_mtime for path in files), default=None)
