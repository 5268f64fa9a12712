"""``make witnesses``: damages stores, and says what a read of them loses or invents.

Each class of stores is read with intact, damaged and missing index files and ConsumeQueues, and with IndexFiles alone.
Only with intact ones nothing may be wrong: RATES.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.support.seeds import Kit, Problem, Result
from tests.support.witnesses.damages import INDEX_MODES
from tests.support.witnesses.runs import CLASSES, Stores


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    """Damage a store of each class in each state of its index files."""
    result, stores = Result(), Stores(folder)
    for kind in options.kind or CLASSES:
        for mode in options.index or INDEX_MODES:
            verdict = stores.verdict(kind, mode, seed, not options.quick)
            is_undecidable = verdict.is_other_log and not verdict.disagreements
            outcome = "undecidable" if is_undecidable else "right" if verdict.is_right else "wrong"
            result.counts += Counter({f"{kind}, {mode}: {outcome}": 1})
            if outcome == "wrong" and mode == "intact":
                result.problems.append(Problem(f"{kind}/{mode}", str(verdict)))
            elif outcome != "right":
                result.lines.append(f"{kind}/{mode}, {outcome}: {verdict}")
    return result


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--index", choices=INDEX_MODES, action="append", help="only this state of the index files")
    parser.add_argument("--kind", choices=CLASSES, action="append", help="only this class of stores")
    parser.add_argument("--quick", action="store_true", help="only the native engine, without splits")


KIT = Kit("tests.support.witnesses", check, __doc__, 1000, add_options)

if __name__ == "__main__":
    sys.exit(KIT.main())
