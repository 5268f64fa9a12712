"""``make consistency``: many damaged groups by seed, of which no two verbs may say different things.

``python -m tests.consistency --only 7 --keep FOLDER`` checks one seed and keeps its files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import defaultdict

from tests.consistency.run import Checked, check_seed

MAX_SHOWN = 3
MAX_WIDTH = 160


def main() -> int:
    parser = argparse.ArgumentParser(prog="make consistency", description=__doc__)
    parser.add_argument("--only", type=int, help="check only this seed")
    parser.add_argument("--keep", help="with --only: a new folder for its files")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=5000, help="how many groups")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shown", type=int, default=MAX_SHOWN, help="examples of each contradiction to print")
    given = parser.parse_args()
    if given.only is not None:
        return _one(check_seed(given.only, given.keep))
    began = time.monotonic()
    examples: dict[str, list[str]] = defaultdict(list)
    failed = 0
    with multiprocessing.Pool(given.processes) as pool:
        for found in pool.imap_unordered(check_seed, range(given.seed, given.seed + given.count), chunksize=4):
            failed += bool(found.problems)
            for rule, detail in {f"{each.rule} | {each.verbs}": each.detail for each in found.problems}.items():
                examples[rule].append(f"seed {found.seed} ({found.name}): {detail[:MAX_WIDTH]}")
    print(f"{failed} of {given.count} groups have contradictions, {time.monotonic() - began:.0f} s")
    for rule, seeds in sorted(examples.items(), key=lambda each: -len(each[1])):
        print(f"{len(seeds):5} {rule}: {'; '.join(seeds[: given.shown])}")
    return 1 if failed else 0


def _one(found: Checked) -> int:
    print(found.seed, found.name)
    for text in found.damages:
        print("  damage", text)
    for each in found.problems:
        print(f"{each.rule} | {each.verbs}: {each.detail}")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
