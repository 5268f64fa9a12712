"""`python -m tests.chaos --rounds 100`: real processes, killed, stopped and cut off under load."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.rounds import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="the same faults in the same order; timing stays free")
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--keep", type=Path, help="an empty folder for stores and logs, which stays")
    args = parser.parse_args()
    seed = random.randrange(10**9) if args.seed is None else args.seed
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = run(folder, args.rounds, seed, args.flush, lambda text: print(text, flush=True))
    print(f"seed {seed}, flush {args.flush}, {time.monotonic() - begun:.0f} s; {report}")
    for line in report.wrong:
        print(f"VIOLATION {line}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
