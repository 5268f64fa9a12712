"""The Spark driver that is killed: a query writes the messages of a cluster's topic as Parquet."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    reader = spark.readStream.format("rocketmq").options(nameServer=settings["nameServer"], topic=settings["topic"])
    reader = reader.options(startingOffsets="earliest", failOnDataLoss=settings["failOnDataLoss"])
    frame = reader.load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", settings["folder"] + "/checkpoint")
    writer.start(settings["rows"]).awaitTermination()


if __name__ == "__main__":
    main()
