"""Helpers for event loops of nodes and clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_CANCEL_INTERVAL = 0.1  # seconds
# More doublings could overflow a float; every pause has reached its maximum by then.
_MAX_DOUBLINGS = 64


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop, of uvloop if it is installed."""
    loop: asyncio.AbstractEventLoop
    loop = import_module("uvloop").new_event_loop() if find_spec("uvloop") else asyncio.new_event_loop()
    return loop


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks repeatedly until they end: up to Python 3.11 `asyncio.wait_for` can lose a cancellation."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_INTERVAL)


def backoff(failures: int, first: float, maximum: float) -> float:
    """Seconds to wait after this many failures in a row: exponential, with jitter."""
    pause: float = min(first * 2 ** min(failures, _MAX_DOUBLINGS), maximum)
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 # no secret
