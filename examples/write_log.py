"""Write a log with Spark, as a batch and as a stream, and read it back.

``python examples/write_log.py [PATH]``: without a path it writes to a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bundled import start_spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def orders(rows: DataFrame) -> DataFrame:
    """Make a message from each number in the column ``id``."""
    return rows.select(
        F.lit("Orders").alias("topic"),
        F.col("id").cast("string").alias("keys"),
        F.when(F.col("id") % 2 == 0, "paid").alias("tags"),
        F.create_map(F.lit("customer"), (F.col("id") % 7).cast("string")).alias("properties"),
        F.concat(F.lit("order "), F.col("id")).alias("body"),
    )


def write_batch(spark: SparkSession, path: str) -> None:
    """Write a thousand messages in one job."""
    orders(spark.range(1000)).write.format("dledger").mode("append").save(path)


def write_stream(spark: SparkSession, path: str, folder: Path) -> None:
    """Write the rows of three files, one micro-batch for each file."""
    source = str(folder / "source")
    spark.range(1000, 1300, numPartitions=3).write.parquet(source)
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(source)
    stream = orders(rows).writeStream.format("dledger").option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start(path).awaitTermination()


def show(spark: SparkSession, path: str) -> None:
    """Print the first messages, and counts by queue."""
    log = spark.read.format("dledger").load(path)
    print("\nThe first messages:\n")
    log.select("index", "topic", "queueId", "queueOffset", "tags", "keys").orderBy("index").show(5)
    print("Messages by queue:\n")
    log.groupBy("topic", "queueId", "committed").count().orderBy("queueId").show()


def main(arguments: list[str]) -> None:
    """Write to the given path, or to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dledger-") as folder:
        path = arguments[0] if arguments else str(Path(folder) / "log")
        spark = start_spark("write_log")
        write_batch(spark, path)
        write_stream(spark, path, Path(folder))
        show(spark, path)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
