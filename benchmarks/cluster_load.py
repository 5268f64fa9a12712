"""``python -m benchmarks.cluster_load ADDRESS TOPIC``: reads a topic without Spark, a round for each line of input.

``arrow NUMBER OF``: every OF-th partition from NUMBER on, decoded into Arrow batches with all columns.
``bytes NUMBER OF``: the same messages, not decoded. ``memory``: all of it as one partition.
One JSON object a round: seconds, rows, and with ``memory`` the peak of anonymous memory.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import closing
from typing import Any

from benchmarks.measure import meanwhile
from benchmarks.memory import SAMPLE_SECONDS, anonymous_bytes
from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.pulls import Puller
from pyspark_dledger.cluster.rows import ClusterPartition, read_cluster_partition
from tests.support.cluster_reads import batch_reader


def planned(address: str, topic: str, **options: Any) -> list[ClusterPartition]:
    return [part.value for part in batch_reader(address, topic=topic, **options).partitions()]


def rows_of(part: ClusterPartition, is_decoded: bool) -> int:
    if is_decoded:
        return sum(batch.num_rows for batch in read_cluster_partition(part))
    with Cluster(part.scan.address) as cluster, closing(Puller(cluster, part.scan.pulls)) as puller:
        return sum(pulled.count for pulled in puller.pull(part.ranges))


def peak_while(parts: list[ClusterPartition]) -> tuple[int, int]:
    """Rows of the partitions, and the peak of memory while they are read."""
    peak = 0

    def sample(done: threading.Event) -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, anonymous_bytes())

    with meanwhile(sample):
        found = sum(rows_of(part, True) for part in parts)
    return found, peak


def main() -> None:
    _, address, topic = sys.argv
    print(json.dumps({"started": True}), flush=True)
    for line in sys.stdin:
        how, *numbers = line.split()
        peak = 0
        start = time.perf_counter()
        if how == "memory":
            rows, peak = peak_while(planned(address, topic, minPartitions=1))
        else:
            number, of = map(int, numbers)
            rows = sum(rows_of(part, how == "arrow") for part in planned(address, topic)[number::of])
        print(json.dumps({"seconds": time.perf_counter() - start, "rows": rows, "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
