"""Tables of the catalog, writes of other threads and in the shape of Kafka, and repeated batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_dledger.spark.sink.write_options import WRITE_OPTIONS
from tests.spark.test_spark_writer import numbers, write_small
from tests.support.extension import HAS_EXTENSION
from tests.support.long_runs import some
from tests.support.sinks import bodies

pytestmark = pytest.mark.spark

_NAMES = (f"table_{number}" for number in itertools.count())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """A name for a table or a view, which is dropped after the test."""
    name = next(_NAMES)
    yield name
    spark.catalog.dropTempView(name)
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[..., None]]:
    """Sets settings of the session for one test; in their names ``_`` stands for ``.``."""
    changed: set[str] = set()

    def change(**values: Any) -> None:
        for key, value in values.items():
            changed.add(key.replace("_", "."))
            spark.conf.set(key.replace("_", "."), value)

    yield change
    for key in changed:
        spark.conf.unset(key)


def load(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("dledger").load(str(path))


def messages(spark: SparkSession, path: Path, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in load(spark, path).where("kind = 'message'").selectExpr(*columns).collect()]


@pytest.fixture
def store(case_folder: Callable[[str], Path]) -> Path:
    """Messages in a CommitLog, and 539 entries with the indexes 0 to 538."""
    return case_folder("mq-53-upgrade")


# Tables of the catalog


# Spark calls no Python when it makes a table, and passes the table's path only to the extension.
read_with_extension = nullcontext() if HAS_EXTENSION else pytest.raises(PySparkException)


def test_table_with_columns_is_read_or_refused(spark: SparkSession, store: Path, name: str) -> None:
    try:
        spark.sql(f"CREATE TABLE {name} (index long, topic string) USING dledger OPTIONS (path '{store}')")
    except PySparkException:
        return
    with read_with_extension:
        assert spark.table(name).where("index is not null").count() == 539


def test_saved_table_is_read_or_nothing_is_written(spark: SparkSession, root: Path, name: str) -> None:
    writer = numbers(spark, 10).write.format("dledger").mode("append").option("path", str(root))
    try:
        writer.saveAsTable(name)
    except PySparkException:
        assert not root.exists()
        return
    assert len(bodies(root)) == 10
    with read_with_extension:
        assert spark.table(name).count() == 10


# Writes


def test_spark_finds_no_data_source_in_another_thread(spark: SparkSession, root: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        pool.submit(write_small, numbers(spark, 10), root).result()
    assert not root.exists()


INPUTS = {
    "Kafka's columns": ("'T' topic, cast('k' as binary) key, cast('v' as binary) value", "k"),
    "binary keys": ("'T' topic, cast('k' as binary) keys, cast('v' as binary) body", "k"),
    "an array of keys": ("'T' topic, array('k', 'l') keys, cast('v' as binary) body", "k l"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_rows_in_the_shape_of_kafka_are_written(spark: SparkSession, root: Path, case: str) -> None:
    select, keys = INPUTS[case]
    write_small(spark.sql(f"SELECT {select}"), root)
    assert messages(spark, root, "topic", "keys", "string(body)") == [("T", keys, "v")]


def test_repeated_batch_with_the_same_version_writes_nothing(spark: SparkSession, root: Path) -> None:
    """As Spark repeats a batch of foreachBatch after a crash: the same rows with the same batch id."""
    known = {option.name for option in WRITE_OPTIONS}
    version = {key: value for key, value in {"txnAppId": "app", "txnVersion": 7}.items() if key in known}
    for _ in range(2):
        write_small(numbers(spark, 10), root, topic="T", **version)
    found = messages(spark, root, "int(string(body))")
    assert {number for (number,) in found} == set(range(10))
    assert len(found) == 10, f"{len(found)} messages of 10 rows"


PARTITIONS = {
    "fewer cores": {"spark_sql_leafNodeDefaultParallelism": 1},
    "more cores": {"spark_sql_leafNodeDefaultParallelism": 7},
    "larger splits": {"spark_sql_files_minPartitionNum": 1},
}


@pytest.mark.parametrize("case", some(PARTITIONS, 1))
def test_restart_with_other_partitions_writes_nothing_twice(
    spark: SparkSession, root: Path, tmp_path: Path, settings: Callable[..., None], case: str
) -> None:
    """The first run writes its batch, and is killed before the commit is in the checkpoint."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    lines = [f"{number:04d} ".ljust(100, "x") for number in range(1000)]
    (source / "lines.txt").write_text("\n".join(lines))

    def run() -> None:
        rows = spark.readStream.text(str(source)).selectExpr("'T' topic", "value body")
        writer = rows.writeStream.format("dledger").option("checkpointLocation", str(checkpoint))
        writer = writer.options(flush="async", leaseMs=1000, dataFileSize="1m", indexFileSize="320k")
        writer.trigger(availableNow=True).start(str(root)).awaitTermination()

    settings(spark_sql_files_openCostInBytes=0, spark_sql_leafNodeDefaultParallelism=4)
    run()
    assert Counter(messages(spark, root, "string(body)")) == Counter((line,) for line in lines)
    for file in (checkpoint / "commits").glob("*0*"):
        file.unlink()
    settings(**PARTITIONS[case])
    try:
        run()
    except StreamingQueryException as error:
        if "pyspark_dledger.errors" not in str(error):  # a refusal of ours is as good as exact rows
            raise
    found = Counter(messages(spark, root, "string(body)"))
    assert set(found) == {(line,) for line in lines}
    assert found.total() == len(lines), f"{found.total()} messages of {len(lines)} rows"
