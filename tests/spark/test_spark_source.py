"""The data source in Spark: its schema, the columns of a user's schema, and how Spark finds and loads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import pyspark_dledger
from pyspark_dledger.format.columns import ALL_COLUMNS, COLUMN_BY_NAME, COLUMNS
from pyspark_dledger.log import open_log
from pyspark_dledger.spark import schema as schemas
from tests.support.long_runs import some

FIRST_DLEDGER_POS = 393216
PYSPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

SPARK_TYPES = {
    **dict.fromkeys(("index", "term", "pos", "queueOffset", "commitLogOffset", "preparedTransactionOffset"), "bigint"),
    **dict.fromkeys(("size", "magic", "channel", "chainCrc", "bodyCrc", "bodySize", "queueId", "storeSize"), "int"),
    **dict.fromkeys(("messageMagic", "flag", "sysFlag", "reconsumeTimes", "messageCrc"), "int"),
    **dict.fromkeys(("kind", "source", "problem", "segment", "topic", "bornHost", "storeHost", "healedFrom"), "string"),
    **dict.fromkeys(("transaction", "compression", "tags", "keys", "uniqKey", "offsetMsgId"), "string"),
    **dict.fromkeys(("bornTimestamp", "storeTimestamp"), "timestamp"),
    "committed": "boolean",
    "properties": "map<string,string>",
    "body": "binary",
    "entryBody": "binary",
}


@pytest.fixture
def store(case_folder: Callable[[str], Path]) -> str:
    return str(case_folder("mq-53-upgrade"))


@pytest.fixture
def set_conf(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Set a conf for one test."""
    changed: list[str] = []

    def change(name: str, value: str) -> None:
        spark.conf.set(name, value)
        changed.append(name)

    yield change
    for name in changed:
        spark.conf.unset(name)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def python_rows(store: str, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in open_log(store).scan(columns, **options) for row in batch.to_pylist()]


def spark_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


# The schema


@pytest.mark.smoke
def test_schema_of_the_log_table(spark: SparkSession, store: str) -> None:
    schema = spark.read.format("dledger").load(store).schema
    assert [(f.name, f.dataType.simpleString()) for f in schema] == [(c.name, SPARK_TYPES[c.name]) for c in COLUMNS]
    assert all(field.nullable for field in schema)


def test_include_entry_body_adds_a_column(spark: SparkSession, store: str) -> None:
    frame = spark.read.format("dledger").option("includeEntryBody", "true").load(store)
    assert frame.schema.names == [column.name for column in ALL_COLUMNS]
    wrong = frame.where("source = 'dledger' and length(entryBody) <> bodySize or entryBody is null")
    assert wrong.count() == 0


@pytest.mark.skipif(PYSPARK < (4, 3), reason="older versions do not compare Arrow schemas")
@pytest.mark.parametrize("include", [True, False])
def test_arrow_schema_is_the_one_that_pyspark_expects(include: bool) -> None:
    schema = schemas.log_schema(include)
    assert schemas.arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.smoke
def test_schema_of_the_user_chooses_columns_in_its_order_and_spelling(spark: SparkSession, store: str) -> None:
    frame = spark.read.format("dledger").schema("TOPIC string, Index long, keys string, queueid int").load(store)
    assert frame.columns == ["TOPIC", "Index", "keys", "queueid"]
    assert spark_rows(frame) == python_rows(store, "topic", "index", "keys", "queueId")


@pytest.mark.parametrize("name", some(COLUMN_BY_NAME, 12))
def test_each_column_alone(spark: SparkSession, store: str, name: str) -> None:
    frame = spark.read.format("dledger").schema(f"`{name.upper()}` {SPARK_TYPES[name]}").load(store)
    rows = [value for (value,) in spark_rows(frame.selectExpr(as_comparable(name)))]
    assert rows == [comparable(value) for (value,) in python_rows(store, name)]


def as_comparable(name: str) -> str:
    # collect() turns timestamps into the machine's own zone.
    return f"unix_micros(`{name}`)" if SPARK_TYPES[name] == "timestamp" else f"`{name}`"


def comparable(value: object) -> object:
    if isinstance(value, list):
        return dict(value)
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1e6)
    return bytearray(value) if isinstance(value, bytes) else value


