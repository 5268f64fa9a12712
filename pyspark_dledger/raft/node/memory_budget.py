"""The memory for the connections of clients: received bytes, requests in work, and responses that were not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FREE_BYTES = 64 * 1024
"""Every connection may use this much, independent of all others."""

# Connections that wait for memory and are tried at a time.
_TRIED = 16
_SHORT_SECONDS = 1.0


class MemoryBudget:
    """Counts bytes above `FREE_BYTES` of each connection.

    The log's memory is in addition: one append is encoded at a time, and its pending index units have their own limit.

    A connection may use as much as it leaves free. So a few large users get much, many get little, and a new one gets
    something.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        # Called when memory was freed, with the bytes that each uses: those that use least go first.
        self._waiting: dict[Callable[[], None], int] = {}
        self._is_wake_due = False
        self._short_since: float | None = None

    def is_short(self, now: float) -> bool:
        """Whether some connection has waited for memory all the time for a second; `now` is in seconds."""
        return self._short_since is not None and now - self._short_since > _SHORT_SECONDS

    def allows(self, used: int, more: int) -> bool:
        """Whether a connection that uses so many bytes may use `more`."""
        return used + more <= self.limit - self.used - more

    def add(self, change: int) -> None:
        """Count bytes, or remove them if negative."""
        self.used += change
        if change < 0:
            self.wake_later()

    def wait(self, retry: Callable[[], None], used: int) -> None:
        """Call `retry` when memory was freed; it calls this method again if that was not enough."""
        self._waiting.setdefault(retry, used)
        if self._short_since is None:
            self._short_since = asyncio.get_running_loop().time()

    def forget(self, retry: Callable[[], None]) -> None:
        self._waiting.pop(retry, None)
        self._update_shortage()

    def _update_shortage(self) -> None:
        if not self._waiting:
            self._short_since = None

    def wake_later(self) -> None:
        """Try some of the connections that wait."""
        if self._waiting and not self._is_wake_due:
            self._is_wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_wake_due = False
        for retry in sorted(self._waiting, key=self._waiting.__getitem__)[:_TRIED]:
            self._waiting.pop(retry, None)
            retry()
        self._update_shortage()
