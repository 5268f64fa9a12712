"""``python -m benchmarks.cluster_write_load ADDRESS TOPIC``: sends rows without Spark, a round for each line of input.

``write COUNT SIZE``: rows of bodies and tags in Arrow batches, as a task of the sink sends them.
One JSON object a round: seconds and rows.
"""

from __future__ import annotations

import json
import random
import sys
import time
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pyspark_dledger.spark.cluster.cluster_write_options import parse_cluster_write_options
from pyspark_dledger.spark.cluster.cluster_writers import ClusterBatchWriter

# Rows of an Arrow batch, as Spark makes them by default.
_ROWS = 10_000


class Task:
    """Stands for the context that Spark gives to a task."""

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0


@cache
def rows(count: int, size: int) -> list[pa.RecordBatch]:
    """The same ones for each round."""
    bodies = [random.Random(number).randbytes(size) for number in range(1024)]
    batch = pa.record_batch({
        "body": pa.array([bodies[number % len(bodies)] for number in range(_ROWS)], pa.binary()),
        "tags": pa.array([f"tag{number % 4}" for number in range(_ROWS)]),
    })  # fmt: skip
    return [batch.slice(0, min(_ROWS, count - start)) for start in range(0, count, _ROWS)]


def main() -> None:
    _, address, topic = sys.argv
    TaskContext.get = Task  # type: ignore[method-assign, assignment]
    schema = StructType([StructField("body", BinaryType()), StructField("tags", StringType())])
    print(json.dumps({"started": True}), flush=True)
    for line in sys.stdin:
        _, count, size = line.split()
        batches = rows(int(count), int(size))
        writer = ClusterBatchWriter(parse_cluster_write_options({"nameServer": address, "topic": topic}), schema)
        start = time.perf_counter()
        found = writer.write(iter(batches))
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "rows": found.count}), flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
