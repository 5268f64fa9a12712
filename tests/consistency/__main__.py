"""``make consistency``: damaged groups by seed, of which no two verbs may say different things."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.consistency.run import check_seed
from tests.support.seeds import Kit, Problem, Result


def check(seed: int, folder: Path, _options: argparse.Namespace) -> Result:
    found = check_seed(seed, folder)
    problems = [Problem(f"{each.rule} | {each.verbs}", f"({found.name}) {each.detail}") for each in found.problems]
    return Result(problems, lines=[found.name, *(f"  damage {text}" for text in found.damages)])


KIT = Kit("tests.consistency", check, __doc__, 5000, is_in_memory=True)

if __name__ == "__main__":
    sys.exit(KIT.main())
