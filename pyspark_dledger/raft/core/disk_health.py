"""Whether a member can write: its disk has room, and flushes end in time."""

from __future__ import annotations

from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.store.dledger_store import DLedgerStore

# A problem counts for so long after it was seen the last time: a disk that is slow once will be again.
_KEPT_MS = 10_000


class DiskHealth:
    """Judges the disk of one member. Flushes count only under ``is_sync``: otherwise nothing waits for them."""

    def __init__(self, config: CoreConfig, store: DLedgerStore, now: int) -> None:
        self._store = store
        self._limit_ms = config.max_flush_time_ms if config.is_sync else 0
        # At least as long as it leaves elections to others.
        self._kept_ms = max(_KEPT_MS, config.patience_ms)
        self._flushed = store.flushed_index
        self._flushed_at = now
        self._problem = ""
        self._seen_at = now
        self._slow_at: int | None = None

    def tick(self, now: int) -> None:
        store = self._store
        if store.is_disk_full:
            self._found("its disk is full", now)
        if not self._limit_ms:
            return
        flushed = store.flushed_index
        if flushed != self._flushed or flushed >= store.ledger_end_index:
            self._flushed, self._flushed_at = flushed, now
        elif now - self._flushed_at > self._limit_ms:
            self._slow_at = now
            self._found(self._slow_text, now)

    def had_no_room(self, now: int) -> None:
        """An append found the disk full."""
        self._found("its disk is full", now)

    def has_damage(self, now: int) -> None:
        """A damaged entry keeps other members from getting the log."""
        self._found("it has a damaged entry that others need", now)

    def _found(self, problem: str, now: int) -> None:
        self._problem, self._seen_at = problem, now

    @property
    def _slow_text(self) -> str:
        return f"its disk needs more than {self._limit_ms} ms for a flush"

    def flush_problem(self, now: int) -> str:
        """Why flushes are too slow; "" if they are not."""
        return self._slow_text if self._slow_at is not None and now - self._slow_at < self._kept_ms else ""

    def problem(self, now: int) -> str:
        """Why this member should not lead; "" if it can write."""
        return self._problem if self._problem and now - self._seen_at < self._kept_ms else ""
