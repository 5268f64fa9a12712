"""``python -m benchmarks [NAME...]``: one line of JSON each; all without names. A missed goal is not an error."""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Callable
from importlib import import_module

from benchmarks.measure import PeerMissing, Result

MODULES = (
    "scans",
    "damage",
    "memory",
    "planning",
    "spark_jobs",
    "command_line",
    "encode",
    "store",
    "replication",
    "messages",
    "group_tail",
    "tail",
    "spark_write",
    "export",
    "cold",
    "engines",
    "salvage",
)


def line(name: str, run: Callable[[str], Result]) -> str:
    try:
        return run(name).json()
    except PeerMissing as reason:
        return json.dumps({"name": name, "met": None, "skipped": str(reason)})


def main() -> None:
    benchmarks: dict[str, Callable[[str], Result]] = {}
    for module in MODULES:
        benchmarks |= import_module(f"benchmarks.{module}").BENCHMARKS
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(benchmarks)}; * and ? match")
    asked = parser.parse_args().names or ["*"]
    for pattern in asked:
        if not fnmatch.filter(benchmarks, pattern):
            parser.error(f"no benchmark {pattern}; there are {', '.join(benchmarks)}")
    for name, run in benchmarks.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in asked):
            print(line(name, run), flush=True)


if __name__ == "__main__":
    main()
