"""``make simulate``: the core in a simulated world of faults. ``--only SEED`` prints the transcript if it fails.

With ``--on-disk`` the members have the real store on disks that lose power; ``make power`` runs some of these seeds.
With ``--changes`` the members change all the time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.simulation.run import run_scenario
from tests.simulation.scenario import Scenario, make, make_on_disk, make_with_changes
from tests.simulation.summary import missing_events
from tests.support.seeds import Kit, Problem, Result

PRINTED_LINES = 200
# The seeds after which all expected events must have happened, and the rare ones.
SHORT, LONG = 500, 5000


def scenario(seed: int, options: argparse.Namespace) -> Scenario:
    return (make_on_disk if options.on_disk else make_with_changes if options.changes else make)(seed)


def check(seed: int, _folder: Path, options: argparse.Namespace) -> Result:
    lines: list[str] | None = [] if options.only is not None else None
    outcome = run_scenario(scenario(seed, options), lines=lines)
    result = Result(counts=outcome.counts + Counter({"steps": outcome.steps, "virtual seconds": outcome.time // 1000}))
    if outcome.violation:
        result.problems.append(Problem("violation", outcome.violation))
    if lines is not None:
        shown = lines if options.all else lines[-PRINTED_LINES:] if outcome.violation else []
        result.lines = [str(scenario(seed, options)), *shown]
    return result


def absent(counts: Counter[str], seeds: int, options: argparse.Namespace) -> list[str]:
    if seeds < SHORT or options.changes:
        return []
    return missing_events(counts, is_long=seeds >= LONG, is_on_disk=options.on_disk)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on-disk", action="store_true", help="with the real store, on disks that lose power")
    parser.add_argument("--changes", action="store_true", help="members are added, removed and replaced all the time")
    parser.add_argument("--all", action="store_true", help="with --only: print the whole transcript in any case")


KIT = Kit("tests.simulation", check, __doc__, 20_000, add_options, absent)

if __name__ == "__main__":
    sys.exit(KIT.main())
