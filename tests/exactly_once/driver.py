"""The Spark driver that is killed: one query writes the rows of files as messages, another tails the group's log.

Its argument is a JSON object of settings. It ends when a query ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

INPUT = "topic string, body string, keys string"
ROWS = "index long, queueId int, queueOffset long, body binary"


def write(spark: SparkSession, settings: dict[str, Any]) -> StreamingQuery:
    frame = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", "2").parquet(settings["input"])
    writer = frame.writeStream.format("dledger").options(group=settings["group"], peers=settings["peers"])
    # On a busy machine a member may need longer than the default. One that was killed closes its connections at once.
    writer = writer.option("timeoutMs", "30000")
    return writer.option("checkpointLocation", settings["folder"] + "/write").start()


def tail(spark: SparkSession, settings: dict[str, Any]) -> StreamingQuery:
    reader = spark.readStream.format("dledger").options(group=settings["group"], peers=settings["peers"])
    frame = reader.options(topic=settings["topic"], startingOffsets="earliest").schema(ROWS).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", settings["folder"] + "/tail")
    return writer.start(settings["rows"])


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    write(spark, settings)
    tail(spark, settings)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
