"""``make salvage``: damaged groups by seed. The salvage of each must equal the undamaged log.

``--lossy`` damages some entries on every member.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.salvage.run import salvage_problem
from tests.support.seeds import Kit, Problem, Result


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    problem = salvage_problem(folder, seed, not options.lossy, options.java)
    return Result([Problem(*problem)] if problem else [])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lossy", action="store_true", help="some entries are intact nowhere")
    parser.add_argument("--java", action="store_true", help="let Java DLedger and brokers read each result")


KIT = Kit("tests.salvage", check, __doc__, 200, add_options)

if __name__ == "__main__":
    sys.exit(KIT.main())
