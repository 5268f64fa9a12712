"""The memory of one task: a fresh process reads a segment as one partition, like a Spark worker.

Only anonymous memory counts; pages of mapped files belong to the page cache.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.generate import HUGE_1K, MESSAGES_1K, Store, ensure
from benchmarks.measure import Result

SAMPLE_SECONDS = 0.002


def anonymous_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("RssAnon is not in /proc/self/status")
    return int(found[1]) * 1024


def read_segment(path: str) -> dict[str, int]:
    """The peak while all columns of a segment are read as one partition, and the memory before."""
    from pyspark_dledger import open_log
    from pyspark_dledger.format.columns import DEFAULT_NAMES
    from pyspark_dledger.format.spec import Filters
    from pyspark_dledger.log.options import parse_options
    from pyspark_dledger.log.plan import read_partition

    before = peak = anonymous_bytes()
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, anonymous_bytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    size = Path(path).stat().st_size
    options = parse_options({"path": path, "maxPartitionBytes": str(2 * size)})
    partitions = open_log(path).plan(DEFAULT_NAMES, options, Filters())
    rows = sum(batch.num_rows for each in partitions for batch in read_partition(each))
    done.set()
    sampler.join()
    return {"peak": peak, "before": before, "rows": rows, "partitions": len(partitions)}


def memory(name: str, store: Store, keep: bool = True) -> Result:
    command = [sys.executable, "-m", "benchmarks.memory", str(store.segment(0))]
    try:
        ensure(store)
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    finally:
        if not keep:
            shutil.rmtree(store.path, ignore_errors=True)
    detail = {"beforeMB": round(found["before"] / 1e6, 1), "rows": found["rows"], "partitions": found["partitions"]}
    return Result(name, found["peak"] / 1e6, "MB", detail=detail).with_most(400)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "memory-1g": partial(memory, store=MESSAGES_1K),
    "memory-4g": partial(memory, store=HUGE_1K, keep=False),
}

if __name__ == "__main__":
    print(json.dumps(read_segment(sys.argv[1])))
