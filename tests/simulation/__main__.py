"""``make simulate``: many seeds on several processes; or one seed again with its transcript.

``python -m tests.simulation --seed 4711`` plays that seed and prints what happened if it fails (``--all``: in any
case). Ends with status 1 at the first seeds that fail, and names them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.run import Outcome, run
from tests.simulation.scenario import make
from tests.simulation.summary import missing, table

LAST_LINES = 200
MOST_FAILURES = 10
SHOW_EVERY_S = 10
# So many seeds must show everything that is expected to happen, and what is rare.
SHORT, LONG = 500, 5000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one alone and show it")
    parser.add_argument("--all", action="store_true", help="with --seed: the whole transcript, whatever comes of it")
    parser.add_argument("--first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--count", type=int, default=20_000, help="how many seeds")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.seed is not None:
        return replay(given.seed, given.all)
    return simulate(range(given.first, given.first + given.count), given.processes)


def replay(seed: int, is_all: bool) -> int:
    lines: list[str] = []
    outcome = run(seed, lines=lines)
    print(make(seed))
    if is_all or outcome.violation:
        print(*(lines if is_all else lines[-LAST_LINES:]), sep="\n")
    print(f"seed {seed}: {outcome.violation or 'nothing violated'}, {outcome.steps} steps, {outcome.time} ms")
    return 1 if outcome.violation else 0


class Tally:
    """What came of the seeds that were played so far."""

    def __init__(self) -> None:
        self.done = self.steps = self.virtual = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.steps += outcome.steps
        self.virtual += outcome.time
        self.counts.update(outcome.counts)
        if outcome.violation:
            self.failed.append(outcome)
            print(f"seed {outcome.seed}: {outcome.violation}", flush=True)


def simulate(seeds: range, processes: int) -> int:
    """Plays the seeds, shows how far it is, and then what happened in them; Ctrl-C ends it early."""
    tally = Tally()
    began = time.monotonic()
    try:
        play_all(seeds, processes, tally)
    except KeyboardInterrupt:
        print("interrupted")
    print(*table(tally.counts), sep="\n")
    took = time.monotonic() - began
    hours = tally.virtual / 3_600_000
    print(
        f"{tally.done} seeds, {len(tally.failed)} failed, {tally.steps} steps, {hours:.1f} h of virtual time "
        f"in {took:.0f} s"
    )
    if tally.failed:
        replay(tally.failed[0].seed, is_all=False)
        print(*(f"again: python -m tests.simulation --seed {outcome.seed}" for outcome in tally.failed), sep="\n")
        return 1
    absent = missing(tally.counts, is_long=tally.done >= LONG)
    if absent and tally.done >= SHORT:
        print(f"{len(absent)} things that must happen never did: {', '.join(absent)}", file=sys.stderr)
        return 1
    return 0 if tally.done == len(seeds) else 2


def play_all(seeds: range, processes: int, tally: Tally) -> None:
    """Plays until all seeds are played or too many failed, and says about every 10 s how far it is."""
    began = shown = time.monotonic()
    for outcome in outcomes(seeds, processes):
        tally.add(outcome)
        if len(tally.failed) == MOST_FAILURES:
            return
        if time.monotonic() - shown > SHOW_EVERY_S:
            shown = time.monotonic()
            rate = tally.done / (shown - began)
            left = (len(seeds) - tally.done) / rate
            print(f"{tally.done} of {len(seeds)} seeds, {rate:.0f}/s, {left:.0f} s left", flush=True)


def outcomes(seeds: range, processes: int) -> Iterator[Outcome]:
    """The outcome of every seed, in no order."""
    if processes == 1:
        yield from map(run, seeds)
        return
    # Ctrl-C is for this process alone, which ends the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(processes, signal.signal, ignore) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=8)


if __name__ == "__main__":
    sys.exit(main())
