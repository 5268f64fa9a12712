"""`python -m tests.exactly_once --rounds 20`: each message is written and tailed once, in spite of kills."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.exactly_once.rounds import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactly_once", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="repeats the faults and their order, not their timing")
    parser.add_argument("--keep", type=Path, help="an empty folder for stores, rows and logs, which are kept")
    args = parser.parse_args()
    seed = random.randrange(10**9) if args.seed is None else args.seed
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = run(folder, args.rounds, seed, lambda text: print(text, flush=True))
    print(f"seed {seed}, {time.monotonic() - start:.0f} s; {report}")
    for line in report.wrong:
        print(f"VIOLATION {line}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
