"""``make simulate``: many seeds on several processes; or one seed again with its transcript.

``python -m tests.simulation --seed 4711`` plays that seed and prints what happened if it fails (``--all``: in any
case). Ends with status 1 at the first seeds that fail, and names them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.run import Outcome, run
from tests.simulation.scenario import make
from tests.simulation.summary import EXPECTED, missing, table

LAST_LINES = 200
MOST_FAILURES = 10


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


def simulate(seeds: range, processes: int) -> int:
    """Plays the seeds, shows how far it is, and then what happened in them."""
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    steps = virtual = done = 0
    began = shown = time.monotonic()
    for outcome in outcomes(seeds, processes):
        done += 1
        counts += outcome.counts
        steps += outcome.steps
        virtual += outcome.time
        if outcome.violation:
            failed.append(outcome)
            print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
            if len(failed) == MOST_FAILURES:
                break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            rate = done / (shown - began)
            print(f"{done} of {len(seeds)} seeds, {rate:.0f}/s, {(len(seeds) - done) / rate:.0f} s left", flush=True)
    print(*table(counts), sep="\n")
    took = time.monotonic() - began
    hours = virtual / 3_600_000
    print(f"{done} seeds, {len(failed)} failed, {steps} steps, {hours:.1f} h of virtual time in {took:.0f} s")
    if failed:
        print(*(f"again: python -m tests.simulation --seed {outcome.seed}" for outcome in failed), sep="\n")
        return 1
    absent = missing(counts)
    if absent and len(seeds) >= 1000:
        print(
            f"{len(absent)} of {len(EXPECTED)} things that must happen never did: {', '.join(absent)}", file=sys.stderr
        )
        return 1
    return 0


def outcomes(seeds: range, processes: int) -> Iterator[Outcome]:
    """The outcome of every seed, in no order."""
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=8)


if __name__ == "__main__":
    sys.exit(main())
