"""Tail a log with Spark: print the committed entries, micro-batch by micro-batch, and continue after an earlier run.

``python examples/tail_log.py PATH CHECKPOINT [STARTING_OFFSETS]`` tails a store on disk until Ctrl-C. Without arguments
it reads a store that RocketMQ 5.3.3 wrote to its end.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress

from bundled import start_spark, unpacked
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = "index long, pos long, topic string, queueId int, queueOffset long, tags string"


def show(batch: DataFrame, number: int) -> None:
    """Print the number of rows of a micro-batch, and the first three."""
    batch.persist()
    print(f"micro-batch {number}: {batch.count()} rows")
    batch.show(3)
    batch.unpersist()


def tail(spark: SparkSession, path: str, checkpoint: str, start: str, to_the_end: bool) -> StreamingQuery:
    """Start a query on the log at `path`; with `to_the_end` it stops at the current end of the log."""
    reader = spark.readStream.format("dledger").schema(COLUMNS).option("startingOffsets", start)
    rows = reader.option("maxOffsetsPerTrigger", "500").load(path)
    writer = rows.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint)
    # Java writes its checkpoint every 3 s, a broker its ConsumeQueues every few milliseconds.
    return (writer.trigger(availableNow=True) if to_the_end else writer.trigger(processingTime="1 second")).start()


def main(arguments: list[str]) -> None:
    """Tail the given store, or read the bundled one."""
    if len(arguments) == 1:
        sys.exit("usage: python examples/tail_log.py [PATH CHECKPOINT [STARTING_OFFSETS]]")
    spark = start_spark("tail_log")
    if arguments:
        path, checkpoint, *start = arguments
        query = tail(spark, path, checkpoint, start[0] if start else "latest", to_the_end=False)
        with suppress(KeyboardInterrupt):
            query.awaitTermination()
        query.stop()
        return
    with unpacked("mq-53-upgrade") as path, tempfile.TemporaryDirectory() as checkpoint:
        query = tail(spark, path, checkpoint, "earliest", to_the_end=True)
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
