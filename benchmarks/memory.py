"""The memory of one task: a fresh process that reads a whole segment as one partition, as a Spark worker does.

Counted is anonymous memory; pages of mapped files are the page cache's.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.generate import HUGE_1K, MESSAGES_1K, Store, ensure
from benchmarks.measure import Result

GOAL_MB = 400
SAMPLE_SECONDS = 0.002


def anonymous_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("RssAnon is not in /proc/self/status")
    return int(found[1]) * 1024


def read_segment(path: str) -> dict[str, int]:
    """The peak while all columns of one segment are read as one partition, and what the process had before."""
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
    ensure(store)
    command = [sys.executable, "-m", "benchmarks.memory", str(store.segment(0))]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if not keep:
        with suppress(FileNotFoundError):
            shutil.rmtree(store.path)
    peak = found.pop("peak") / 1e6
    found["before"] = round(found["before"] / 1e6, 1)
    return Result(name, peak, "MB", f"value < {GOAL_MB}", peak < GOAL_MB, detail=found)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "memory-1g": partial(memory, store=MESSAGES_1K),
    "memory-4g": partial(memory, store=HUGE_1K, keep=False),
}

if __name__ == "__main__":
    print(json.dumps(read_segment(sys.argv[1])))
