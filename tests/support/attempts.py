"""Work in parts as Spark may run it: a task that is slow is started a second time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_at_once(work: Any, parts: Any) -> Iterator[Any]:
    """Four attempts at each part at the same time, which have to give the same."""
    with ThreadPoolExecutor(4) as pool:
        for attempts in [[pool.submit(work, part) for _ in range(4)] for part in parts]:
            assert len({repr(attempt.result()) for attempt in attempts}) == 1
            yield attempts[0].result()
