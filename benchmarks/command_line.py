"""The start of the command line: a fresh process with cached byte code, on a store of a few hundred KiB.

The peer only loads the libraries that most verbs need.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Result, alternate, timed

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "mq-53-single.tar.gz"
LIBRARIES = "import numpy, pyarrow"
MAX_RATIO = 3
SLOWEST = 5

_IMPORT = re.compile(r"^import time: +\d+ \| +(\d+) \| +(\S+)$", re.MULTILINE)


def environment() -> dict[str, str]:
    """Keep byte code, as in an installed package."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(*arguments: str, flags: tuple[str, ...] = ()) -> str:
    """Run the command line in its own process. Returns its standard error."""
    line = [sys.executable, *flags, "-m", "pyspark_dledger", *arguments]
    done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return done.stderr


def slowest_imports(arguments: tuple[str, ...]) -> dict[str, float]:
    """The packages and modules of this one with the longest load times, imports included, in milliseconds."""
    found = _IMPORT.findall(run(*arguments, flags=("-X", "importtime")))
    packages: dict[str, float] = {}
    for microseconds, name in found:
        package = name.partition(".")[0] if not name.startswith("pyspark_dledger") else name
        packages[package] = max(packages.get(package, 0.0), int(microseconds) / 1000)
    ordered = sorted(packages.items(), key=lambda item: -item[1])
    return dict(ordered[:SLOWEST])


def start(name: str, *arguments: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(GOLDEN) as archive:
            archive.extractall(folder)
        line = tuple(argument.format(store=f"{folder}/mq-53-single") for argument in arguments)
        bare = [sys.executable, "-c", LIBRARIES]
        seconds = alternate(
            {
                "ours": timed(lambda: run(*line)),
                "python": timed(lambda: subprocess.run(bare, check=True, env=environment())),
            }
        )
        imports = slowest_imports(line)
    detail = {"slowestImportsMs": imports}
    result = Result(name, seconds["ours"], "s", f"python -c '{LIBRARIES}'", seconds["python"], detail=detail)
    return result.with_ratio_at_most(MAX_RATIO)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "cli-help": lambda name: start(name, "--help"),
    "cli-state": lambda name: start(name, "state", "{store}"),
    "cli-find-index": lambda name: start(name, "find", "{store}", "5"),
    "cli-find-key": lambda name: start(name, "find", "{store}", "k-0"),
    "cli-recovery": lambda name: start(name, "recovery", "{store}"),
    "cli-verify": lambda name: start(name, "verify", "{store}"),
    "cli-stats": lambda name: start(name, "stats", "{store}"),
}
