"""`python -m tests.chaos --rounds 100`: faults of the processes, links and disks of real nodes under load."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.chaos.rounds import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--seed", type=int, default=None, help="repeats the faults and their order, not their exact times"
    )
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument(
        "--messages", action="store_true", help="append messages with identities to a group that serves them"
    )
    parser.add_argument("--keep", type=Path, help="an empty folder for stores and logs; it is kept")
    args = parser.parse_args()
    seed = random.randrange(10**9) if args.seed is None else args.seed
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"seed {seed}", flush=True)
        show = partial(print, flush=True)
        report = run(folder, args.rounds, seed, args.flush, show, messages=args.messages)
    print(f"seed {seed}, flush {args.flush}, {time.monotonic() - started:.0f} s; {report}")
    for line in report.violations:
        print(f"VIOLATION {line}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
