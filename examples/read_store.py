"""Read a RocketMQ store with Spark: some rows, counts, and where the old CommitLog ends.

``python examples/read_store.py [PATH]``: without a path a store that RocketMQ 5.3.3 wrote is unpacked and read. It
began as a plain CommitLog and was then switched to DLedger.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

HERE = Path(__file__).resolve().parent
BUNDLED = HERE.parent / "tests" / "goldens" / "mq-53-upgrade.tar.gz"


def start_spark() -> SparkSession:
    """Start a local session that prints errors only."""
    # Spark's workers must be a Python that has this package: the one that runs this file.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))
    return (
        SparkSession.builder.master("local[2]")
        .appName("read_store")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def show_rows(log: DataFrame) -> None:
    """Print the first rows of the old CommitLog and of DLedger."""
    columns = ["source", "index", "term", "pos", "topic", "queueId", "queueOffset", "tags", "storeTimestamp"]
    print("\nThe first rows of the old CommitLog, and of DLedger:\n")
    old = log.where("source = 'commitlog'").orderBy("pos").limit(3)
    new = log.where("source = 'dledger'").orderBy("pos").limit(5)
    old.union(new).select(*columns, F.length("body").alias("body bytes")).show(truncate=32)


def show_counts(log: DataFrame) -> None:
    """Print how many rows there are by topic, and by term."""
    print("Rows by topic (null: an entry that is no message):\n")
    rows = F.count("*").alias("rows")
    topics = log.groupBy("topic").agg(rows, F.countDistinct("queueId").alias("queues"))
    topics.orderBy(F.desc("rows"), "topic").show(50, truncate=40)
    print("Rows by term (null: the old CommitLog, which has none):\n")
    committed = F.count_if("committed").alias("committed")
    indexes = (F.min("index").alias("firstIndex"), F.max("index").alias("lastIndex"))
    extent = (F.min("pos").alias("from"), F.max(F.col("pos") + F.col("size")).alias("to"))
    log.groupBy("source", "term").agg(rows, committed, *indexes, *extent).orderBy("from").show()


def show_division(log: DataFrame) -> None:
    """Print where the old CommitLog ends and DLedger begins."""
    end = F.max(F.col("pos") + F.col("size")).alias("end")
    ends = log.groupBy("source").agg(F.min("pos").alias("start"), end, F.max("segment").alias("segment")).collect()
    old, new = ({row.source: row for row in ends}.get(source) for source in ("commitlog", "dledger"))
    if old is None:
        print("There is no old CommitLog here.")
        return
    print(f"The old CommitLog ends at {old.end}, in file {old.segment}.")
    if new is not None:
        print(f"DLedger begins at {new.start}.")


def main(arguments: list[str]) -> None:
    """Read the store at the given path, or the bundled one."""
    with tempfile.TemporaryDirectory(prefix="dledger-") as folder:
        if arguments:
            path = arguments[0]
        else:
            with tarfile.open(BUNDLED) as archive:
                # The safe filter, which Python 3.10 and 3.11 have only in their later patch versions.
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
                archive.extractall(folder)
            path = str(Path(folder) / "mq-53-upgrade")
        spark = start_spark()
        log = spark.read.format("dledger").load(path)
        show_rows(log)
        show_counts(log)
        show_division(log)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
