"""Tail a log with Spark: print what is committed, micro-batch by micro-batch, and go on where an earlier run stopped.

``python examples/tail_log.py PATH CHECKPOINT [STARTING_OFFSETS]``: a store on disk. Without a path a store that
RocketMQ 5.3.3 wrote is unpacked and read to its end. Otherwise Ctrl-C stops it.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

HERE = Path(__file__).resolve().parent
BUNDLED = HERE.parent / "tests" / "goldens" / "mq-53-upgrade.tar.gz"
COLUMNS = "index long, pos long, topic string, queueId int, queueOffset long, tags string"


def start_spark() -> SparkSession:
    """Start a local session that prints errors only."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))
    builder = SparkSession.builder.master("local[2]").appName("tail_log").config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


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


def main() -> None:
    """Tail the store that was asked for, or the bundled one."""
    spark = start_spark()
    if len(sys.argv) > 2:
        start = sys.argv[3] if len(sys.argv) > 3 else "latest"
        query = tail(spark, sys.argv[1], sys.argv[2], start, to_the_end=False)
        with suppress(KeyboardInterrupt):
            query.awaitTermination()
        query.stop()
        return
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(BUNDLED) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(folder)
        query = tail(spark, f"{folder}/mq-53-upgrade", f"{folder}/checkpoint", "earliest", to_the_end=True)
        query.awaitTermination()


if __name__ == "__main__":
    main()
