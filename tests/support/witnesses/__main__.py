"""`python -m tests.support.witnesses --count 10000`: damages stores, and says what a read of them loses or invents.

Each class of stores is read with intact, damaged and missing index files and ConsumeQueues, and with IndexFiles alone.
"""

# ruff: noqa: T201 - printing is what a command line does

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.support.witnesses.damages import INDEX_MODES
from tests.support.witnesses.runs import CLASSES, Stores, run

MAX_SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.witnesses", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="stores for each state of the index files")
    parser.add_argument("--index", choices=INDEX_MODES, action="append", help="only this state of the index files")
    parser.add_argument("--kind", choices=CLASSES, action="append", help="only this class of stores")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="only the native engine, without splits")
    parser.add_argument("--only", help="repeats one store, such as rewritten/intact/17")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.only:
            kind, mode, seed = args.only.split("/")
            print(Stores(Path(folder)).verdict(kind, mode, int(seed)))
            return 0
        wrong = 0
        kinds, modes = tuple(args.kind or CLASSES), tuple(args.index or INDEX_MODES)
        for name, rate in run(Path(folder), args.count, kinds, modes, args.start, not args.quick):
            per = 1000 * rate.wrong / rate.stores
            print(
                f"{name:24s} {rate.stores:6d} stores: lost {rate.lost}, invented {rate.invented}, engines or splits "
                f"differ {rate.disagree}; {per:.1f} of 1,000; undecidable {rate.undecidable}",
                flush=True,
            )
            for failure in rate.failures[:MAX_SHOWN]:
                print(f"  {failure}", flush=True)
            wrong += rate.wrong * name.endswith("intact")
    return 1 if wrong else 0


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
