"""Small things for event loops that nodes and clients share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Seconds.
_CANCEL_AGAIN = 0.1
# From so many doublings on, no pause is below its longest: a float would not hold many more.
_MOST_DOUBLED = 64


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop, uvloop's where that is installed."""
    loop: asyncio.AbstractEventLoop
    loop = import_module("uvloop").new_event_loop() if find_spec("uvloop") else asyncio.new_event_loop()
    return loop


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks until they have ended: up to Python 3.11 `asyncio.wait_for` can lose a cancellation."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN)


def pause_after(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row: longer each time, and not the same for all of a group."""
    pause: float = min(first * 2 ** min(failures, _MOST_DOUBLED), longest)
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 # no secret
