"""The data source rocketmq in a Spark session: Spark finds it, plans it, and runs its streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

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
    assert [server.committed["Orders", queue] for queue in range(4)] == [500, 600, 500, 500]
