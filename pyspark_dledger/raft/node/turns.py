"""When many requests come at once, heartbeats and timeouts go first, and small requests before large ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# With a tick that is later than this, clients wait for the next turn of the event loop.
_MAX_LATE_SECONDS = 0.1


class Turns:
    """The connections of clients that wait for their turn.

    One turn of the event loop can bring a large request of each connection. Without limit the timers wait for all.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.tick_due = self._loop.time()
        # Called when it is the connection's turn, with its received bytes.
        self._waiting: dict[Callable[[], None], int] = {}
        self._is_due = False

    @property
    def is_late(self) -> bool:
        """Whether the timers wait too long for a further request."""
        return self._loop.time() - self.tick_due > _MAX_LATE_SECONDS

    def wait(self, retry: Callable[[], None], size: int) -> None:
        """Call `retry` in one of the next turns; connections with less bytes go first."""
        self._waiting[retry] = size
        self._wake_later()

    def _wake_later(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_due = False
        for retry in sorted(self._waiting, key=self._waiting.__getitem__):
            if self.is_late:
                break
            self._waiting.pop(retry, None)
            retry()
        self._wake_later()
