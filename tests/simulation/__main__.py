"""``make simulate``: many seeds in several processes, or one seed with its transcript.

``python -m tests.simulation --seed 4711`` runs that seed and prints its transcript if it fails (``--all``: always).
Stops after some failed seeds, with exit code 1, and prints them. With ``--on-disk`` the members have the real store on
disks that lose power; ``make power`` runs some of these seeds.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.simulation.run import Outcome, run, run_on_disk
from tests.simulation.scenario import make, make_on_disk
from tests.simulation.summary import missing_events, table

PRINTED_LINES = 200
MAX_FAILURES = 10
PROGRESS_INTERVAL_S = 10
# The seeds after which all expected events must have happened, and the rare ones.
SHORT, LONG = 500, 5000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="run only this seed and print its end")
    parser.add_argument(
        "--all", action="store_true", help="with --seed: print the whole transcript, also without a failure"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000, help="the number of seeds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--on-disk", action="store_true", help="with the real store, on disks that lose power")
    given = parser.parse_args()
    # A disk that gets full or loses power is no news here.
    logging.disable(logging.WARNING)
    if given.seed is not None:
        return replay(given.seed, given.all, given.on_disk)
    return simulate(range(given.first, given.first + given.count), given.processes, given.on_disk)


def replay(seed: int, is_all: bool, is_on_disk: bool) -> int:
    lines: list[str] = []
    outcome = (run_on_disk if is_on_disk else run)(seed, lines=lines)
    print((make_on_disk if is_on_disk else make)(seed))
    if is_all or outcome.violation:
        print(*(lines if is_all else lines[-PRINTED_LINES:]), sep="\n")
    print(f"seed {seed}: {outcome.violation or 'no violation'}, {outcome.steps} steps, {outcome.time} ms")
    return 1 if outcome.violation else 0


class Tally:
    """The results of the seeds so far."""

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


def simulate(seeds: range, processes: int, is_on_disk: bool) -> int:
    """Run the seeds and print progress, then the events; Ctrl-C ends it early."""
    tally = Tally()
    started = time.monotonic()
    try:
        run_all(seeds, processes, tally, run_on_disk if is_on_disk else run)
    except KeyboardInterrupt:
        print("interrupted")
    print(*table(tally.counts), sep="\n")
    seconds = time.monotonic() - started
    hours = tally.virtual / 3_600_000
    print(
        f"{tally.done} seeds, {len(tally.failed)} failed, {tally.steps} steps, {hours:.1f} h of virtual time "
        f"in {seconds:.0f} s"
    )
    if tally.failed:
        replay(tally.failed[0].seed, False, is_on_disk)
        again = f"python -m tests.simulation{' --on-disk' * is_on_disk} --seed"
        print(*(f"again: {again} {outcome.seed}" for outcome in tally.failed), sep="\n")
        return 1
    absent = missing_events(tally.counts, is_long=tally.done >= LONG, is_on_disk=is_on_disk)
    if absent and tally.done >= SHORT:
        print(f"{len(absent)} expected events never happened: {', '.join(absent)}", file=sys.stderr)
        return 1
    return 0 if tally.done == len(seeds) else 2


def run_all(seeds: range, processes: int, tally: Tally, run_seed: Callable[[int], Outcome]) -> None:
    """Run until all seeds are done or too many failed; prints progress about every 10 s."""
    started = shown = time.monotonic()
    for outcome in outcomes(seeds, processes, run_seed):
        tally.add(outcome)
        if len(tally.failed) == MAX_FAILURES:
            return
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            rate = tally.done / (shown - started)
            left = (len(seeds) - tally.done) / rate
            print(f"{tally.done} of {len(seeds)} seeds, {rate:.0f}/s, {left:.0f} s left", flush=True)


def outcomes(seeds: range, processes: int, run_seed: Callable[[int], Outcome]) -> Iterator[Outcome]:
    """The outcomes of all seeds, in any order."""
    if processes == 1:
        yield from map(run_seed, seeds)
        return
    # Only this process handles Ctrl-C; it ends the others.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(processes, signal.signal, ignore) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=8)


if __name__ == "__main__":
    sys.exit(main())
