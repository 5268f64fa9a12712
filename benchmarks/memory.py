"""The memory of one task: a fresh process reads a log, each segment as one partition, like a Spark worker.

Spark keeps a worker for many tasks: the memory must not grow from one partition to the next.
Only anonymous memory counts; pages of mapped files belong to the page cache.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.generate import MESSAGES_1K, ensure
from benchmarks.measure import Result, meanwhile

SAMPLE_SECONDS = 0.002


def anonymous_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("RssAnon is not in /proc/self/status")
    return int(found[1]) * 1024


def read_partitions(path: str, partition_bytes: str = "1g") -> dict[str, int]:
    """The peak while all columns are read, each segment as one partition, and the memory before."""
    from pyspark_dledger import open_log
    from pyspark_dledger.format.columns import DEFAULT_NAMES
    from pyspark_dledger.format.spec import Filters
    from pyspark_dledger.log.options import parse_options
    from pyspark_dledger.log.plan import read_partition

    before = peak = anonymous_bytes()

    def sample(done: threading.Event) -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, anonymous_bytes())

    with meanwhile(sample):
        options = parse_options({"path": path, "maxPartitionBytes": partition_bytes})
        partitions = open_log(path).plan(DEFAULT_NAMES, options, Filters())
        rows = sum(batch.num_rows for each in partitions for batch in read_partition(each))
    return {"peak": peak, "before": before, "rows": rows, "partitions": len(partitions)}


def memory(name: str, path: Path) -> Result:
    ensure(MESSAGES_1K)
    command = [sys.executable, "-m", "benchmarks.memory", str(path)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    detail = {"beforeMB": round(found["before"] / 1e6, 1), "rows": found["rows"], "partitions": found["partitions"]}
    return Result(name, found["peak"] / 1e6, "MB", detail=detail).with_most(400)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "memory-1g": partial(memory, path=MESSAGES_1K.segment(0)),
    "memory-4g": partial(memory, path=MESSAGES_1K.path),
}

if __name__ == "__main__":
    print(json.dumps(read_partitions(*sys.argv[1:])))