def test_columns_that_are_never_null_may_be_not_null(spark: SparkSession, store: str) -> None:
    schema = (
        "kind string not null, source string not null, pos long not null, size int not null, segment string not null"
    )
    frame = spark.read.format("dledger").schema(f"{schema}, index long").load(store)
    assert [field.nullable for field in frame.schema] == [False] * 5 + [True]
    assert frame.count() == len(python_rows(store, "pos"))


def test_timestamps_do_not_depend_on_the_sessions_zone(
    spark: SparkSession, store: str, set_conf: Callable[[str, str], None]
) -> None:
    set_conf("spark.sql.session.timeZone", "Asia/Shanghai")
    frame = spark.read.format("dledger").schema("storeTimestamp timestamp").load(store)
    shown = frame.selectExpr("string(min(storeTimestamp))", "unix_micros(min(storeTimestamp))").first()
    assert shown is not None
    assert (shown[0], shown[1]) == ("2026-11-21 11:08:25.69", 1795230505_690_000)


def test_timestamp_ltz_under_timestamp_ntz(
    spark: SparkSession, store: str, set_conf: Callable[[str, str], None]
) -> None:
    set_conf("spark.sql.timestampType", "TIMESTAMP_NTZ")
    frame = spark.read.format("dledger").schema("storeTimestamp timestamp_ltz").load(store)
    assert frame.where("storeTimestamp is not null").count() == len(python_rows(store, "pos"))
    assert spark.read.format("dledger").load(store).schema["storeTimestamp"].dataType.simpleString() == "timestamp"


# What is read


@pytest.mark.smoke
def test_rows_are_those_of_the_python_api(spark: SparkSession, store: str, engine: str) -> None:
    frame = (
        spark.read.format("dledger").option("engine", engine).schema("pos long, index long, body binary").load(store)
    )
    expected = [tuple(map(comparable, row)) for row in python_rows(store, "pos", "index", "body", engine=engine)]
    assert spark_rows(frame) == expected


@pytest.mark.parametrize("rows_per_batch", ["1", "10", "100000"])
def test_rows_do_not_depend_on_the_batch_size(spark: SparkSession, store: str, rows_per_batch: str) -> None:
    frame = spark.read.format("dledger").option("maxBatchRows", rows_per_batch).schema("pos long, keys string")
    assert spark_rows(frame.load(store)) == python_rows(store, "pos", "keys")


@pytest.mark.smoke
def test_options_reach_the_scan(spark: SparkSession, store: str) -> None:
    frame = (
        spark.read.format("dledger")
        .options(TOPIC="OrderTopic,PayTopic", queueId="1", startingOffsets='{"pos": 393216}', endingoffsets=400)
        .schema("topic string, queueId int, index long")
        .load(store)
    )
    rows = [
        row
        for row in python_rows(store, "topic", "queueId", "index")
        if row[0] in ("OrderTopic", "PayTopic") and row[1] == 1 and row[2] is not None and row[2] < 400
    ]
    assert spark_rows(frame) == rows
    assert rows


def test_smaller_partitions_have_the_same_rows(spark: SparkSession, store: str) -> None:
    reader = spark.read.format("dledger").schema("pos long, size int")
    whole, split = reader.load(store), reader.option("maxPartitionBytes", "10k").load(store)
    assert whole.rdd.getNumPartitions() < 20 < split.rdd.getNumPartitions()
    assert spark_rows(split) == spark_rows(whole)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "options", [{"startingTimestamp": 0, "endingTimestamp": 0}, {"startingOffsets": 5, "endingOffsets": 5}]
)
def test_empty_plan_has_no_rows(spark: SparkSession, store: str, options: dict[str, int]) -> None:
    frame = spark.read.format("dledger").options(**options).load(store)
    assert frame.collect() == []
    assert frame.count() == 0


def test_file_uri_is_a_path(spark: SparkSession, store: str) -> None:
    assert spark.read.format("dledger").load(f"file://{store}").count() == len(python_rows(store, "pos"))


def test_first_of_several_paths_is_read_and_the_others_are_replicas(
    spark: SparkSession, case_folder: Callable[[str], Path]
) -> None:
    nodes = [str(case_folder("mq-53-three") / node) for node in ("n1", "n0", "n2")]
    reader = spark.read.format("dledger").schema("index long, committed boolean").option("committedBound", "quorum")
    frame = reader.load(nodes)
    assert spark_rows(frame) == python_rows(nodes[0], "index", "committed", replicas=nodes[1:], committedBound="quorum")


