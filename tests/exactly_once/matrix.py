"""Restarts of a stream with other resources: sources, cores before and after, faults. Each message is there once.

A repeated micro-batch whose equal rows are in other partitions may be refused. Then it succeeds with the earlier
resources.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_dledger.log import open_log
from tests.support.faulty_sink import REFUSED, ROWS, Settings
from tests.support.spark_cluster import SHORT_LIVED, python_path

_MAX_DRIVERS = 8
_CLUSTER = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.speculation": "true"}
RESOURCES: dict[str, Settings] = {
    "4 cores": Settings(master="local[4,4]"),
    "1 core": Settings(master="local[1,4]"),
    "small splits": Settings(conf={"spark.sql.files.maxPartitionBytes": "40000"}),
    "no AQE": Settings(conf={"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "3"}),
    "executors": Settings(master="local-cluster[2,1,512]", conf=_CLUSTER),
}
CHANGES = (
    *(("4 cores", "1 core"), ("1 core", "4 cores"), ("4 cores", "small splits"), ("4 cores", "no AQE")),
    *(("executors", "1 core"), ("1 core", "executors")),
)
FAULTS = ("begin-driver", "middle-driver", "end-driver", "commit-driver", "committed-driver", "middle-sink")
SOURCES = ("text", "parquet", "rate", "fixed")
KINDS = ("distinct", "equal", "idColumns", "shuffled")


class Cell(NamedTuple):
    """A case: a source, resources before and after, a fault, and a kind of rows or options."""

    source: str
    before: str
    after: str
    fault: str
    kind: str

    def __str__(self) -> str:
        return f"{self.source}, {self.before} then {self.after}, {self.fault}, {self.kind}"

    def settings(self, resources: str) -> str:
        found = RESOURCES[resources]._replace(source=self.source, is_shuffled=self.kind == "shuffled")
        if self.kind == "idColumns":
            found = found._replace(options={"idColumns": "keys"})
        return json.dumps(found._asdict())


def cells() -> Iterator[Cell]:
    """Yield all cells. Only files have equal rows."""
    for source, change, fault, kind in itertools.product(SOURCES, CHANGES, FAULTS, KINDS):
        if kind != "equal" or source in ("text", "parquet"):
            yield Cell(source, *change, fault, kind)


def run_cell(cell: Cell, folder: Path) -> str:
    """Return what is wrong, or an empty text."""
    (folder / "faults").mkdir(parents=True)
    (folder / "faults" / cell.fault).touch()
    lines = write_source(folder / "source", cell)
    resources, refusals = cell.before, 0
    for _ in range(_MAX_DRIVERS):
        code = run_driver(folder, cell.settings(resources))
        found = bodies(folder / "log")
        if found > lines or any(found[line] > lines[line] for line in found):
            return f"{(found - lines).total()} messages too many"
        if code == 0:
            break
        refusals += code == REFUSED
        resources = cell.before if code == REFUSED else cell.after
    else:
        return f"not written by {_MAX_DRIVERS} drivers"
    if refusals and cell.kind != "equal":
        return "refused"
    missing = (lines - found).total()
    return f"{missing} messages are missing" if missing else ""


def write_source(folder: Path, cell: Cell) -> Counter[str]:
    """Write a file of rows. With ``equal`` every tenth row is the same."""
    folder.mkdir()
    if cell.source in ("rate", "fixed"):
        return Counter(str(number) for number in range(ROWS))
    is_same = cell.kind == "equal"
    lines = [f"{0 if is_same and number % 10 == 0 else number:08d}".ljust(100, "x") for number in range(ROWS)]
    if cell.source == "text":
        (folder / "rows.txt").write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.table({"value": lines}), folder / "rows.parquet", row_group_size=200)
    return Counter(lines)


def run_driver(folder: Path, settings: str) -> int:
    """Return the exit code of a driver, which may be killed."""
    arguments = [str(folder / name) for name in ("source", "log", "checkpoint", "faults")]
    environment = {**os.environ, **SHORT_LIVED, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}
    with (folder / "driver.log").open("a") as log:
        command = [sys.executable, "-m", "tests.support.faulty_sink", *arguments, settings]
        return subprocess.run(command, cwd=folder, env=environment, stderr=log, stdout=log, check=False).returncode


def bodies(root: Path) -> Counter[str]:
    if not root.is_dir():
        return Counter()
    rows = (row for batch in open_log(root, committedBound="end").scan(["body"]) for row in batch.to_pylist())
    return Counter(row["body"].decode() for row in rows)
