"""A clock whose jumps count only when they last."""

from __future__ import annotations

import pytest

from pyspark_dledger.common.clock import SteadyClock

DAY = 24 * 3600.0


class Clocks:
    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000_000.0, 5.0

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def steady_clock(self, changed_at: float | None = None, max_silence: float = 0.0) -> SteadyClock:
        return SteadyClock(changed_at, max_silence, lambda: self.wall, lambda: self.steady)


@pytest.mark.parametrize("jump", [8 * DAY, -8 * DAY])
def test_a_jump_counts_when_it_has_lasted_a_day(jump: float) -> None:
    clocks = Clocks()
    clock = clocks.steady_clock()
    began = clock()
    clocks.wall += jump
    clocks.advance(60)
    assert clock() == began + 60
    clocks.wall -= jump
    assert clock() == began + 60
    clocks.wall += jump
    assert clock() == began + 60
    clocks.advance(DAY)
    assert clock() == began + 60 + jump + DAY


def test_small_steps_count_at_once() -> None:
    clocks = Clocks()
    clock = clocks.steady_clock()
    for step in (500.0, -500.0, 599.0):
        clocks.wall += step
        assert clock() == clocks.wall


def test_a_time_long_after_the_last_change_counts_after_a_day() -> None:
    clocks = Clocks()
    clock = clocks.steady_clock(clocks.wall - 4 * DAY, 3 * DAY)
    assert clock() == clocks.wall - 4 * DAY
    clocks.advance(DAY)
    assert clock() == clocks.wall
    assert clocks.steady_clock(clocks.wall - 2 * DAY, 3 * DAY)() == clocks.wall
