"""The wall clock, and one whose jumps count only when they last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pyspark_dledger.common.log_records import record

_MAX_STEP_SECONDS = 600.0
_BELIEVED_AFTER_SECONDS = 24 * 3600.0


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


# macOS has no such clock; there, the monotonic one counts the time in which the machine was suspended.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Seconds of a clock that nobody sets; the time in which the machine was suspended counts."""
    return time.clock_gettime(_SINCE_BOOT)


class SteadyClock:
    """The wall clock, but a jump counts only after it has lasted a day: what expires by a wrong clock is lost for good.

    ``changed_at``: the time of the last change of the data. If it is more than ``max_silence`` seconds ago, the time
    since the start counts from there, as after a jump. Times are seconds since 1970.
    """

    def __init__(
        self,
        changed_at: float | None = None,
        max_silence: float = 0.0,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = since_boot,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._time, self._steady_at = wall(), steady()
        if changed_at is not None and self._time - changed_at > max_silence:
            self._time = changed_at
        self._jumped_at: float | None = None

    def __call__(self) -> float:
        wall, steady = self._wall(), self._steady()
        expected = self._time + steady - self._steady_at
        if abs(wall - expected) > _MAX_STEP_SECONDS:
            if self._jumped_at is None:
                self._jumped_at = steady
                found = f"it shows {time.ctime(wall)}, expected {time.ctime(expected)}: nothing expires by it for a day"
                record(logging.WARNING, "clock jumped", found=found)
            if steady - self._jumped_at < _BELIEVED_AFTER_SECONDS:
                return expected
        self._jumped_at = None
        self._time, self._steady_at = wall, steady
        return wall

    def ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self() * 1000)
