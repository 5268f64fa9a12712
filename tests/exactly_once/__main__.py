"""`python -m tests.exactly_once --rounds 20 --cells 40`: each message is written and tailed once, in spite of kills.

Rounds kill leaders and drivers of a group. Cells of the matrix restart a stream to a path with other resources.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.exactly_once.matrix import ONCE, Matrix, cells
from tests.exactly_once.rounds import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactly_once", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cells", type=int, default=40, help="of the matrix, chosen by the seed; 0 for none")
    parser.add_argument("--seed", type=int, default=None, help="repeats the faults and their order, not their timing")
    parser.add_argument("--keep", type=Path, help="an empty folder for stores, rows and logs, which are kept")
    args = parser.parse_args()
    seed = random.randrange(10**9) if args.seed is None else args.seed
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wrong = run_matrix(folder / "matrix", args.cells, seed)
        if args.rounds:
            (folder / "rounds").mkdir()
            report = run(folder / "rounds", args.rounds, seed, lambda text: print(text, flush=True))
            wrong += report.wrong
            print(report)
    print(f"seed {seed}, {time.monotonic() - start:.0f} s")
    for line in wrong:
        print(f"VIOLATION {line}")
    return 1 if wrong else 0


def run_matrix(folder: Path, count: int, seed: int) -> list[str]:
    every = list(cells())
    numbers = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    chosen = [every[number] for number in sorted(numbers)]
    outcomes: Counter[str] = Counter()
    wrong = []
    matrix = Matrix(folder)
    try:
        for number, cell in enumerate(chosen):
            outcome = matrix.run(cell)
            print(f"cell {number + 1} of {len(chosen)}: {cell}: {outcome}", flush=True)
            outcomes[outcome] += 1
            wrong += [] if outcome.startswith(ONCE) else [f"{cell}: {outcome}"]
    finally:
        matrix.close()
    print(", ".join(f"{outcome}: {number}" for outcome, number in outcomes.most_common()) or "no cells")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
