"""Figures of a message service in its log: how much was put, how long it took, and what took too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from pyspark_dledger.common.log_records import record

# As RocketMQ: StoreStatsService's interval, its slots of PutMessageDistributeTime, and DLedgerCommitLog's warning.
_RECORD_SECONDS = 60.0
_SLOTS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
_SLOW_MS = 500


class PutFigures(NamedTuple):
    """What one put brought: messages and bytes that were appended, and messages that were there already."""

    messages: int
    size: int
    duplicates: int
    topic: str


class PutStatistics:
    """Counts puts, and logs the figures of each minute in which there were some. Of one thread.

    The time of a put is that for which nothing else could be put: from the check to the write, as RocketMQ's lock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock()
        self._puts = self._messages = self._size = self._duplicates = self._refused = 0
        self._slowest = 0.0
        self._slots = [0] * (len(_SLOTS_MS) + 1)

    def put(self, put: PutFigures, milliseconds: float) -> None:
        """A put was appended, and took so long."""
        self._puts += 1
        self._messages += put.messages
        self._size += put.size
        self._duplicates += put.duplicates
        self._slowest = max(self._slowest, milliseconds)
        self._slots[sum(milliseconds > slot for slot in _SLOTS_MS)] += 1
        if milliseconds > _SLOW_MS:
            record(
                logging.WARNING,
                "slow put",
                milliseconds=round(milliseconds),
                messages=put.messages,
                bytes=put.size,
                topic=put.topic,
            )
        self.look()

    def refused(self) -> None:
        self._refused += 1

    def look(self) -> None:
        """Log the figures where a minute is over."""
        if self._clock() - self._since >= _RECORD_SECONDS:
            self.record()

    def record(self) -> None:
        """Log what came since the last record, if anything, and begin anew."""
        if self._puts or self._refused:
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
                refused=self._refused,
                slowestMs=round(self._slowest, 1),
                times=self._times(),
            )
        self._begin()

    def _times(self) -> str:
        """How many puts took how long: ``0-10ms:3 10-50ms:1``, those that none took left out."""
        texts = []
        for number, count in enumerate(self._slots):
            if count:
                low = f"{_SLOTS_MS[number - 1]}-" if number else "<="
                high = f"{_SLOTS_MS[number]}ms" if number < len(_SLOTS_MS) else "ms"
                texts.append(f"{low}{high}:{count}")
        return " ".join(texts)
