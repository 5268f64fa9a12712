"""Tail a log with Spark: print what is committed, micro-batch by micro-batch, and go on where an earlier run stopped.

``python examples/tail_log.py PATH CHECKPOINT [STARTING_OFFSETS]``: a store on disk. Without a path a store that
RocketMQ 5.3.3 wrote is unpacked and read to its end. Otherwise Ctrl-C stops it.
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
    """Print the first rows of a micro-batch, and how many there are."""
    batch.persist()
    print(f"micro-batch {number}: {batch.count()} rows")
    batch.show(3)
    batch.unpersist()


def tail(spark: SparkSession, path: str, checkpoint: str, start: str, to_the_end: bool) -> StreamingQuery:
    """Start a query over the log at `path`; `to_the_end` stops it where the log ends now."""
    reader = spark.readStream.format("dledger").schema(COLUMNS).option("startingOffsets", start)
    rows = reader.option("maxOffsetsPerTrigger", "500").load(path)
    writer = rows.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint)
    # Java writes its checkpoint every 3 s, a broker its ConsumeQueues every few milliseconds.
    return (writer.trigger(availableNow=True) if to_the_end else writer.trigger(processingTime="1 second")).start()


def main(arguments: list[str]) -> None:
    """Tail the store that was asked for, or the bundled one."""
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
