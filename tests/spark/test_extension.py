"""The extension of Spark's optimizer: queries read their columns only and are planned each time, with equal rows."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, Row, SparkSession

import pyspark_dledger as dl
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.spark import extension
from tests.spark.test_spark_writer import numbers, write_small
from tests.support.extension import HAS_EXTENSION
from tests.support.long_runs import some
from tests.support.sinks import bodies
from tests.support.stores import opened

pytestmark = pytest.mark.spark

MIB = 1024**2
_NAMES = (f"extended_{number}" for number in itertools.count())
QUERIES = {
    "columns": "SELECT topic, max(index) FROM {0} GROUP BY topic ORDER BY topic",
    "no column": "SELECT count(*) FROM {0}",
    "all columns": "SELECT * FROM {0} WHERE index = 5",
    "filter": "SELECT count(*) FROM {0} WHERE kind = 'message' AND index BETWEEN 100 AND 200 AND length(body) > 10",
    "union": "SELECT index FROM {0} WHERE index < 10 UNION ALL SELECT index FROM {0} WHERE index >= 530 ORDER BY 1",
    "self-join": "SELECT a.topic, count(*) FROM {0} a JOIN {0} b USING (pos) WHERE b.queueId = 1 GROUP BY 1 ORDER BY 1",
    "scalar subquery": "SELECT max(index), (SELECT min(pos) FROM {0}) FROM {0} WHERE pos > (SELECT avg(pos) FROM {0})",
    "exists": "SELECT count(*) FROM {0} a WHERE EXISTS (SELECT 1 FROM {0} b WHERE b.index = a.index + 1)",
    "anti-join": "SELECT count(*) FROM {0} a LEFT ANTI JOIN (SELECT pos FROM {0} WHERE term > 1) b ON a.pos = b.pos",
    "common table": "WITH f AS (SELECT * FROM {0} WHERE index < 10) SELECT count(*) FROM f a JOIN f b USING (index)",
    "window": "SELECT index, row_number() OVER (PARTITION BY topic ORDER BY pos) FROM {0} ORDER BY pos LIMIT 5",
    "distinct": "SELECT count(DISTINCT topic), count(DISTINCT tags) FROM {0} WHERE tags IS NOT NULL",
    "map": "SELECT sum(size(properties)), max(properties['UNIQ_KEY']) FROM {0}",
    "nothing": "SELECT topic FROM {0} WHERE index < 0",
}


@pytest.fixture(scope="module")
def extended(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    dl.enable(session)
    return session


@pytest.fixture
def name(spark: SparkSession, extended: SparkSession) -> Iterator[str]:
    """A name for a view in both sessions."""
    name = next(_NAMES)
    yield name
    for session in (spark, extended):
        session.catalog.dropTempView(name)
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def store(case_folder: Callable[[str], Path]) -> Path:
    """Messages in a CommitLog, and 539 entries with the indexes 0 to 538."""
    return case_folder("mq-53-upgrade")


def rows(session: SparkSession, path: Path, name: str, query: str) -> list[Row]:
    session.read.format("dledger").load(str(path)).createOrReplaceTempView(name)
    return session.sql(query.format(name)).collect()


def scans(query: DataFrame) -> list[list[str]]:
    """The columns of each scan in the physical plan of a query."""
    plan = query._jdf.queryExecution().executedPlan().toString()
    return [re.findall(r"(\w+)#", columns) for columns in re.findall(r"BatchScan dledger\[(.*?)\]", plan)]


@pytest.mark.parametrize("query", some(QUERIES, 7))
def test_rows_are_those_without_the_extension(
    spark: SparkSession, extended: SparkSession, store: Path, name: str, query: str
) -> None:
    assert rows(extended, store, name, QUERIES[query]) == rows(spark, store, name, QUERIES[query])


@pytest.mark.parametrize("query", ["union", "self-join", "scalar subquery"])
def test_filters_of_one_part_of_a_query_do_not_change_another(
    spark: SparkSession, extended: SparkSession, store: Path, name: str, query: str
) -> None:
    extended.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = rows(extended, store, name, QUERIES[query])
    finally:
        extended.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == rows(spark, store, name, QUERIES[query])


def test_query_reads_only_its_columns(extended: SparkSession, store: Path, name: str) -> None:
    extended.read.format("dledger").load(str(store)).createOrReplaceTempView(name)
    assert scans(extended.sql(QUERIES["columns"].format(name))) == [["index", "topic"]]
    assert scans(extended.sql(QUERIES["no column"].format(name))) == [["pos"]]
    assert scans(extended.sql(f"SELECT topic FROM {name} WHERE body IS NULL")) == [["topic", "body"]]


def test_scans_of_one_table_read_the_columns_of_all(extended: SparkSession, store: Path, name: str) -> None:
    """So they are one plan, and see the same rows."""
    extended.read.format("dledger").load(str(store)).createOrReplaceTempView(name)
    query = f"SELECT a.index FROM {name} a JOIN {name} b ON a.index = b.index WHERE b.queueId = 1"
    assert scans(extended.sql(query)) == [["index", "queueId"]] * 2


@pytest.mark.smoke
def test_view_has_the_rows_that_were_appended(extended: SparkSession, tmp_path: Path, name: str) -> None:
    write_small(numbers(extended, 10), tmp_path / "log")
    extended.read.format("dledger").load(str(tmp_path / "log")).createOrReplaceTempView(name)
    assert extended.table(name).count() == 10
    write_small(numbers(extended, 5), tmp_path / "log")
    assert extended.table(name).count() == 15


def test_view_is_read_after_a_file_expired(extended: SparkSession, tmp_path: Path, name: str) -> None:
    write_small(numbers(extended, 40, 1), tmp_path, dataFileSize="1k")
    extended.read.format("dledger").load(str(tmp_path)).createOrReplaceTempView(name)
    assert extended.table(name).count() == 40
    min(tmp_path.glob("dledger-n0/data/*")).unlink()
    assert 0 < extended.table(name).count() < 40


def test_small_table_is_broadcast(extended: SparkSession, store: Path) -> None:
    log = extended.read.format("dledger").load(str(store))
    joined = log.alias("a").join(log.where("queueId = 1").alias("b"), "uniqKey").select("a.index")
    assert "BroadcastHashJoin" in joined._jdf.queryExecution().executedPlan().toString()


def test_statistics_follow_the_log(extended: SparkSession, tmp_path: Path, name: str) -> None:
    """Rows, and bytes of the columns that are read, so that optimizers of joins know small tables."""
    write_small(numbers(extended, 10), tmp_path)
    extended.read.format("dledger").load(str(tmp_path)).createOrReplaceTempView(name)
    for rows in (10, 15):
        plan = extended.sql(f"SELECT index FROM {name}")._jdf.queryExecution().optimizedPlan()
        leaf = plan.collectLeaves().head()
        assert leaf.scan().estimateStatistics().numRows().getAsLong() == rows
        assert leaf.stats().sizeInBytes() == rows * (8 + 8)  # Spark's sizes of index and of a row
        write_small(numbers(extended, 5), tmp_path)


def test_plans_have_the_number_of_rows(extended: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark 4.3 drops the rows of all sources, unless a setting asks for them."""
    store = opened(tmp_path)
    store.append_as_leader([b"body"] * 7)
    store.shutdown()
    extended.read.format("dledger").load(str(tmp_path)).createOrReplaceTempView(name)
    extended.conf.set("spark.sql.cbo.enabled", "true")
    try:
        plan = extended.sql(f"EXPLAIN COST SELECT index FROM {name}").first()
    finally:
        extended.conf.unset("spark.sql.cbo.enabled")
    assert plan is not None
    assert re.search(r"RelationV2.*dledger, Statistics\(.*rowCount=7\)", plan[0])


