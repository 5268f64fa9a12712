"""``make exactly-once``: each message is written and tailed once, in spite of kills.

Rounds kill leaders and drivers of a group. Cells of the matrix restart a stream to a path with other resources. A seed
repeats the faults and their order, not their exact times.
"""

from __future__ import annotations

import argparse
import random
import sys
from functools import partial
from pathlib import Path

from tests.exactly_once.matrix import ONCE, Matrix, cells
from tests.exactly_once.rounds import run
from tests.support.seeds import Kit, Problem, Result


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    result = Result()
    run_matrix(folder / "matrix", options.cells, seed, result)
    if options.rounds:
        (folder / "rounds").mkdir()
        report = run(folder / "rounds", options.rounds, seed, partial(print, flush=True))
        result.problems += [Problem("violation", text) for text in report.wrong]
        result.lines.append(str(report))
    return result


def run_matrix(folder: Path, count: int, seed: int, result: Result) -> None:
    every = list(cells())
    numbers = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    matrix = Matrix(folder)
    try:
        for done, cell in enumerate((every[number] for number in sorted(numbers)), 1):
            outcome = matrix.run(cell)
            print(f"cell {done} of {len(numbers)}: {cell}: {outcome}", flush=True)
            result.counts[outcome] += 1
            if not outcome.startswith(ONCE):
                result.problems.append(Problem(outcome, str(cell)))
    finally:
        matrix.close()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cells", type=int, default=40, help="of the matrix, chosen by the seed; 0 for none")


KIT = Kit("tests.exactly_once", check, __doc__, 1, add_options, processes=1, seed=random.randrange(10**9))

if __name__ == "__main__":
    sys.exit(KIT.main())
