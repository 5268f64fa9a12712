"""`python -m tests.exactly_once --rounds 20`: each message once, whatever is killed."""

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
    parser.add_argument("--seed", type=int, default=None, help="the same faults in the same order; timing stays free")
    parser.add_argument("--keep", type=Path, help="an empty folder for stores, rows and logs, which stays")
    args = parser.parse_args()
    seed = random.randrange(10**9) if args.seed is None else args.seed
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = run(folder, args.rounds, seed, lambda text: print(text, flush=True))
    print(f"seed {seed}, {time.monotonic() - begun:.0f} s; {report}")
    for line in report.wrong:
        print(f"VIOLATION {line}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
