"""Restarts of a stream with other resources: sources, cores before and after, faults. Each message is there once.

A repeated micro-batch whose equal rows are in other partitions may be refused. Then it succeeds with the earlier
resources. Drivers run many cells, and cells that differ only in the resources after the fault share what it left.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_dledger.log import open_log
from tests.support import spark_archive
from tests.support.faulty_sink import FAILED, KILLED, REFUSED, ROWS, STATE, WRITTEN, Query, Settings
from tests.support.spark_cluster import SHORT_LIVED, kill_tree, python_path

ONCE = "once"
_MAX_RUNS = 8
# Seconds until a query that does not end is a violation, and its driver is killed.
_MAX_SECONDS = 600.0
_CLUSTER = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.speculation": "true"}
RESOURCES: dict[str, Settings] = {
    "4 cores": Settings(master="local[4,4]"),
    "1 core": Settings(master="local[1,4]"),
    "small splits": Settings(conf={"spark.sql.files.maxPartitionBytes": "40000"}),
    "no AQE": Settings(conf={"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "3"}),
    "executors": Settings(master="local-cluster[2,1,512]", conf=_CLUSTER),
}
# After these resources come those.
CHANGES = {
    "4 cores": ("1 core", "small splits", "no AQE"),
    "1 core": ("4 cores", "executors"),
    "executors": ("1 core",),
}
FAULTS = ("begin-all", "middle-all", "end-all", "commit-all", "committed-all", "middle-sink")
# A lost executor alone does not restart the query; its driver is killed later.
LOST_EXECUTOR = "middle-driver commit-all"
SOURCES = ("text", "parquet", "rate", "fixed")
KINDS = ("distinct", "equal", "idColumns", "shuffled")


class Beginning(NamedTuple):
    """What happens until the fault: a source, resources, a fault, and a kind of rows or options."""

    source: str
    before: str
    fault: str
    kind: str

    @property
    def query(self) -> Query:
        options = {"idColumns": "keys"} if self.kind == "idColumns" else {}
        return Query(self.source, options, is_shuffled=self.kind == "shuffled", max_runs=1)


class Cell(NamedTuple):
    """A beginning, and the resources after its fault."""

    beginning: Beginning
    after: str

    def __str__(self) -> str:
        source, before, fault, kind = self.beginning
        return f"{source}, {before} then {self.after}, {fault}, {kind}"


def cells() -> Iterator[Cell]:
    """Yield all cells, those of a beginning one after the other. Only files have equal rows."""
    for source, before, kind in itertools.product(SOURCES, CHANGES, KINDS):
        if kind != "equal" or source in ("text", "parquet"):
            for fault in (*FAULTS, *([LOST_EXECUTOR] if before == "executors" else [])):
                beginning = Beginning(source, before, fault, kind)
                yield from (Cell(beginning, after) for after in CHANGES[before])


class WrongError(Exception):
    """A message is lost, or there twice, or a query does not end."""


class Matrix:
    """Runs cells in ``folder``, with one driver for each kind of resources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drivers: dict[str, Driver] = {}
        # The beginning of the last cell, and what its fault left.
        self._begun: tuple[Beginning, Path] | None = None

    def run(self, cell: Cell) -> str:
        """Return ``once``, also after a refusal, or what is wrong."""
        try:
            return self._run(cell)
        except WrongError as error:
            return str(error)

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.close()

    def _run(self, cell: Cell) -> str:
        beginning = cell.beginning
        killed = self._killed(beginning)
        folder = killed.with_name(f"{killed.name} then {cell.after}".replace(" ", "-"))
        for name in STATE:
            if (killed / name).exists():
                shutil.copytree(killed / name, folder / name)
        (folder / "source").symlink_to(killed / "source")
        lines, resources, refusals = Counter(rows(beginning)), cell.after, 0
        for _ in range(_MAX_RUNS):
            outcome = self._driver(resources).run(folder, beginning.query)
            check_none_twice(folder / "log", lines)
            if outcome == WRITTEN:
                break
            refusals += outcome == REFUSED
            resources = beginning.before if outcome == REFUSED else cell.after
        else:
            raise WrongError(f"not written by {_MAX_RUNS} runs")
        if refusals and beginning.kind != "equal":
            raise WrongError("refused")
        if missing := (lines - bodies(folder / "log")).total():
            raise WrongError(f"{missing} messages are missing")
        shutil.rmtree(folder)
        return f"{ONCE}, after it was refused" if refusals else ONCE

    def _killed(self, beginning: Beginning) -> Path:
        """Return the folder with what the fault of a beginning left."""
        if self._begun is None or self._begun[0] != beginning:
            if self._begun is not None:
                shutil.rmtree(self._begun[1])
            self._begun = None
            self._begun = beginning, self._begin(beginning)
        return self._begun[1]

    def _begin(self, beginning: Beginning) -> Path:
        """Run a query until its fault, and return a folder with what that left."""
        folder = self._folder / "-".join(beginning).replace(" ", "-")
        # Left by a cell whose fault did not happen.
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "faults").mkdir(parents=True)
        write_source(folder / "source", beginning)
        for fault in beginning.fault.split():
            (folder / "faults" / fault).touch()
        outcome = self._driver(beginning.before).run(folder, beginning.query)
        is_kept = outcome == KILLED
        if outcome != (KILLED if beginning.fault.endswith("-all") else FAILED) or any((folder / "faults").iterdir()):
            raise WrongError(f"the fault did not happen: {outcome}")
        for name in STATE if is_kept else ():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / "killed" / name).rename(folder / name)
        check_none_twice(folder / "log", Counter(rows(beginning)))
        return folder

    def _driver(self, resources: str) -> Driver:
        if resources not in self._drivers or not self._drivers[resources].is_alive:
            self._drivers[resources] = Driver(self._folder, resources)
        return self._drivers[resources]


