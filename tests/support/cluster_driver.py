"""A driver program for the tests on a cluster. It runs the jobs on its standard input, one after the other.

A line is a JSON object: ``job`` is one of the functions below, the other fields are its arguments. The response is a
line, too, with ``error`` if the job failed. Tests stop the tasks of a job at a gate (`gated`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import pyspark_dledger as dl

COLUMNS = "index long, body binary"


def read(spark: SparkSession, gate: str, path: str, rows: str, options: dict[str, str]) -> None:
    """Read a store, and write its rows as Parquet."""
    frame = spark.read.format("dledger").options(**options).schema(COLUMNS).load(path)
    gated(frame, gate, COLUMNS).write.parquet(rows)


def tail(spark: SparkSession, gate: str, rows: str, checkpoint: str, options: dict[str, str]) -> None:
    """Tail a log to its current end, and write its rows as Parquet."""
    frame = spark.readStream.format("dledger").options(**options).schema(COLUMNS).load()
    query = gated(frame, gate, COLUMNS).writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start(rows).awaitTermination()


def write(spark: SparkSession, gate: str, count: int, partitions: int, options: dict[str, str], size: int = 1) -> None:
    """Write `count` rows. Their bodies are the numbers from 0, padded with spaces to at least `size` bytes."""
    body = f"lpad(id, greatest({size}, length(id)), ' ') as body"
    frame = spark.range(0, count, numPartitions=partitions).selectExpr(body)
    gated(frame, gate, "body string").write.format("dledger").mode("append").options(**options).save()


def export(spark: SparkSession, path: str, target: str, form: str, options: dict[str, str]) -> None:
    """Export a store to a folder that all executors see."""
    dl.export(path, target, form, spark=spark, **options)


def gated(frame: DataFrame, gate: str, schema: str) -> DataFrame:
    """Return the same rows. In the folder `gate` each task makes ``begun-N``, waits for ``go``, and makes ``ended-N``.

    ``begun-N`` has the file of the package that the task uses.

    While the file ``hold`` exists, a task also waits after its third batch: the first is then in no buffer.
    """
    folder = Path(gate)

    def pass_gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (folder / f"begun-{context.partitionId()}").write_text(dl.__file__)
        while not (folder / "go").exists():
            time.sleep(0.02)
        for number, batch in enumerate(batches):
            yield batch
            while number >= 2 and (folder / "hold").exists():
                time.sleep(0.02)
        (folder / f"ended-{context.partitionId()}").touch()

    return frame.mapInArrow(pass_gate, schema)


JOBS: dict[str, Callable[..., None]] = {"read": read, "tail": tail, "write": write, "export": export}


def respond(response: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(response) + "\n")
    sys.stdout.flush()


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    respond({"application": spark.sparkContext.applicationId})
    for line in sys.stdin:
        given: dict[str, Any] = json.loads(line)
        response: dict[str, Any] = {}
        try:
            JOBS[given.pop("job")](spark, **given)
        except Exception as error:  # noqa: BLE001 - the test reports it
            response["error"] = f"{type(error).__name__}: {error}"
        respond(response)
    spark.stop()


if __name__ == "__main__":
    main()
