"""Taking times side by side, and the line that a benchmark prints."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 7
WARM_UPS = 2

Seconds = Callable[[], float]


class PeerMissing(Exception):
    """The other side cannot run here; the reason is the message."""


@dataclass(frozen=True)
class Result:
    """One line of output. `goal` speaks of `value` or of `ratio` (ours to the peer's); `met` is null without a peer."""

    name: str
    value: float
    unit: str
    goal: str
    met: bool | None
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

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


def alternate(sides: dict[str, Seconds], rounds: int = ROUNDS, warm_ups: int = WARM_UPS) -> dict[str, float]:
    """The median seconds of every side, taken in turns so that a slow spell of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_ups + rounds):
        for name, seconds in sides.items():
            taken = seconds()
            if number >= warm_ups:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


def at_least_ratio(
    name: str, unit: str, value: float, peer: str, peer_value: float, goal: float, **detail: Any
) -> Result:
    ratio = value / peer_value
    return Result(name, value, unit, f"ratio >= {goal:g}", ratio >= goal, peer, peer_value, ratio, detail)
