"""Shared by the benchmarks of tails: a trigger without new rows, and the time from an append to its row."""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable, Iterable

from benchmarks.measure import Result, rounded
from pyspark_dledger.log.tail.tail import NO_LIMITS, NOTHING, Tail, TailOffset

LOOKS = 500
SECONDS = 20.0
TRIGGER = 0.1
# Bodies begin with the time of their append.
TIME = struct.Struct(">d")


def idle_seconds(tail: Tail[TailOffset]) -> float:
    """The median time of a trigger without new rows, as Spark makes it: latest offset and plan."""
    end = tail.latest(NOTHING, NO_LIMITS)
    taken = []
    for _ in range(LOOKS):
        start = time.perf_counter()
        if tail.latest(end, NO_LIMITS) != end:
            raise AssertionError("expected nothing new")
        tail.progress()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def delays(tail: Tail[TailOffset], bodies_between: Callable[[TailOffset, TailOffset], Iterable[bytes]]) -> list[float]:
    """The seconds from each append to its row, for triggers during `SECONDS`, after a warm-up trigger."""
    start, is_loaded = tail.latest(NOTHING, NO_LIMITS), False
    while not is_loaded:
        time.sleep(TRIGGER)
        end = tail.latest(start, NO_LIMITS)
        is_loaded = bool(list(bodies_between(start, end)))
        start = tail.latest(end, NO_LIMITS)
    found: list[float] = []
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(TRIGGER)
        end = tail.latest(start, NO_LIMITS)
        bodies = list(bodies_between(start, end))
        now = time.time()
        found += [now - TIME.unpack_from(body)[0] for body in bodies]
        start = end
    return found


def latency_result(name: str, seconds: list[float], max_ms: float, **detail: float) -> Result:
    """The p99 of the latencies; the goal is one trigger and `max_ms` more."""
    worst = statistics.quantiles(seconds, n=100)[98]
    median = rounded(statistics.median(seconds) * 1e3)
    given = {"triggerMs": TRIGGER * 1e3, **detail, "rows": len(seconds), "medianMs": median}
    result = Result(name, worst * 1e3, "ms at most for 99 %", detail=given)
    return result.with_most(TRIGGER * 1e3 + max_ms)
