"""``make chaos``: faults of the processes, links and disks of real nodes under load.

A seed repeats the faults and their order, not their exact times.
"""

from __future__ import annotations

import argparse
import random
import sys
from functools import partial
from pathlib import Path

from tests.chaos.rounds import run
from tests.support.seeds import Kit, Problem, Result


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    show = partial(print, flush=True)
    modes = {"messages": options.messages, "changes": options.changes}
    report = run(folder, options.rounds, seed, options.flush, show, **modes)
    return Result([Problem("violation", text) for text in report.violations], report.totals(), [str(report)])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--messages", action="store_true", help="append messages with identities")
    parser.add_argument("--changes", action="store_true", help="change the members all the time")


KIT = Kit("tests.chaos", check, __doc__, 1, add_options, processes=1, seed=random.randrange(10**9))

if __name__ == "__main__":
    sys.exit(KIT.main())
