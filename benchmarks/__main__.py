"""``python -m benchmarks [NAME...]``: one line of JSON each; all without names. A missed goal is not an error.

A benchmark that fails prints a line with its error, and the others run. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    "cluster_reads",
    "cluster_writes",
    "export",
    "cold",
    "engines",
    "salvage",
    "migration",
)
MAX_SECONDS = 900
"""The longest benchmark takes a few minutes. One that hangs must not keep the others from running."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the main thread when the time is over."""

    def end(*_: object) -> None:
        raise TimeoutError(f"the benchmark has not ended after {seconds} s")

    previous = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def line(name: str, run: Callable[[str], Result], seconds: int = MAX_SECONDS) -> tuple[str, bool]:
    """The line of a benchmark, and whether the benchmark ran: a failure is a line, too."""
    try:
        with time_limit(seconds):
            return run(name).json(), True
    except PeerMissing as reason:
        return json.dumps({"name": name, "met": None, "skipped": str(reason)}), True
    except Exception as error:  # noqa: BLE001 - after any error, the other benchmarks run
        traceback.print_exc()
        return json.dumps({"name": name, "met": None, "error": f"{type(error).__name__}: {error}"}), False


def main() -> int:
    benchmarks: dict[str, Callable[[str], Result]] = {}
    for module in MODULES:
        benchmarks |= import_module(f"benchmarks.{module}").BENCHMARKS
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(benchmarks)}; * and ? match")
    asked = parser.parse_args().names or ["*"]
    for pattern in asked:
        if not fnmatch.filter(benchmarks, pattern):
            parser.error(f"no benchmark {pattern}; there are {', '.join(benchmarks)}")
    have_all_run = True
    for name, run in benchmarks.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in asked):
            text, has_run = line(name, run)
            print(text, flush=True)
            have_all_run = have_all_run and has_run
    return 0 if have_all_run else 1


if __name__ == "__main__":
    sys.exit(main())
