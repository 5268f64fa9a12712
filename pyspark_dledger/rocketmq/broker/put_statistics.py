"""Put statistics in the log of a message service: figures of each minute, and slow puts."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable

from pyspark_dledger.common.log_records import record

# As RocketMQ: StoreStatsService's interval, its slots of PutMessageDistributeTime, and DLedgerCommitLog's warning.
_LOG_SECONDS = 60.0
_SLOTS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
_SLOW_MS = 500


class PutStatistics:
    """Counts puts, and logs the figures of each minute with puts. Not thread-safe.

    The time of a put is the time that blocks other puts, from check to write, like that of RocketMQ's lock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Since the start.
        self.all_messages = self.all_duplicates = 0
        # By the limit that was reached, topics or queues; "invalid" without one.
        self.all_rejected = {"invalid": 0, "queues": 0, "topics": 0}
        self._reset()

    def _reset(self) -> None:
        self._since = self._clock()
        self._puts = self._messages = self._size = self._duplicates = self._rejected = 0
        self._slowest = 0.0
        self._slots = [0] * (len(_SLOTS_MS) + 1)

    def add(self, messages: int, size: int, duplicates: int, topic: str, milliseconds: float) -> None:
        """Count an appended put of new messages, with their size in bytes, and of duplicates."""
        self._puts += 1
        self._messages += messages
        self._size += size
        self._duplicates += duplicates
        self.all_messages += messages
        self.all_duplicates += duplicates
        self._slowest = max(self._slowest, milliseconds)
        self._slots[bisect_left(_SLOTS_MS, milliseconds)] += 1
        if milliseconds > _SLOW_MS:
            record(
                logging.WARNING,
                "slow put",
                milliseconds=round(milliseconds),
                messages=messages,
                bytes=size,
                topic=topic,
            )
        self.log_if_due()

    def add_rejected(self, reason: str) -> None:
        self._rejected += 1
        self.all_rejected[reason] += 1

    def log_if_due(self) -> None:
        """Log the figures if a minute has passed."""
        if self._clock() - self._since >= _LOG_SECONDS:
            self.log()

    def log(self) -> None:
        """Log the figures since the last record, if there are any, and reset them."""
        if self._puts or self._rejected:
            seconds = max(self._clock() - self._since, 1e-9)
            record(
                logging.INFO,
                "puts",
                seconds=round(seconds, 1),
                puts=self._puts,
                messages=self._messages,
                messagesPerSecond=round(self._messages / seconds, 1),
                bytes=self._size,
                averageBytes=round(self._size / self._messages) if self._messages else None,
                duplicates=self._duplicates,
                refused=self._rejected,
                slowestMs=round(self._slowest, 1),
                times=self._times(),
            )
        self._reset()

    def _times(self) -> str:
        """The number of puts by duration: ``0-10ms:3 10-50ms:1``, without empty ranges."""
        lows = ("<=", *(f"{slot}-" for slot in _SLOTS_MS))
        highs = (*map(str, _SLOTS_MS), "")
        rows = zip(lows, highs, self._slots, strict=True)
        return " ".join(f"{low}{high}ms:{count}" for low, high, count in rows if count)
