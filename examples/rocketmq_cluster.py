"""Write rows to a topic of a running RocketMQ cluster with Spark, and read them back.

``python examples/rocketmq_cluster.py NAMESERVER TOPIC``, for example ``10.0.0.1:9876 Orders``. The topic has to exist.
"""

from __future__ import annotations

import sys

from bundled import start_spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def orders(spark: SparkSession) -> DataFrame:
    """A thousand rows. Their keys choose the queue."""
    number = F.col("id").cast("string")
    return spark.range(1000).select(F.concat(F.lit("order "), number).alias("body"), number.alias("keys"))


def main(arguments: list[str]) -> None:
    """Use the given cluster."""
    if len(arguments) != 2:
        sys.exit("usage: python examples/rocketmq_cluster.py NAMESERVER TOPIC")
    spark = start_spark("rocketmq_cluster")
    cluster = {"nameServer": arguments[0], "topic": arguments[1]}
    orders(spark).write.format("rocketmq").mode("append").options(**cluster).save()
    messages = spark.read.format("rocketmq").options(**cluster).load()
    print("\nMessages by queue; a UNIQ_KEY that is there twice is a duplicate:\n")
    duplicates = F.count("uniqKey") - F.countDistinct("uniqKey")
    counts = messages.groupBy("broker", "queueId").agg(F.count("*").alias("messages"), duplicates.alias("duplicates"))
    counts.orderBy("broker", "queueId").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
