"""The Spark driver that is killed: one query writes the rows of files as messages, another tails the group's log.

Its argument is a JSON object of what it is told; it ends when a query does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

INPUT = "topic string, body string, keys string"
ROWS = "index long, queueId int, queueOffset long, body binary"


def write(spark: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    frame = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", "2").parquet(told["input"])
    writer = frame.writeStream.format("dledger").options(group=told["group"], peers=told["peers"])
    return writer.option("checkpointLocation", told["folder"] + "/write").start()


def tail(spark: SparkSession, told: dict[str, Any]) -> StreamingQuery:
    reader = spark.readStream.format("dledger").options(group=told["group"], peers=told["peers"])
    frame = reader.options(topic=told["topic"], startingOffsets="earliest").schema(ROWS).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", told["folder"] + "/tail")
    return writer.start(told["rows"])


def main() -> None:
    told = json.loads(sys.argv[1])
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    write(spark, told)
    tail(spark, told)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