class Driver:
    """A process that runs queries."""

    def __init__(self, folder: Path, resources: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        variables = {**os.environ, **SHORT_LIVED, **spark_archive.environment()}
        variables |= {"PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}
        settings = json.dumps(RESOURCES[resources]._asdict())
        self._log = folder / f"{resources.replace(' ', '-')}.log"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.faulty_sink", "--serve", settings],
                cwd=folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, folder: Path, query: Query) -> str:
        """Return how the query ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(_MAX_SECONDS, os.kill, (self._process.pid, 9))
        limit.start()
        try:
            self._process.stdin.write(json.dumps([str(folder), query._asdict()]) + "\n")
            self._process.stdin.flush()
            outcome = self._process.stdout.readline().strip()
        finally:
            limit.cancel()
        if not outcome:
            self.close()
            raise WrongError(f"the driver ended, or did not respond, see {self._log.name}")
        return outcome

    def close(self) -> None:
        kill_tree(self._process)


def rows(beginning: Beginning) -> list[str]:
    """Return the bodies of a source. With ``equal`` every tenth is the same."""
    if beginning.source in ("rate", "fixed"):
        return [str(number) for number in range(ROWS)]
    is_same = beginning.kind == "equal"
    return [f"{0 if is_same and number % 10 == 0 else number:08d}".ljust(100, "x") for number in range(ROWS)]


def write_source(folder: Path, beginning: Beginning) -> None:
    """Write a file of rows, for a source that reads files."""
    folder.mkdir()
    if beginning.source == "text":
        (folder / "rows.txt").write_text("\n".join(rows(beginning)) + "\n")
    elif beginning.source == "parquet":
        pq.write_table(pa.table({"value": rows(beginning)}), folder / "rows.parquet", row_group_size=200)


def check_none_twice(root: Path, lines: Counter[str]) -> None:
    if surplus := (bodies(root) - lines).total():
        raise WrongError(f"{surplus} messages too many")


def bodies(root: Path) -> Counter[str]:
    if not root.is_dir():
        return Counter()
    batches = open_log(root, committedBound="end").scan(["body"])
    return Counter(body.decode() for batch in batches for body in batch["body"].to_pylist())
