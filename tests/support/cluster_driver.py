"""A driver program of the tests on a cluster: it does what the lines of its standard input say, one after the other.

A line is a JSON object: ``job`` is one of the functions below, the other fields are its arguments. The answer is a
line, too, with ``error`` where it failed. Tasks of a job pass a gate (`gated`), at which the tests hold them.
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
    """Tail a log up to where it ends now, and write its rows as Parquet."""
    frame = spark.readStream.format("dledger").options(**options).schema(COLUMNS).load()
    query = gated(frame, gate, COLUMNS).writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start(rows).awaitTermination()


def write(spark: SparkSession, gate: str, count: int, partitions: int, options: dict[str, str], size: int = 1) -> None:
    """Write so many rows, whose bodies are the numbers from 0 on, with spaces in front to at least `size` bytes."""
    body = f"lpad(id, greatest({size}, length(id)), ' ') as body"
    frame = spark.range(0, count, numPartitions=partitions).selectExpr(body)
    gated(frame, gate, "body string").write.format("dledger").mode("append").options(**options).save()


def export(spark: SparkSession, path: str, target: str, form: str, options: dict[str, str]) -> None:
    """Export a store to a folder that all see."""
    dl.export(path, target, form, spark=spark, **options)


def gated(frame: DataFrame, gate: str, schema: str) -> DataFrame:
    """The same rows. In the folder `gate` each task says that it began, waits for ``go``, and says that it ended.

    While there is ``hold``, it waits behind its third batch, too: of the first then nothing is left in a buffer.
    """
    folder = Path(gate)

    def pass_gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (folder / f"begun-{context.partitionId()}").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
        for number, batch in enumerate(batches):
            yield batch
            while number >= 2 and (folder / "hold").exists():
                time.sleep(0.02)
        (folder / f"ended-{context.partitionId()}").touch()

    return frame.mapInArrow(pass_gate, schema)


JOBS: dict[str, Callable[..., None]] = {"read": read, "tail": tail, "write": write, "export": export}


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    say({"application": spark.sparkContext.applicationId})
    for line in sys.stdin:
        given: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            JOBS[given.pop("job")](spark, **given)
        except Exception as error:  # noqa: BLE001 - the test is told whatever it is
            answer["error"] = f"{type(error).__name__}: {error}"
        say(answer)
    spark.stop()


if __name__ == "__main__":
    main()
