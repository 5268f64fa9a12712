"""The data source rocketmq in a Spark session: Spark finds it, plans it, and runs its streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support import cluster_reads
from tests.support.fake_cluster import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as found:
        for queue in range(4):
            found.add("Orders", queue, 500, properties=[("KEYS", f"k{queue}")])
        yield found


def test_batch(spark: SparkSession, server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    reader = spark.read.format("rocketmq").option("nameServer", server.address).option("topic", "Orders")
    orders = reader.option("accessKey", "user").option("secretKey", "hidden-secret").load()
    assert orders.columns[:4] == ["broker", "problem", "topic", "queueId"]
    assert orders.count() == 2000
    counted = orders.where("keys = 'k2'").groupBy("broker", "queueId").count().collect()
    assert [row.asDict() for row in counted] == [{"broker": "b", "queueId": 2, "count": 500}]
    chosen = reader.schema("body binary, queueOffset long").load().where("queueOffset = 7").collect()
    assert sorted(bytes(row.body).split()[1] for row in chosen) == [b"0", b"1", b"2", b"3"]
    orders.explain(True)
    assert "hidden" not in capfd.readouterr().out


@pytest.mark.smoke
def test_stream_continues_after_a_restart(spark: SparkSession, server: FakeServer, tmp_path: Path) -> None:
    def run() -> None:
        reader = spark.readStream.format("rocketmq").option("nameServer", server.address).option("topic", "Orders")
        reader = reader.option("startingOffsets", "earliest").option("consumerGroup", "g")
        rows: DataFrame = reader.schema("queueId int, queueOffset long").load()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        query.awaitTermination()

    run()
    server.add("Orders", 1, 100)
    server.add("Orders", 4, 10)
    run()
    found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert len(found) == len(set(found)) == 2110
    # Spark commits a micro-batch when it plans the next one.
    assert all(server.committed["Orders", queue] >= 500 for queue in range(4))


def test_rows_of_batches_and_streams_are_written_and_micro_batches_have_their_keys(
    spark: SparkSession, server: FakeServer, tmp_path: Path
) -> None:
    access = {"nameServer": server.address, "accessKey": "user", "secretKey": "hidden-secret"}
    rows = spark.range(0, 1000, numPartitions=3).selectExpr(
        "string(id) as body", "string(id) as keys", "'New' as topic"
    )
    writer = rows.write.format("rocketmq").mode("append").options(**access)
    with pytest.raises(Exception, match=r"partition [0-2]: .*expected topic New to write to"):
        writer.save()
    server.queues["New", 3] = []
    writer.save()
    found = spark.read.format("rocketmq").options(topic="New", **access).load()
    assert {int(row.body) for row in found.collect()} == set(range(1000))
    assert found.select("uniqKey").distinct().count() == 1000
    server.queues["Copy", 3] = []
    stream = spark.readStream.format("rocketmq").options(topic="New", startingOffsets="earliest", **access)
    copied = stream.schema("body binary, keys string").load().writeStream.format("rocketmq")
    copied = copied.options(topic="Copy", **access).option("checkpointLocation", str(tmp_path))
    copied.trigger(availableNow=True).start().awaitTermination()
    assert sorted(_keys(server, "Copy")) == sorted(_keys(server, "New"))
    with pytest.raises(Exception, match="mode overwrite is not possible"):
        rows.write.format("rocketmq").mode("overwrite").options(**access).save()


def _keys(server: FakeServer, topic: str) -> list[str]:
    return [row["keys"] for row in cluster_reads.rows(cluster_reads.batch_reader(server.address, topic=topic))]
