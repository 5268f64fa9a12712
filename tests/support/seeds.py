"""Runs a check for many seeds from the command line: each kit has the same options and the same report.

A check gets a seed, an empty folder and the options. It raises an exception, or returns what is wrong.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import shlex
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

PROGRESS_INTERVAL_S = 10
MAX_AGAIN = 10
MAX_WIDTH = 300


class Problem(NamedTuple):
    """What is wrong. Problems of one kind are counted together."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


@dataclass
class Result:
    """The problems of one seed, counts that are added up, and lines that are printed if only this seed is run."""

    problems: list[Problem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


Check = Callable[[int, Path, argparse.Namespace], Result]


@dataclass(frozen=True)
class Kit:
    """A check by seed, and how it is run. `absent` names what should have happened in so many seeds, and did not."""

    module: str
    check: Check
    description: str
    count: int
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None
    absent: Callable[[Counter[str], int, argparse.Namespace], list[str]] = lambda *_: []
    processes: int = 2
    seed: int = 0
    is_in_memory: bool = False
    """Its files are in memory, where the system has a folder for that."""

    def main(self, arguments: list[str] | None = None) -> int:
        """Run the seeds of the command line. Returns 1 if one failed."""
        given = self._parser().parse_args(arguments)
        with temporary_folder(self.is_in_memory) as temporary:
            run = partial(_run_seed, self.check, Path(given.keep) if given.keep else temporary, given)
            if given.only is not None:
                return _show(run(given.only))
            return _run_all(self, run, given)

    def again(self, seed: int, given: argparse.Namespace) -> str:
        """The command that repeats a seed."""
        command = ["python", "-m", self.module, "--only", str(seed)]
        shared = set(vars(_shared_options().parse_args([])))
        for action in self._parser()._actions:
            value = getattr(given, action.dest, action.default)
            if action.dest in shared or value == action.default:
                continue
            for each in value if isinstance(value, list) else [value]:
                command += [action.option_strings[-1]] if each is True else [action.option_strings[-1], str(each)]
        return shlex.join(command)

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}", description=self.description, parents=[_shared_options()]
        )
        parser.set_defaults(count=self.count, processes=self.processes, seed=self.seed)
        self.add_options(parser)
        return parser


@contextmanager
def temporary_folder(is_in_memory: bool) -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="seeds-", dir=memory if is_in_memory and memory.is_dir() else None) as path:
        yield Path(path)


def _shared_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int, help="the first seed")
    parser.add_argument("--count", type=int, help="how many seeds")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    parser.add_argument("--only", type=int, metavar="SEED", help="run only this seed, and print all about it")
    parser.add_argument("--keep", metavar="FOLDER", help="a new folder, which keeps the files of seeds that fail")
    parser.add_argument("--processes", type=int, help="how many seeds are run at once")
    parser.add_argument("--shown", type=int, default=3, help="examples of each kind of problem to print")
    return parser


def _run_seed(check: Check, root: Path, given: argparse.Namespace, seed: int) -> tuple[int, Result]:
    """Check one seed. Its files are deleted unless they are to be kept."""
    folder = root / str(seed) if given.only is None else root
    folder.mkdir(parents=True, exist_ok=True)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # a node or store that meets a fault is no news here
    try:
        result = check(seed, folder, given)
    except Exception as error:  # noqa: BLE001 - each seed has a result
        result = Result([Problem(type(error).__name__, str(error))], lines=traceback.format_exc().splitlines())
    finally:
        logging.disable(before)
    if given.only is None and not (given.keep and result.problems):
        shutil.rmtree(folder, ignore_errors=True)
    return seed, result


def _show(found: tuple[int, Result]) -> int:
    seed, result = found
    _print([*result.lines, *_table(result.counts), *map(str, result.problems)])
    print(f"seed {seed}: {len(result.problems) or 'no'} problems")
    return 1 if result.problems else 0


class _Report:
    """What the seeds said so far."""

    def __init__(self) -> None:
        self.done = 0
        self.failed: list[int] = []
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)

    def add(self, seed: int, result: Result) -> None:
        """Count a seed, and print the first problem of each kind."""
        self.done += 1
        self.counts.update(result.counts)
        if result.problems:
            self.failed.append(seed)
        for kind, detail in dict(result.problems).items():
            self.examples[kind].append(f"seed {seed}: {detail or kind}"[:MAX_WIDTH])
            if len(self.examples[kind]) == 1:
                print(f"{kind}: {self.examples[kind][-1]}", flush=True)


def _run_all(kit: Kit, run: Callable[[int], tuple[int, Result]], given: argparse.Namespace) -> int:
    """Run the seeds and print the report; Ctrl-C ends it early."""
    report, began = _Report(), time.monotonic()
    is_whole = True
    try:
        for seed, result in _until(given.seconds, _with_progress(_results(run, given), report, given.count)):
            report.add(seed, result)
    except KeyboardInterrupt:
        is_whole = False
    _print(_table(report.counts))
    kinds = sorted(report.examples.items(), key=lambda each: -len(each[1]))
    _print(f"{len(seeds):5} {kind}: {'; '.join(seeds[: given.shown])}" for kind, seeds in kinds)
    print(f"{len(report.failed)} of {report.done} seeds failed, {time.monotonic() - began:.0f} s")
    _print(f"again: {kit.again(seed, given)}" for seed in sorted(report.failed)[:MAX_AGAIN])
    absent = kit.absent(report.counts, report.done, given)
    if absent:
        print(f"expected events never happened: {', '.join(absent)}")
    if report.failed or absent:
        return 1
    return 0 if is_whole else 2


def _with_progress(results: Iterator[tuple[int, Result]], report: _Report, count: int) -> Iterator[tuple[int, Result]]:
    began = shown = time.monotonic()
    for found in results:
        yield found
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            rate = report.done / (shown - began)
            left = (count - report.done) / rate
            print(f"{report.done} of {count} seeds, {rate:.1f}/s, {left:.0f} s left", flush=True)


def _results(run: Callable[[int], tuple[int, Result]], given: argparse.Namespace) -> Iterator[tuple[int, Result]]:
    """The results of all seeds, in any order."""
    seeds = range(given.seed, given.seed + given.count)
    if given.processes == 1 or given.count == 1:
        yield from map(run, seeds)
        return
    # Only this process handles Ctrl-C; it ends the others.
    with multiprocessing.Pool(given.processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(run, seeds, chunksize=max(1, min(8, given.count // 64)))


def _until(seconds: float | None, results: Iterator[tuple[int, Result]]) -> Iterator[tuple[int, Result]]:
    began = time.monotonic()
    for found in results:
        yield found
        if seconds is not None and time.monotonic() - began > seconds:
            return


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _table(counts: Counter[str]) -> Iterator[str]:
    yield from (f"{count:>12,}  {name}" for name, count in sorted(counts.items()))