@pytest.mark.smoke
def test_sql_through_a_temporary_view(spark: SparkSession, store: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW dlog USING dledger OPTIONS (path '{store}', topic 'OrderTopic')")
    try:
        rows = spark.sql("SELECT index, topic FROM dlog WHERE index > 400 ORDER BY pos").collect()
    finally:
        spark.catalog.dropTempView("dlog")
    expected = python_rows(store, "index", "topic", topic="OrderTopic", startingOffsets=401)
    assert [tuple(row) for row in rows] == expected


def test_sql_through_a_view_with_columns(spark: SparkSession, store: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW dlog (Index long, body binary) USING dledger OPTIONS (path '{store}')")
    try:
        assert spark.table("dlog").columns == ["Index", "body"]
        assert spark.sql("SELECT max(index) FROM dlog").first() == (538,)
    finally:
        spark.catalog.dropTempView("dlog")


def test_aggregates_find_where_the_old_commitlog_ends(spark: SparkSession, store: str) -> None:
    frame = spark.read.format("dledger").schema("source string, pos long, index long").load(store)
    first = frame.where("source = 'dledger'").agg({"pos": "min", "index": "min"}).first()
    assert first is not None
    assert sorted(first) == [0, FIRST_DLEDGER_POS]


# How Spark finds it


@pytest.mark.smoke
def test_spark_finds_the_source_by_itself(spark: SparkSession, store: str) -> None:
    """Without a registration."""
    assert spark.read.format("DLedger").schema("index long").load(store).count() > 0


def test_lookup_returns_the_class() -> None:
    assert pyspark_dledger.DefaultSource.name() == "dledger"
    assert issubclass(pyspark_dledger.DefaultSource, pyspark.sql.datasource.DataSource)


def run_python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_lookup_loads_no_reading_code() -> None:
    """Every session with any Python data source looks the class up."""
    code = "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_dledger as d; d.DefaultSource"
    loaded = run_python(f"{code}; print(*set(sys.modules) - before)").split()
    assert not [name for name in loaded if name.startswith(("pyarrow", "numpy", "pyspark_dledger.format"))]
    assert not [name for name in loaded if name.startswith("pyspark_dledger.log")]


@pytest.mark.parametrize("broken", ["pyspark", "pyspark.sql.datasource"])
def test_without_pyspark_there_is_no_source_and_no_error(broken: str) -> None:
    """Spark looks up with hasattr. Another error would hide all other data sources."""
    code = (
        f"import sys; sys.modules[{broken!r}] = None; import pyspark_dledger as d; print(hasattr(d, 'DefaultSource'))"
    )
    assert run_python(code) == "False"


def test_error_without_pyspark_has_the_reason() -> None:
    reason = "the data source dledger needs PySpark 4.0 or newer"
    code = """
import sys
sys.modules["pyspark"] = None
import pyspark_dledger
try:
    pyspark_dledger.DefaultSource
except AttributeError as error:
    print(error)
"""
    assert run_python(code).startswith(f"pyspark_dledger.DefaultSource: {reason}: ")


def test_package_lists_its_names() -> None:
    assert set(pyspark_dledger.__all__) <= set(dir(pyspark_dledger))
    assert all(hasattr(pyspark_dledger, name) for name in pyspark_dledger.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pyspark_dledger.nothing


def test_version_is_that_of_the_distribution() -> None:
    try:
        version = metadata.version("pyspark_dledger")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed, only on the path")
    assert pyspark_dledger.__version__ == version


def test_docstring_of_the_class_has_its_sections() -> None:
    doc = pyspark_dledger.DefaultSource.__doc__
    assert doc is not None
    for heading in ("Name", "Options", "Modes", "Examples"):
        assert f"\n    {heading}\n    {'-' * len(heading)}\n" in doc


def test_schema_may_be_an_object(spark: SparkSession, store: str) -> None:
    schema = StructType([schemas.log_schema(False)["index"]])
    assert spark.read.format("dledger").schema(schema).load(store).columns == ["index"]
