"""The plan of a log of 10,000 segments, as Spark makes it in a fresh process.

``python -m benchmarks.planning STORE`` makes one plan, and prints its times in seconds of CPU, and its memory.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.generate import BUILD, INDEX_UNIT, write_index
from benchmarks.measure import Result, rounded
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import encode_entry
from tests.support.processes import peak_memory

SEGMENTS = 10_000
SEGMENT_SIZE = 64 * 1024**2  # each is a partition, if all columns are read
BODY_SIZE = 1024
ROUNDS = 9
GOAL_MB = 200


def generate(root: Path) -> None:
    """Segments of one entry and a blank, which is a hole up to the segment's end."""
    node = root / "dledger-n0"
    (node / "data").mkdir(parents=True)
    (node / "index").mkdir()
    body = random.Random(BODY_SIZE).randbytes(BODY_SIZE)
    for number in range(SEGMENTS):
        base = number * SEGMENT_SIZE
        with open(node / "data" / layout.segment_name(base), "wb") as file:
            file.write(encode_entry(number, 1, base, body))
            file.write(struct.pack(">ii", layout.MAGIC_BLANK, SEGMENT_SIZE - file.tell()))
            file.truncate(SEGMENT_SIZE)
    units = np.zeros(SEGMENTS, dtype=INDEX_UNIT)
    units["magic"], units["size"], units["term"] = layout.MAGIC_NORMAL, layout.ENTRY_HEADER_SIZE + BODY_SIZE, 1
    units["index"] = np.arange(SEGMENTS)
    units["pos"] = units["index"] * SEGMENT_SIZE
    write_index(node / "index", units)
    (node / "checkpoint").write_text(f"committedIndex={SEGMENTS - 1}\nendIndex={SEGMENTS - 1}\n")
    (node / "currterm").write_text("voteLeader=n0\ncurrTerm=1\n")


def plan(path: str) -> dict[str, float]:
    """Open the log and plan a read of all columns, then pickle its partitions, as Spark's planner does."""
    from pyspark.serializers import CPickleSerializer

    from pyspark_dledger.spark.schema import whole_schema
    from pyspark_dledger.spark.source import DLedgerDataSource

    source = DLedgerDataSource({"path": path})
    reader = source.reader(whole_schema(source.read_options))
    start, system = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_stime
    parts = reader.partitions()
    planned, system = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_stime - system
    size = sum(len(CPickleSerializer().dumps(part)) for part in parts)
    return {
        "plan": planned - start,
        "planInSystem": system,
        "pickle": time.process_time() - planned,
        "partitions": len(parts),
        "pickledMB": size / 1e6,
        "peakMB": peak_memory(os.getpid()) / 1e6,  # `ru_maxrss` counts the process that started this one, too
    }


def plan_10000(name: str) -> Result:
    """The median of fresh processes: CPU of opening and planning, without imports."""
    store = BUILD / "planning-v1"
    if not store.exists():
        partial = store.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        generate(partial)
        partial.rename(store)
    command = [sys.executable, "-m", "benchmarks.planning", str(store)]
    found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(ROUNDS)]
    medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
    seconds = medians.pop("plan")
    return Result(
        name,
        seconds,
        "s",
        goal=f"peakMB < {GOAL_MB}",
        met=medians["peakMB"] < GOAL_MB,
        detail={key: rounded(value) for key, value in medians.items()},
    )


BENCHMARKS: dict[str, Callable[[str], Result]] = {"plan-10000": plan_10000}

if __name__ == "__main__":
    print(json.dumps(plan(sys.argv[1])))
