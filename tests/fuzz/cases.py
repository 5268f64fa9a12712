"""Runs numbered cases, each of which depends on a seed and its number, from the command line."""

# ruff: noqa: T201 - printing is what a command line does

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator

# From seed, number of cases, seconds and first case to the number of cases by result.
Run = Callable[[int, int | None, float | None, int], dict[str, int]]


def numbers(first: int, cases: int | None, seconds: float | None) -> Iterator[int]:
    """Numbers of cases, until there are enough or the time is over."""
    until = time.monotonic() + seconds if seconds is not None else None

    def is_wanted(number: int) -> bool:
        return (cases is None or number - first < cases) and (until is None or time.monotonic() <= until)

    return itertools.takewhile(is_wanted, itertools.count(first))


def run_by_command_line(
    description: str | None, run: Run, failure: type[Exception], ending: Callable[[int, dict[str, int]], str]
) -> int:
    """Run the cases of the command line and print the result. Returns 1 after a failure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="how long; 60 without anything else")
    parser.add_argument("--cases", type=int, help="how many cases")
    parser.add_argument("--case", type=int, help="one case alone")
    given = parser.parse_args()
    if given.case is not None:
        given.cases = 1
    seconds = 60 if given.cases is None and given.seconds is None else given.seconds
    try:
        done = run(given.seed, given.cases, seconds, given.case or 0)
    except failure as error:
        print(error, file=sys.stderr)
        return 1
    print(ending(given.seed, done))
    return 0
