"""Writing with Spark: what is written, what is rejected before any job, and what a failure leaves."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import pyspark_dledger as dl
from pyspark_dledger.spark.sink.row_format import row_format
from pyspark_dledger.spark.sink.write_options import WRITE_OPTIONS, WriteOptions, parse_write_options
from tests.project.test_errors import sentence
from tests.support.groups import Nodes, nodes
from tests.support.sinks import bodies, is_free

SMALL = {"dataFileSize": "1m", "indexFileSize": "32k"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path / "group", 1) as found:
        yield found


def write(frame: DataFrame, path: object = None, **options: Any) -> None:
    writer = frame.write.format("dledger").mode("append").options(**options)
    writer.save(None if path is None else str(path))


def write_small(frame: DataFrame, path: object, **options: Any) -> None:
    write(frame, path, **{**SMALL, **options})


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# What is written


@pytest.mark.smoke
def test_rows_become_entries_and_are_read_back(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_small(numbers(spark, 1000), root)
    write_small(numbers(spark, 500).select(F.col("body").cast("binary").alias("BODY")), root)
    rows = spark.read.format("dledger").schema("index long, committed boolean, body binary").load(str(root)).collect()
    assert [row["index"] for row in rows] == list(range(1500))
    assert all(row.committed for row in rows)
    assert sorted(bytes(row.body) for row in rows) == sorted(expected(1000) + expected(500))
    assert is_free(root)
    # A worker that started before this test writes elsewhere.
    shown = capfd.readouterr().err
    assert not shown or "dledger: wrote 1000 entries, indexes 0 to 999" in shown


def test_rows_of_a_partition_keep_their_order_and_columns_are_left_out_on_demand(
    spark: SparkSession, root: Path
) -> None:
    write_small(numbers(spark, 25_000, 1).withColumn("extra", F.lit(1)), root, ignoreExtraColumns=True)
    assert bodies(root) == expected(25_000)


def test_bodies_of_all_sizes(spark: SparkSession, root: Path) -> None:
    sizes = [0, 1, 31, 4096, 100_000, 1_000_000]
    frame = spark.createDataFrame([(bytearray(b"x" * size),) for size in sizes], "body binary").coalesce(1)
    write_small(frame, root, dataFileSize="4m")
    assert list(map(len, bodies(root))) == sizes


def test_no_rows_are_no_entries(spark: SparkSession, root: Path) -> None:
    write_small(numbers(spark, 0), root)
    write_small(numbers(spark, 5, 4).where("body = '3'"), root)
    assert bodies(root) == [b"3"]


@pytest.mark.smoke
def test_rows_are_written_to_a_group(spark: SparkSession, group: Nodes) -> None:
    write(numbers(spark, 1000), group="g", peers=group.peers)
    with dl.connect("g", group.peers) as client:
        status = client.status("n0")
        assert (status.end_index, status.committed_index) == (999, 999)
        assert sorted(entry.body for entry in client.read(0).entries()) == sorted(expected(1000))


# What is rejected before any job


TO_GROUP = {"path": None, "group": "g", "peers": "n0-h:1"}
REJECTED = {
    "unknown option topik: the nearest of a write is topic": {"topik": "x"},
    "option startingOffsets is for reading: leave it out": {"startingOffsets": "latest"},
    "option queueNums: expected an integer from 1 to 16384, found '0'": {"queueNums": "0"},
    "option requiredAcks: expected quorum, found 'all'": {"requiredAcks": "all"},
    "option flush: expected sync or async, found 'never'": {"flush": "never"},
    "expected a path or a group, found path /log and group g": {"group": "g"},
    "option group needs option peers: give both, or a path": {"path": None, "group": "g"},
    "option peers needs option group: give both, or a path": {"path": None, "peers": "n0-h:1"},
    "expected a path, or group and peers, found neither": {"path": None},
    "expected a local folder to write to, found a URI": {"path": "s3a://bucket/log"},
    "option flush is for a path, this is a write to a group": {**TO_GROUP, "flush": "sync"},
    "option selfId is for a path, this is a write to a group": {**TO_GROUP, "selfId": "n0"},
    "tlsCert, tlsKey and tlsCa together, found no tlsCert and no tlsCa": {"tlsKey": "key.pem"},
    "listen: expected an address that the certificate names (tlsCert), found 0.0.0.0": {
        "listen": "0.0.0.0", "tlsCert": "c", "tlsKey": "k", "tlsCa": "a"
    },
    "tlsCert, tlsKey and tlsCa together, found no tlsKey and no tlsCa": {**TO_GROUP, "tlsCert": "c.pem"},
}  # fmt: skip


@pytest.mark.parametrize("problem", REJECTED)
def test_options_that_are_rejected(problem: str) -> None:
    with pytest.raises(dl.OptionError, match=re.escape(problem)):
        parse_write_options({"path": "/log", **REJECTED[problem]})


def test_write_options_are_the_fields_of_the_parsed_ones() -> None:
    given = {option.name: option.default for option in WRITE_OPTIONS}
    of_groups = ("group", "peers", "tlsCert", "tlsKey", "tlsCa")
    parsed = parse_write_options({"PATH": "file:/log", **{key: given[key] for key in given if key not in of_groups}})
    assert parsed == WriteOptions(path="/log")
    assert {option.field for option in WRITE_OPTIONS} == set(WriteOptions.__dataclass_fields__) - {"path"}


SHAPES = {
    "column extra cannot be written: expected the column body of raw entries": ("body string, extra int", {}),
    "column tag cannot be written: expected the columns of messages, the nearest is tags": (
        "topic string, body string, tag string", {}
    ),
    "expected a column body, found text": ("text string", {"ignore_extra_columns": True}),
    "columns value and body are both the body of a message": ("value string, body string, topic string", {}),
    "columns keys and key are both the keys of a message": ("keys string, key binary, body string, topic string", {}),
    "column key cannot be written: expected the column body of raw entries": ("key string, value string", {}),
    "column keys: expected string, binary or array<string>, found array<int>": (
        "topic string, body string, keys array<int>", {}
    ),
    "column headers: expected array<struct<key:string,value:binary>>, found map<string,string>": (
        "topic string, value string, headers map<string,string>", {}
    ),
    "column offset cannot be written: expected the columns of messages": (
        "topic string, value binary, offset bigint", {}
    ),
    "column body: expected binary or string, found int": ("body int", {}),
    "column body is there twice": ("body string, Body string", {}),
    "column queueId: expected int, found string": ("topic string, body string, queueId string", {}),
    "column properties: expected map<string,string>, found map<string,int>": (
        "topic string, body string, properties map<string,int>", {}
    ),
    "column bornTimestamp: expected timestamp, or long in milliseconds, found timestamp_ntz": (
        "topic string, body string, bornTimestamp timestamp_ntz", {}
    ),
    "messages need a topic: give a column topic": ("body string", {"write_as": "message"}),
    "option topic: expected a topic of %.*, found byte 32 in it": ("body string", {"topic": "not one"}),
    "option topic does not apply to raw entries": ("body string", {"write_as": "raw", "topic": "T"}),
    "column topic cannot be written: expected the column body": ("topic string, body string", {"write_as": "raw"}),
}  # fmt: skip


@pytest.mark.usefixtures("spark")  # it parses the schemas
@pytest.mark.parametrize("problem", SHAPES)
def test_columns_that_cannot_be_written(problem: str) -> None:
    schema, options = SHAPES[problem]
    with pytest.raises(dl.OptionError, match=problem):
        row_format(StructType.fromDDL(schema), WriteOptions(path="/log", **options))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("schema", "options", "is_message", "columns"),
    [
        ("body string", {}, False, ["body"]),
        ("Body binary, Topic string", {}, True, ["body", "topic"]),
        ("body string", {"topic": "T"}, True, ["body"]),
        ("value string", {}, False, ["value"]),
        ("topic string, body string", {"topic": "T"}, True, ["body"]),
        ("topic string, body string", {"write_as": "raw", "ignore_extra_columns": True}, False, ["body"]),
        ("body string, QUEUEID bigint, bornTimestamp timestamp, topic string, properties map<string,string>", {},
         True, ["body", "queueId", "bornTimestamp", "topic", "properties"]),
        ("key binary, value binary, topic string, headers array<struct<key:string,value:binary>>", {},
         True, ["key", "value", "topic", "headers"]),
    ],
)  # fmt: skip
def test_columns_choose_the_format(schema: str, options: dict[str, Any], is_message: bool, columns: list[str]) -> None:
    rows = row_format(StructType.fromDDL(schema), WriteOptions(path="/log", **options))
    assert (rows.is_message, [name for _, name in rows.columns]) == (is_message, columns)


@pytest.mark.smoke
def test_rejected_write_starts_no_job_and_leaves_nothing(spark: SparkSession, root: Path) -> None:
    with pytest.raises(PySparkException) as error:
        write(numbers(spark, 10).withColumn("extra", F.lit(1)), root)
    assert sentence(error.value).startswith("column extra cannot be written: expected the column body of raw entries")
    with pytest.raises(PySparkException) as error:
        write(numbers(spark, 10), root, maxPartitionBytes="1m")
    assert sentence(error.value).startswith("option maxPartitionBytes is for reading: leave it out")
    assert not root.exists()


def test_overwrite_is_rejected_with_the_reason(spark: SparkSession, root: Path) -> None:
    write_small(numbers(spark, 10, 1), root)
    with pytest.raises(PySparkException) as error:
        numbers(spark, 10).write.format("dledger").mode("overwrite").save(str(root))
    assert sentence(error.value).startswith("mode overwrite is not possible: a log is append-only")
    for mode in ("error", "ignore"):
        with pytest.raises(PySparkException, match="cannot be written"):
            numbers(spark, 10).write.format("dledger").mode(mode).save(str(root))
    assert bodies(root) == expected(10)


def test_write_option_on_a_read_is_rejected(spark: SparkSession, root: Path) -> None:
    with pytest.raises(PySparkException) as error:
        spark.read.format("dledger").option("queuenums", 4).load(str(root))
    assert sentence(error.value) == "option queueNums is for writing: leave it out of a read"


def test_path_with_several_nodes_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    for node in ("n0", "n1"):
        (tmp_path / f"dledger-{node}").mkdir()
    with pytest.raises(PySparkException) as error:
        write(numbers(spark, 10), tmp_path)
    assert "found n0, n1: they are members of a group" in sentence(error.value, dl.StoreError)


# What a failure leaves


def test_error_names_the_row_and_the_store_is_released(spark: SparkSession, root: Path) -> None:
    frame = spark.range(0, 20, 1, 1).selectExpr("if(id = 13, repeat('x', 5000000), string(id)) body")
    with pytest.raises(PySparkException, match=r"partition 0: row 13: expected a body"):
        write_small(frame, root)
    assert is_free(root)
    write_small(numbers(spark, 10, 1), root)
    assert bodies(root) == expected(10)


def test_failed_job_leaves_what_its_tasks_wrote(spark: SparkSession, root: Path) -> None:
    """The second partition fails after the first was written."""
    frame = numbers(spark, 40_000, 1).union(
        spark.range(0, 1, 1, 1).selectExpr("if(id = 0, raise_error('on purpose'), '') body")
    )
    with pytest.raises(PySparkException, match="on purpose"):
        write_small(frame.coalesce(1), root)
    left = bodies(root, all_committed=False)  # the next job commits the last ones
    assert left == expected(len(left))
    assert is_free(root)
    write_small(numbers(spark, 10, 1), root)
    assert bodies(root) == left + expected(10)


def test_body_larger_than_a_data_file_is_rejected_by_the_node(spark: SparkSession, root: Path) -> None:
    with pytest.raises(PySparkException, match=r"partition 0: .*it may be larger than a data file of its store"):
        write_small(spark.range(1).selectExpr("repeat('x', 2000000) body").coalesce(1), root)
    assert bodies(root) == []


# Messages


MESSAGE = (
    "string(id) body",
    "concat('T', id % 2) topic",
    "if(id % 3 = 0, null, string(id)) keys",
    "if(id % 2 = 0, 'A', null) tags",
    "map('a', string(id), 'b', null) properties",
    "if(id % 5 = 0, 3L, null) queueId",
    "int(id) flag",
    "timestamp_millis(1784603520000 + id) bornTimestamp",
    "if(id % 7 = 0, 'rollback', null) transaction",
)


@pytest.mark.smoke
def test_messages_are_read_back_with_all_columns(spark: SparkSession, root: Path) -> None:
    write_small(spark.range(0, 100, 1, 2).selectExpr(*MESSAGE), root)
    columns = "kind string, problem string, committed boolean, body string, topic string, keys string, tags string, "
    columns += "queueId int, queueOffset long, flag int, bornTimestamp timestamp, transaction string, "
    columns += "properties map<string,string>, pos long, commitLogOffset long"
    log = spark.read.format("dledger").schema(columns.replace("body string", "body binary")).load(str(root))
    rows = {int(row.body): row for row in log.collect()}
    assert sorted(rows) == list(range(100))
    for id_, row in rows.items():
        assert (row.kind, row.problem, row.committed) == ("message", None, True)
        assert (row.topic, row.flag) == (f"T{id_ % 2}", id_)
        assert (row.keys, row.tags) == (None if id_ % 3 == 0 else str(id_), "A" if id_ % 2 == 0 else None)
        assert row.queueId == 3 if id_ % 5 == 0 else 0 <= row.queueId < 4
        assert row.transaction == ("rollback" if id_ % 7 == 0 else "none")
        assert row.properties["a"] == str(id_) and "b" not in row.properties
        assert row.bornTimestamp.timestamp() * 1000 == pytest.approx(1784603520000 + id_, abs=0.01)
        assert row.commitLogOffset == row.pos + 48
    queues: dict[tuple[str, int], list[int]] = {}
    for row in sorted(rows.values(), key=lambda row: row.pos):
        if row.transaction == "none":
            queues.setdefault((row.topic, row.queueId), []).append(row.queueOffset)
    assert all(offsets == list(range(len(offsets))) for offsets in queues.values())
    # The broker's files agree with the log.
    assert spark.read.format("dledger").option("table", "audit").load(str(root)).count() == 0
    assert spark.read.format("dledger").option("table", "consumeQueue").load(str(root)).count() == sum(
        map(len, queues.values())
    )


def test_second_job_with_the_same_rows_writes_them_again(spark: SparkSession, root: Path) -> None:
    """Each job has its own identity."""
    for _ in range(2):
        write_small(numbers(spark, 50), root, topic="T", queueNums=1)
    rows = spark.read.format("dledger").schema("body binary, queueOffset long").load(str(root)).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(2 * expected(50))
    assert [row.queueOffset for row in rows] == list(range(100))


def test_error_names_the_row_that_is_no_message(spark: SparkSession, root: Path) -> None:
    frame = spark.range(0, 20, 1, 1).selectExpr("string(id) body", "if(id = 13, 'no topic', 'T') topic")
    with pytest.raises(PySparkException, match=r"partition 0: row 13: expected a topic of .*found byte 32 in it"):
        write_small(frame, root)
    assert bodies(root) == []


def test_leader_without_messages_rejects_them(spark: SparkSession, group: Nodes) -> None:
    with pytest.raises(PySparkException, match=r"UNSUPPORTED|RocketMQ producer"):
        write(numbers(spark, 10), group="g", peers=group.peers, topic="T")
    with dl.connect("g", group.peers) as client:
        assert client.status("n0").end_index == -1


# Streams


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Callable[[int, int], DataFrame]:
    """Return a stream of files with so many numbers each."""

    def make(files: int, rows: int) -> DataFrame:
        folder = str(tmp_path / "source")
        for number in range(files):
            numbers(spark, (number + 1) * rows).where(f"int(body) >= {number * rows}").write.mode("append").text(folder)
        reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 4)
        return reader.text(folder).withColumnRenamed("value", "body")

    return make


def run(frame: DataFrame, checkpoint: Path, path: object = None, **options: Any) -> None:
    writer = frame.writeStream.format("dledger").options(checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(availableNow=True).start(None if path is None else str(path))
    query.awaitTermination()


@pytest.mark.smoke
def test_stream_of_raw_entries(source: Callable[[int, int], DataFrame], root: Path, tmp_path: Path) -> None:
    run(source(4, 50), tmp_path / "checkpoint", root, leaseMs=1000, **SMALL)
    assert sorted(bodies(root)) == sorted(expected(200))


def test_task_that_waits_for_longer_than_the_lease(spark: SparkSession, root: Path) -> None:
    """`make sink-faults` holds it for 3 minutes."""
    held, lease = (180, 30_000) if os.environ.get("DLEDGER_SINK_HELD") else (2.5, 1000)
    frame = numbers(spark, 4, 1).select(held_for(held)("body").alias("body"))
    write_small(frame.union(numbers(spark, 1, 1)), root, leaseMs=lease)
    assert sorted(bodies(root)) == sorted([*expected(4), b"0"])


def held_for(seconds: float) -> Callable[[str], Column]:
    @F.udf("string")
    def held(body):  # type: ignore[no-untyped-def]  # PySpark takes hints for kinds of functions
        time.sleep(seconds if body == "1" else 0)
        return body

    return held


def test_stream_to_a_group(source: Callable[[int, int], DataFrame], group: Nodes, tmp_path: Path) -> None:
    run(source(2, 50), tmp_path / "checkpoint", group="g", peers=group.peers)
    with dl.connect("g", group.peers) as client:
        assert sorted(entry.body for entry in client.read(0).entries()) == sorted(expected(100))
