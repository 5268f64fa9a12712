"""A Parquet export is read by Spark, DuckDB, Polars, pandas and pyarrow as it stands, also one without rows."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from pyspark_dledger.rocketmq.export import export
from tests.support.generate import mq_message, raw, write_dledger

DAY = date(2023, 11, 14)
FULL = {("Orders", DAY): 9, ("Pay", DAY): 3}
COUNTS: dict[str, dict[tuple[str | None, date | None], int]] = {
    "nulls": {**FULL, (None, None): 1},
    "full": {**FULL},
    "empty": {},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    payloads = [mq_message("Orders" if number % 4 else "Pay", b"body") for number in range(12)]
    store = write_dledger(folder / "store", [*payloads, raw(b"plain")]).path
    export(store, folder / "nulls", "parquet")
    export(store, folder / "full", "parquet", topic="Orders,Pay")
    export(store, folder / "empty", "parquet", topic="None")
    return folder


@pytest.mark.parametrize("name", COUNTS)
def test_engines_read_the_folder(target: Path, name: str) -> None:
    folder = str(target / name)
    wanted = COUNTS[name]
    files = duckdb.sql(f"select topic, day, count(*) from '{folder}/**/*.parquet' group by all").fetchall()
    assert {(topic, day): rows for topic, day, rows in files} == wanted
    whole = duckdb.sql(f"select count(*) from read_parquet('{folder}')").fetchall()
    assert whole == [(sum(wanted.values()),)]
    frame = pl.scan_parquet(folder).group_by("topic", "day").len().collect()
    assert {(topic, day): rows for topic, day, rows in frame.iter_rows()} == wanted
    assert pl.scan_parquet(folder).collect_schema().names()[:3] == ["kind", "source", "index"]
    assert ds.dataset(folder, partitioning="hive").count_rows() == sum(wanted.values())
    rows = pd.read_parquet(folder, partitioning=ds.partitioning(flavor="hive"))
    topics = {topic: count for (topic, _), count in wanted.items()}
    assert {topic or None: count for topic, count in rows["topic"].fillna("").value_counts().items()} == topics
    if name != "nulls":  # else pyarrow cannot unify dictionaries with nulls
        assert len(pd.read_parquet(folder)) == sum(wanted.values())


@pytest.mark.spark
@pytest.mark.parametrize("name", COUNTS)
def test_spark_reads_the_folder(spark: SparkSession, target: Path, name: str) -> None:
    frame = spark.read.parquet(str(target / name))
    found = {(row["topic"], row["day"]): row["count"] for row in frame.groupBy("topic", "day").count().collect()}
    assert found == COUNTS[name]