def test_large_segment_has_a_partition_for_each_core(
    spark: SparkSession, extended: SparkSession, tmp_path: Path, name: str
) -> None:
    store = opened(tmp_path, data_file_size=16 * MIB)
    store.append_as_leader([bytes([number]) * MIB for number in range(12)])
    store.shutdown()
    partitions = {}
    for session in (spark, extended):
        session.read.format("dledger").load(str(tmp_path)).createOrReplaceTempView(name)
        query = session.sql(f"SELECT body FROM {name}")
        partitions[session] = query._jdf.queryExecution().toRdd().getNumPartitions()
    cores = spark.sparkContext.defaultParallelism
    assert (partitions[extended], partitions[spark]) == (cores, cores if HAS_EXTENSION else 1)


def test_filters_of_the_only_scan_are_pushed(extended: SparkSession, store: Path, name: str) -> None:
    if extended.version < "4.1":
        pytest.skip("Spark 4.0 pushes no filters into Python data sources")
    extended.read.format("dledger").load(str(store)).createOrReplaceTempView(name)
    query = extended.sql(f"SELECT topic FROM {name} WHERE index < 10")
    scan = query._jdf.queryExecution().optimizedPlan().collectLeaves().head().scan()
    assert "LessThan(index,10)" in scan.getMetaData().apply("PushedFilters")
    assert query.count() == 10


@pytest.mark.smoke
def test_saved_table_is_read_and_appended(extended: SparkSession, tmp_path: Path, name: str) -> None:
    frame = numbers(extended, 10).selectExpr("'T' topic", "binary(body) body")
    writer = frame.write.format("dledger").mode("append").option("path", str(tmp_path / "a log"))
    writer.saveAsTable(name)
    writer.saveAsTable(name)
    frame.write.insertInto(name)
    extended.sql(f"INSERT INTO {name} SELECT 'T', binary('new')")
    found = extended.sql(f"SELECT topic, count(*), max(string(body)) FROM {name} GROUP BY topic")
    assert [tuple(row) for row in found.collect()] == [("T", 31, "new")]
    with pytest.raises(IllegalArgumentException, match="cannot be replaced, because a log is append-only"):
        writer.mode("overwrite").saveAsTable(name)
    extended.sql(f"DROP TABLE {name}")
    assert extended.read.format("dledger").load(str(tmp_path / "a log")).count() == 31


