"""The thread that deletes old data files and watches how full the disks are (``CleanSpaceService``)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pyspark_dledger.common.retention import used_ratio
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import SEGMENT_NAME_DIGITS
from pyspark_dledger.store.store_config import StoreConfig

_LOG = logging.getLogger(__name__)
_INTERVAL = 0.1


class CleanableStore(Protocol):
    """What the thread needs of a store."""

    @property
    def ledger_begin_index(self) -> int: ...

    def delete_expired(self, changed_before: float, force: bool) -> int: ...

    def set_disk_state(self, is_full: bool, full_dirs: frozenset[Path]) -> None: ...


def _has_log(folder: Path | None) -> bool:
    """Whether a log has files in that folder. What else lies there never expires, and nothing waits for it."""
    if folder is None or not folder.is_dir():
        return False
    return any(len(path.name) == SEGMENT_NAME_DIGITS and path.name.isdecimal() for path in folder.iterdir())


class CleanSpaceService:
    """Looks every 100 ms. `now` gives seconds since 1970, `used` how full the disk of a folder is."""

    def __init__(
        self,
        store: CleanableStore,
        config: StoreConfig,
        now: Callable[[], float] = time.time,
        used: Callable[[Path], float] = used_ratio,
    ) -> None:
        self._store = store
        self._config = config
        self._now = now
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
                _LOG.warning("cleaning failed, and is tried again: %s", error)
            self._stopping.wait(_INTERVAL)

    def run_once(self) -> int:
        """Take note of full disks, and delete what may be deleted now; how many files that were."""
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
        if _has_log(config.old_log_dir):
            return 0  # what is older has to go first (DLedgerCommitLog.disableDeleteDledger)
        begin = self._store.ledger_begin_index
        count = self._store.delete_expired(config.expires_before(now), force)
        if count:
            self._report(count, begin, fullest, force)
        return count

    def _report(self, count: int, begin: int, fullest: float, force: bool) -> None:
        """Say which entries are gone: a warning where they had to make room."""
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
