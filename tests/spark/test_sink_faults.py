"""Workers, the sink process and the driver are killed at every point of a micro-batch: each message is there once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.faulty_sink import POINTS, VICTIMS
from tests.support.spark_cluster import python_path

ROWS = 1000
# `make sink-faults` runs the long form: every process at every point.
LONG = os.environ.get("DLEDGER_SINK_FAULTS")
ALL = [f"{point}-{victim}" for point in POINTS for victim in VICTIMS]
SHORT = ["middle-driver", "end-sink"]
FILES = 6 if LONG else 4
_MAX_DRIVERS = 20


def write_source(folder: Path) -> list[str]:
    """Write files of numbered lines; every tenth line is the same in all."""
    folder.mkdir()
    lines: list[str] = []
    for number in range(FILES):
        own = [f"same {row}" if row % 10 == 0 else f"{number} {row}" for row in range(ROWS)]
        (folder / f"{number}.txt").write_text("\n".join(own) + "\n")
        lines += own
    return lines


def run_driver(folder: Path) -> int:
    """Return the exit code of one driver, which may be killed."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.faulty_sink", str(folder)],
        cwd=folder,
        env=environment,
        stderr=(folder / "driver.log").open("a"),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return run.returncode


@pytest.mark.slow
def test_each_message_is_there_once_after_kills(spark: SparkSession, tmp_path: Path) -> None:
    faults = ALL if LONG else SHORT
    lines = write_source(tmp_path / "source")
    (tmp_path / "faults").mkdir()
    for fault in faults:
        (tmp_path / "faults" / fault).touch()
    drivers = 0
    while (drivers := drivers + 1) < _MAX_DRIVERS and run_driver(tmp_path) != 0:
        pass
    assert list((tmp_path / "faults").iterdir()) == []
    assert drivers > sum(fault.endswith("driver") for fault in faults)
    log = spark.read.format("dledger").schema("kind string, problem string, queueId int, queueOffset long, body binary")
    rows = log.load(str(tmp_path / "log")).collect()
    assert {(row.kind, row.problem) for row in rows} == {("message", None)}
    assert Counter(bytes(row.body).decode() for row in rows) == Counter(lines)
    offsets: dict[int, list[int]] = {}
    for row in rows:
        offsets.setdefault(row.queueId, []).append(row.queueOffset)
    assert all(found == list(range(len(found))) for found in offsets.values())
