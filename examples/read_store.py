"""Read a RocketMQ store with Spark: some rows, counts, and where the old CommitLog ends.

``python examples/read_store.py [PATH]``: without a path it reads a store that RocketMQ 5.3.3 wrote. The broker was
switched from a plain CommitLog to DLedger.
"""

from __future__ import annotations

import sys

from bundled import start_spark, unpacked
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def show_rows(log: DataFrame) -> None:
    """Print the first rows of the old CommitLog and of DLedger."""
    columns = ["source", "index", "term", "pos", "topic", "queueId", "queueOffset", "tags", "storeTimestamp"]
    print("\nThe first rows of the old CommitLog, and of DLedger:\n")
    old = log.where("source = 'commitlog'").orderBy("pos").limit(3)
    new = log.where("source = 'dledger'").orderBy("pos").limit(5)
    old.union(new).select(*columns, F.length("body").alias("body bytes")).show(truncate=32)


def show_topics(log: DataFrame) -> None:
    """Print the number of rows by topic."""
    print("Rows by topic (null: entries that are not messages):\n")
    topics = log.groupBy("topic").agg(F.count("*").alias("rows"), F.countDistinct("queueId").alias("queues"))
    topics.orderBy(F.desc("rows"), "topic").show(50, truncate=40)


def show_terms(log: DataFrame) -> None:
    """Print counts by term, and where the old CommitLog ends and DLedger begins."""
    print("Rows by term (null: the old CommitLog, which has no terms):\n")
    counts = (F.count("*").alias("rows"), F.count_if("committed").alias("committed"))
    indexes = (F.min("index").alias("firstIndex"), F.max("index").alias("lastIndex"))
    extent = (F.min("pos").alias("from"), F.max(F.col("pos") + F.col("size")).alias("to"))
    terms = log.groupBy("source", "term").agg(*counts, *indexes, *extent, F.max("segment").alias("segment"))
    # Used twice.
    terms = terms.orderBy("from").cache()
    terms.drop("segment").show()
    rows = terms.collect()
    old = [row for row in rows if row.source == "commitlog"]
    new = [row for row in rows if row.source == "dledger"]
    if not old:
        print("There is no old CommitLog here.")
        return
    print(f"The old CommitLog ends at {old[-1].to}, in file {old[-1].segment}.")
    if new:
        print(f"DLedger begins at {new[0]['from']}.")


def show(path: str) -> None:
    """Print an overview of the store at `path`."""
    spark = start_spark("read_store")
    log = spark.read.format("dledger").load(path)
    show_rows(log)
    show_topics(log)
    show_terms(log)
    spark.stop()


def main(arguments: list[str]) -> None:
    """Read the store at the given path, or the bundled one."""
    if arguments:
        show(arguments[0])
        return
    with unpacked("mq-53-upgrade") as path:
        show(path)


if __name__ == "__main__":
    main(sys.argv[1:])
