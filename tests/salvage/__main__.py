"""``make salvage``: many damaged groups by seed; the result of each must equal the undamaged log.

``python -m tests.salvage --seed 7 --keep FOLDER`` runs one seed and keeps its files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.salvage.run import run

MAX_FAILURES = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="make salvage", description=__doc__)
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--lossy", action="store_true", help="with --seed: some entries are intact nowhere")
    parser.add_argument("--keep", help="with --seed: a new folder for its files")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="groups that keep every entry; half as many lose some")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--java", action="store_true", help="let Java DLedger and brokers read each result")
    given = parser.parse_args()
    if given.seed is not None:
        print(run((given.seed, not given.lossy, given.keep, given.java)) or "as expected")
        return 0
    cases = [(seed, True, None, given.java) for seed in range(given.first, given.first + given.count)]
    cases += [(seed, False, None, given.java) for seed in range(given.first, given.first + given.count // 2)]
    began = time.monotonic()
    failed = 0
    with multiprocessing.Pool(given.processes) as pool:
        for (seed, is_lossless, *_), problem in zip(cases, pool.imap(run, cases), strict=True):
            if problem:
                failed += 1
                print(f"seed {seed}, {'nothing' if is_lossless else 'something'} lost: {problem}", flush=True)
            if failed == MAX_FAILURES:
                break
    print(f"{failed} of {len(cases)} groups failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
