"""Times the sides of a benchmark in turns, and prints its line."""

from __future__ import annotations

import json
import mmap
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

ROUNDS = 9
WARM_UPS = 2

Seconds = Callable[[], float]


class PeerMissing(Exception):
    """A peer cannot run here; the message is the reason."""


@dataclass(frozen=True)
class Result:
    """A benchmark's result. The goal is for `value`, or for the ratio of `value` to the peer's; "" is none."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    goal: str = ""
    met: bool = False
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return None if self.peer_value is None else self.value / self.peer_value

    def with_least(self, least: float) -> Result:
        return replace(self, goal=f"value >= {least:g}", met=self.value >= least)

    def with_most(self, most: float) -> Result:
        return replace(self, goal=f"value < {most:g}", met=self.value < most)

    def with_ratio_goal(self, least: float) -> Result:
        return replace(self, goal=f"ratio >= {least:g}", met=(self.ratio or 0) >= least)

    def with_ratio_at_most(self, most: float) -> Result:
        return replace(self, goal=f"ratio <= {most:g}", met=self.ratio is not None and self.ratio <= most)

    def json(self) -> str:
        line = {
            "name": self.name,
            "value": rounded(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peerValue": rounded(self.peer_value),
            "ratio": rounded(self.ratio),
            "goal": self.goal,
            "met": self.met if self.goal else None,
        }
        return json.dumps({**line, **self.detail})


def rounded(value: float | None) -> float | None:
    """Four significant digits: more would be noise."""
    return None if value is None else float(f"{value:.4g}")


def timed(action: Callable[[], Any]) -> Seconds:
    """A function that runs `action` and returns the seconds."""

    def seconds() -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    return seconds


@contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Runs `work` in a thread, and sets its event at the end of the block.

    The thread ends with the block also if the block raises. It never keeps the process alive.
    """
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def touch_memory(size: int) -> None:
    """Allocate and free the memory for a round's files.

    A virtual machine whose host takes back what is free gets it again page by page, several times slower than it is
    written: that would be measured otherwise, in whichever round comes first.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    mmap.mmap(-1, size, flags=flags).close()


def alternate(sides: dict[str, Seconds], rounds: int = ROUNDS, warm_ups: int = WARM_UPS) -> dict[str, float]:
    """The median seconds of every side. They run in turns, so that a slow phase of the machine affects all."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_ups + rounds):
        for name, seconds in sides.items():
            taken = seconds()
            if number >= warm_ups:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}
