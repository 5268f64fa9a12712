"""Taking times side by side, and the line that a benchmark prints."""

from __future__ import annotations

import json
import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

ROUNDS = 9
WARM_UPS = 2

Seconds = Callable[[], float]


class PeerMissing(Exception):
    """The other side cannot run here; the message says why."""


@dataclass(frozen=True)
class Result:
    """What a benchmark found. A goal is met by `value`, or by the ratio of `value` to the peer's."""

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
            "met": self.met,
        }
        return json.dumps({**line, **self.detail})


def rounded(value: float | None) -> float | None:
    """Four significant digits: more would be noise."""
    return None if value is None else float(f"{value:.4g}")


def timed(action: Callable[[], Any]) -> Seconds:
    """`action` as something that returns the seconds it took."""

    def seconds() -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    return seconds


def touch_memory(size: int) -> None:
    """Take and give back the bytes of memory that a round's files will be kept in.

    A virtual machine whose host takes back what is free gets it again page by page, several times slower than it is
    written: that would be measured otherwise, in whichever round comes first.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    mmap.mmap(-1, size, flags=flags).close()


def alternate(sides: dict[str, Seconds], rounds: int = ROUNDS, warm_ups: int = WARM_UPS) -> dict[str, float]:
    """The median seconds of every side, taken in turns so that a slow spell of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_ups + rounds):
        for name, seconds in sides.items():
            taken = seconds()
            if number >= warm_ups:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}
