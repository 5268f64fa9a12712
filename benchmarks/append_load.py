"""``python -m benchmarks.append_load GROUP PEERS``: appends with our client, one round for each line of standard input.

``batch COUNT SIZE`` appends COUNT bodies of SIZE bytes with ``append_batch``. ``single COUNT SIZE`` uses ``submit``,
with at most `IN_FLIGHT` without a response. ``rate COUNT SIZE RATE`` appends RATE a second and does not wait for
responses. One JSON object a round: the seconds until the last response, the number of acknowledged appends, and the
milliseconds in which half and 99 of 100 were. With ``rate`` they are counted from when an append was due, not from when
it was sent.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyspark_dledger as dl

IN_FLIGHT = 8000
PATIENCE_MS = 20_000  # the nodes may be starting
TICK = 0.002  # seconds between two checks for due appends


def batch(client: dl.Client, count: int, size: int) -> dict[str, Any]:
    bodies = [body_of(size)] * count
    start = time.perf_counter()
    result = client.append_batch(bodies)
    return {"seconds": time.perf_counter() - start, "acknowledged": len(result)}


def single(client: dl.Client, count: int, size: int) -> dict[str, Any]:
    body = body_of(size)
    clock = Clock(count)
    free = threading.Semaphore(IN_FLIGHT)
    start = time.perf_counter()
    for number in range(count):
        free.acquire()
        clock.begins(number, client.submit(body), time.perf_counter(), free.release)
    return clock.result(start)


def rate(client: dl.Client, count: int, size: int, wanted: int) -> dict[str, Any]:
    body = body_of(size)
    clock = Clock(count)
    start = time.perf_counter()
    sent = 0
    while sent < count:
        due = min(count, int((time.perf_counter() - start) * wanted))
        for number in range(sent, due):
            clock.begins(number, client.submit(body), start + number / wanted, _nothing)
        sent = max(sent, due)
        time.sleep(TICK)
    return clock.result(start)


def _nothing() -> None:
    """Handles responses that no caller waits for."""


def body_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


class Clock:
    """The times of appends."""

    def __init__(self, count: int) -> None:
        self._taken = [0.0] * count
        self._left = count
        self._acknowledged = 0
        self._is_over = threading.Event()

    def begins(self, number: int, future: Future[Any], begun: float, then: Callable[[], object]) -> None:
        future.add_done_callback(partial(self._ends, number, begun, then))

    def _ends(self, number: int, begun: float, then: Callable[[], object], future: Future[Any]) -> None:
        # Usually the client's only thread calls this, so no lock is needed.
        self._taken[number] = time.perf_counter() - begun
        self._acknowledged += future.exception() is None
        then()
        self._left -= 1
        if self._left == 0:
            self._is_over.set()

    def result(self, start: float) -> dict[str, Any]:
        self._is_over.wait()
        seconds = time.perf_counter() - start
        taken = sorted(self._taken)
        return {
            "seconds": seconds,
            "acknowledged": self._acknowledged,
            "p50": taken[len(taken) // 2] * 1e3,
            "p99": taken[int(len(taken) * 0.99)] * 1e3,
        }


ROUNDS: dict[str, Callable[..., dict[str, Any]]] = {"batch": batch, "single": single, "rate": rate}


def main() -> None:
    _, group, peers = sys.argv
    with dl.connect(group, peers, timeout_ms=PATIENCE_MS) as client:
        client.append(b"ready")
        print(json.dumps({"started": True}), flush=True)
        for line in sys.stdin:
            name, *numbers = line.split()
            print(json.dumps(ROUNDS[name](client, *map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