def test_saved_table_that_could_not_be_read_writes_nothing(extended: SparkSession, tmp_path: Path, name: str) -> None:
    writer = numbers(extended, 10).write.format("dledger").mode("append").option("path", str(tmp_path / "log"))
    with pytest.raises(IllegalArgumentException, match="expected column body binary, found string: cast it"):
        writer.saveAsTable(name)
    assert not (tmp_path / "log").exists()
    assert not extended.catalog.tableExists(name)


COLUMNS = {
    "(index BIGINT, topic STRING)": ["index", "topic"],
    "": list(DEFAULT_NAMES),
    "(nothing INT)": "unknown column nothing",
    "(index INT)": "expected column index bigint, found int",
    "(index BIGINT NOT NULL)": "expected column index bigint, found bigint NOT NULL",
}


@pytest.mark.parametrize("columns", COLUMNS)
def test_created_table_is_read_or_refused(extended: SparkSession, store: Path, name: str, columns: str) -> None:
    create, expected = f"CREATE TABLE {name} {columns} USING dledger LOCATION '{store}'", COLUMNS[columns]
    if isinstance(expected, str):
        with pytest.raises(IllegalArgumentException, match=expected):
            extended.sql(create)
        assert not extended.catalog.tableExists(name)
        return
    extended.sql(create)
    assert extended.table(name).columns == expected
    extended.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert extended.table(name).where("index < 10").count() == 10
        assert extended.sql(f"SELECT index FROM {name} WITH (endingOffsets = '5') WHERE index >= 0").count() == 5
    finally:
        extended.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_managed_table_is_in_the_warehouse(extended: SparkSession, name: str) -> None:
    query = "SELECT binary('one') body"
    extended.sql(f"CREATE TABLE {name} USING dledger OPTIONS (topic 'T', dataFileSize '64k') AS {query}")
    folder = Path(extended.conf.get("spark.sql.warehouse.dir").removeprefix("file:"), name)
    assert extended.read.format("dledger").load(str(folder)).count() == extended.table(name).count() == 1
    extended.sql(f"DROP TABLE {name}")
    assert not folder.exists()


def test_other_tables_have_the_same_rows(spark: SparkSession, extended: SparkSession, store: Path) -> None:
    found, expected = (
        session.read.format("dledger")
        .option("table", "segments")
        .load(str(store))
        .select("source", "entries")
        .collect()
        for session in (extended, spark)
    )
    assert found == expected


def test_another_thread_writes(extended: SparkSession, tmp_path: Path) -> None:
    """Spark finds Python data sources in the active session of a thread."""

    def write_there() -> None:
        dl.enable(extended)
        write_small(numbers(extended, 10), tmp_path / "log")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_there).result()
    assert len(bodies(tmp_path / "log")) == 10


def test_extension_is_added_once(extended: SparkSession) -> None:
    def count() -> int:
        return extended._jsparkSession.experimental().extraOptimizations().size()  # type: ignore[no-any-return]

    before = count()
    dl.enable(extended)
    assert count() == before == 1


def test_unknown_version_of_spark_keeps_its_plans(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for source in extension.sources():
        text = source.read_text().replace("4\\\\.[0-3]", "5\\\\.[0-3]")
        (tmp_path / source.name).write_text(text)
    monkeypatch.setattr(extension, "sources", lambda: sorted(tmp_path.iterdir()))
    session = spark.newSession()
    dl.enable(session)
    (columns,) = scans(session.read.format("dledger").load(str(store)).groupBy("topic").count())
    assert len(columns) > 2


def test_jar_without_pyspark_is_an_error_with_advice(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; sys.modules['pyspark'] = None\n"
        "runpy.run_module('pyspark_dledger.spark.extension', run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path / "jar"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr[:16]) == (1, "expected PySpark")


@pytest.mark.slow
def test_jar_extends_a_session_by_configuration(store: Path, tmp_path: Path) -> None:
    jar = tmp_path / "extension.jar"
    subprocess.run([sys.executable, "-m", "pyspark_dledger.spark.extension", jar], check=True)
    query = f"""
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars", {str(jar)!r}).config("spark.sql.extensions", {extension.EXTENSIONS!r})
spark = builder.getOrCreate()
log = spark.read.format("dledger").load({str(store)!r}).groupBy("topic").count()
print(log._jdf.queryExecution().executedPlan().toString())
"""
    printed = subprocess.run([sys.executable, "-c", query], capture_output=True, text=True, check=True).stdout
    (columns,) = re.findall(r"BatchScan dledger\[(.*?)\]", printed)
    assert re.findall(r"(\w+)#", columns) == ["topic"]
