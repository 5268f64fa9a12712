"""Errors: one sentence with what was found and what to do, on the driver, before any task starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

import pyspark_dledger as dl
from tests.support.extension import HAS_EXTENSION

OURS = re.compile(r"^pyspark_dledger\.errors\.(\w+Error): (.*)$", re.MULTILINE)


@pytest.fixture
def store(case_folder: Callable[[str], Path]) -> str:
    return str(case_folder("mq-53-upgrade"))


@pytest.fixture
def started_jobs(spark: SparkSession) -> Iterator[Callable[[], int]]:
    """How many jobs Spark has started since the test began."""
    group = f"test-{os.urandom(4).hex()}"
    spark.sparkContext.setJobGroup(group, "")
    yield lambda: len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def sentence(error: BaseException, kind: type[dl.DLedgerError] = dl.OptionError) -> str:
    """Our sentence in Spark's message: its own line, and no frame of ours but one above it."""
    found = OURS.findall(str(error))
    assert found, str(error)
    assert [name for name, _ in found] == [kind.__name__]
    frames = [line for line in str(error).splitlines() if "pyspark_dledger" in line and line.startswith("  File")]
    assert len(frames) == 1, str(error)
    return found[0][1]


def read(spark: SparkSession, path: str | None, schema: str | StructType | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("dledger").options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(path)


# A path that cannot be read: named by the Python API and by Spark alike, in Spark at load().


def missing(folder: Path) -> Path:
    return folder / "nowhere"


def empty(folder: Path) -> Path:
    return folder


def foreign(folder: Path) -> Path:
    (folder / "notes.txt").write_text("no store")
    return folder


def several_nodes(folder: Path) -> Path:
    for node in ("n0", "n1"):
        (folder / f"dledger-{node}" / "data").mkdir(parents=True)
    return folder


def no_data(folder: Path) -> Path:
    (folder / "dledger-n0" / "index").mkdir(parents=True)
    return folder


BAD_PATHS = {
    missing: r"nowhere: expected a storePathRootDir, .*found nothing there: check the path",
    empty: r"expected a storePathRootDir, .*found an empty folder",
    foreign: r"expected a storePathRootDir, .*found notes.txt: this is not a store",
    several_nodes: r"expected one node, found n0, n1: choose one with the option selfId",
    no_data: r"expected a data/ folder in dledger-n0, found index: .*dataDirs",
}


@pytest.mark.smoke
@pytest.mark.parametrize("make", BAD_PATHS, ids=lambda make: make.__name__)
def test_a_bad_path(spark: SparkSession, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = str(make(tmp_path))
    with pytest.raises(dl.StoreError) as error:
        dl.open_log(path)
    assert re.search(BAD_PATHS[make], str(error.value))
    with pytest.raises(PySparkException) as in_spark:
        read(spark, path)
    assert sentence(in_spark.value, dl.StoreError) == str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_an_unreadable_path(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    with pytest.raises(PySparkException) as error:
        read(spark, str(folder))
    assert "cannot be read (Permission denied)" in sentence(error.value, dl.StoreError)


def test_a_bad_path_with_a_users_schema_is_said_before_any_task(
    spark: SparkSession, tmp_path: Path, started_jobs: Callable[[], int]
) -> None:
    """Spark does not ask for a schema then and makes the source only when it plans, so that is the first chance."""
    frame = read(spark, str(missing(tmp_path)), "index long")
    with pytest.raises(PySparkException) as error:
        frame.collect()
    assert "found nothing there" in sentence(error.value, dl.StoreError)
    assert started_jobs() == 0


@pytest.mark.smoke
def test_no_path(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as error:
        read(spark, None)
    assert sentence(error.value) == (
        "no path is given: name the store in load(path). Of a catalog's table Spark passes none: use "
        "CREATE TEMPORARY VIEW name USING dledger OPTIONS (path '...'), or switch on the extension of Spark's "
        "optimizer (docs/reading.md)"
    )


def test_a_path_of_another_scheme(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as error:
        read(spark, "ftp://host/store")
    assert sentence(error.value).endswith(
        "expected a local path or one of s3://, gs://, abfs://, abfss://, hdfs://, viewfs://, found ftp: copy the "
        "store to a local folder"
    )


@pytest.mark.skipif(HAS_EXTENSION, reason="the extension passes the path")
def test_create_table_says_to_create_a_view(spark: SparkSession, store: str) -> None:
    with pytest.raises(PySparkException) as error:
        spark.sql(f"CREATE TABLE dlog USING dledger OPTIONS (path '{store}')")
    assert "use CREATE TEMPORARY VIEW name USING dledger" in sentence(error.value)


# Options, at load() too


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"isolationLvl": "read_committed"}, "unknown option isolationlvl: the nearest is isolationLevel"),
        ({"table": "segment"}, "option table: unknown table segment, the nearest is segments"),
        (
            {"mode": "failfst"},
            "option mode: expected PERMISSIVE, DROPMALFORMED or FAILFAST, found 'failfst'",
        ),
        (
            {"maxPartitionBytes": "lots"},
            "option maxPartitionBytes: expected a size in bytes, such as 65536, 64k, 128m or 1g, found 'lots'",
        ),
        (
            {"group": "g", "peers": "n0-127.0.0.1:20911"},
            "a path and options group and peers are both given: load() a group without a path",
        ),
    ],
)
def test_a_bad_option(spark: SparkSession, store: str, options: dict[str, str], expected: str) -> None:
    with pytest.raises(PySparkException) as error:
        read(spark, store, **options)
    assert sentence(error.value) == expected


def test_a_bad_option_with_a_users_schema_is_said_before_any_task(
    spark: SparkSession, store: str, started_jobs: Callable[[], int]
) -> None:
    frame = read(spark, store, "index long", foo="bar")
    with pytest.raises(PySparkException) as error:
        frame.collect()
    assert sentence(error.value).startswith("unknown option foo: those are table, mode, ")
    assert started_jobs() == 0


# Columns

NTZ_REJECTED = "column storeTimestamp is a timestamp with a time zone, found timestamp_ntz: write timestamp_ltz"
MAP = "map<string,string>"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("idx long", "unknown column idx: the nearest of table log is index"),
        ("Topics string", "unknown column Topics: the nearest of table log is topic"),
        ("index int", "column index is bigint, found int: write index bigint"),
        ("Body string", "column body is binary, found string: write body binary"),
        ("index long not null", "column index can be null, found NOT NULL: leave NOT NULL out"),
        (
            "storeTimestamp timestamp_ntz",
            f"{NTZ_REJECTED}, which does not depend on spark.sql.timestampType",
        ),
        (
            "index long, topic string, INDEX long",
            "column index is named twice in the schema: name it once, its case does not matter",
        ),
        (
            StructType([]),
            "the schema names no column: name at least one, such as index long, or leave .schema() out",
        ),
        (
            StructType([StructField("properties", MapType(StringType(), StringType(), False))]),
            f"column properties is {MAP}, found {MAP} with values NOT NULL: write properties {MAP}",
        ),
        (
            StructType([StructField("topic", StructType([StructField("a", LongType())]))]),
            "column topic is string, found struct<a:bigint>: write topic string",
        ),
    ],
)
def test_a_bad_schema(
    spark: SparkSession, store: str, started_jobs: Callable[[], int], schema: str | StructType, expected: str
) -> None:
    frame = read(spark, store, schema)
    with pytest.raises(PySparkException) as error:
        frame.collect()
    assert sentence(error.value) == expected
    assert started_jobs() == 0


def test_timestamp_under_timestamp_ntz_names_the_reason(spark: SparkSession, store: str) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        with pytest.raises(PySparkException) as error:
            read(spark, store, "storeTimestamp timestamp").collect()
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert sentence(error.value) == f"{NTZ_REJECTED}, which does not depend on spark.sql.timestampType"


# Damage


def test_failfast_names_the_row(spark: SparkSession, store: str, tmp_path: Path) -> None:
    first = min((Path(store) / "commitlog").iterdir())
    damaged = bytearray(first.read_bytes())
    damaged[300] ^= 0xFF  # in the body of the first message
    (tmp_path / first.name).write_bytes(damaged)
    frame = read(spark, str(tmp_path), "index long", mode="FAILFAST")
    with pytest.raises(PySparkException) as error:
        frame.collect()
    ours = OURS.findall(str(error.value))[0]
    assert ours[0] == "MalformedError"
    assert f"{first.name}: message at 0: expected " in ours[1]
    assert ours[1].endswith("mode=PERMISSIVE keeps such rows with their problem, DROPMALFORMED drops them")
    assert read(spark, str(tmp_path), "problem string").where("problem is not null").count() == 1
