"""A live group read in batches: which entries a plan has, and what tasks read of them."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, datasource
from pyspark.sql.types import StructType

import pyspark_dledger as dl
from pyspark_dledger.errors import DataLossError, GroupError, OptionError, StoreError
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.log import open_log
from pyspark_dledger.spark.group import group_log, group_plan
from pyspark_dledger.spark.group.group_plan import GroupReader
from pyspark_dledger.spark.group.group_pushdown import GroupPushdownReader
from pyspark_dledger.spark.schema import log_schema
from tests.spark.test_group_stream import append, await_commit, bodies, expire
from tests.support.groups import Nodes, free_ports, nodes, peers_text

FIRST_TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """One node with 900 entries, two thirds of them messages, one second apart. Tests only read them."""
    with nodes(tmp_path_factory.mktemp("group"), 1) as started:
        append(started, bodies())
        await_commit(started, 899)
        yield started


def reader_of(group: Nodes | str, schema: str | None = None, **options: str) -> GroupReader:
    peers = group if isinstance(group, str) else group.peers
    source = dl.DefaultSource({"group": "g", "peers": peers, **options})
    whole = source.schema()
    reader = source.reader(whole if schema is None else type(whole)([whole[name] for name in schema.split()]))
    assert isinstance(reader, GroupReader)
    return reader


def rows(reader: GroupReader) -> list[dict[str, Any]]:
    """Return what tasks read. Reader and parts are pickled, as by Spark."""
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    in_task = pickle.loads(pickle.dumps(reader))
    return [row for part in parts for batch in in_task.read(part) for row in batch.to_pylist()]


def indexes(group: Nodes | str, **options: str) -> list[int]:
    return [row["index"] for row in rows(reader_of(group, "index", **options))]


@pytest.mark.parametrize("extra", [{}, {"topic": "Topic1"}, {"startingTimestamp": "1700000500000"}])
def test_rows_are_those_of_the_store_of_a_member(group: Nodes, extra: dict[str, str]) -> None:
    found = rows(reader_of(group, maxPartitionBytes="300k", **extra))
    log = open_log(group.folder / "dledger-n0")
    expected = [row for batch in log.scan(DEFAULT_NAMES, committedBound="end", **extra) for row in batch.to_pylist()]
    for row in (*found, *expected):
        del row["segment"]
    assert found == expected
    assert len(found) >= 250


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "250", "endingOffsets": "260"}, range(250, 260)),
        ({"startingOffsets": '{"pos": 1}', "endingOffsets": "3"}, range(1, 3)),
        ({"startingOffsets": "895"}, range(895, 900)),
        ({"startingOffsets": "895", "endingOffsets": "5000"}, range(895, 900)),
        ({"startingOffsets": "latest"}, ()),
        ({"endingOffsets": "earliest"}, ()),
        ({"startingOffsets": "900"}, ()),
        ({"startingTimestamp": "1700000890000"}, (890, 892, 893, 895, 896, 898, 899)),
        ({"endingTimestamp": "1700000004000"}, (1, 2)),
        ({"startingTimestamp": "1700000898000", "endingOffsets": "899"}, (898,)),
        ({"startingTimestamp": "1800000000000"}, ()),
    ],
)
def test_range_is_the_one_of_the_options(group: Nodes, options: dict[str, str], expected: Any) -> None:
    assert indexes(group, **options) == list(expected)


def test_times_narrow_the_plan(group: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members' clocks differ: messages within the allowed difference are in the plan, and are filtered."""
    monkeypatch.setattr(group_plan, "_MAX_CLOCK_SKEW", 20_000)
    times = {"startingTimestamp": str(FIRST_TIME + 400_000), "endingTimestamp": str(FIRST_TIME + 500_000)}
    parts = [part.value for part in reader_of(group, "index", **times).partitions()]
    assert (parts[0].first_index, parts[-1].last_index) == (380, 519)
    assert indexes(group, **times) == [index for index in range(400, 500) if index % 3]


def test_pushed_filters_narrow_the_plan(group: Nodes) -> None:
    def planned(*filters: datasource.Filter) -> tuple[list[int], list[Any]]:
        source = reader_of(group, "index topic")
        reader = GroupPushdownReader(
            source.options, StructType([log_schema(False)[name] for name in ("index", "topic")])
        )
        remaining = list(reader.pushFilters(list(filters)))
        parts = reader.partitions()
        found = [row["index"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        return found, [(part.value.first_index, part.value.last_index) for part in parts] + remaining

    last = datasource.GreaterThan(("index",), 890)
    assert planned(last) == (list(range(891, 900)), [(891, 899)])
    topic = datasource.EqualTo(("topic",), "Topic1")
    assert planned(last, topic) == ([893, 895, 899], [(891, 899)])
    assert planned(datasource.LessThan(("index",), 0)) == ([], [])
    assert planned(topic, datasource.EqualTo(("topic",), "Topic0")) == ([], [])


def test_end_is_fixed_when_the_read_is_planned(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as group:
        append(group, [b"a", b"b"])
        reader = reader_of(group, "index")
        parts = reader.partitions()
        append(group, [b"c"])
        assert [row["index"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()] == [0, 1]
        assert indexes(group) == [0, 1, 2]


def test_plan_has_parts_of_the_given_size_and_statistics(group: Nodes) -> None:
    parts = reader_of(group, "index", minPartitions="5").partitions()
    assert len(parts) >= 5
    size = sum(path.stat().st_size for path in (group.folder / "dledger-n0" / "data").iterdir())
    text = str(parts[0].statistics)  # type: ignore[attr-defined]
    assert text.startswith("dledger-statistics rows=900 bytes=")
    assert 0.5 * size < int(text.rstrip(";").rpartition("=")[2]) <= size


def test_empty_group_has_no_rows(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as group:
        group.leader()
        assert indexes(group) == []


def test_expired_entries_are_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nodes(tmp_path, 1, flush="sync") as group:
        append(group, bodies())
        careful, careless = reader_of(group, "index"), reader_of(group, "index", failOnDataLoss="false")
        planned = careful.partitions()
        begin = expire(group)
        with pytest.raises(DataLossError, match=f"expected entries 0 to {begin - 1}, .*plan the read again, or set"):
            list(careful.read(planned[0]))
        assert indexes(group) == list(range(begin, 900))
        with pytest.raises(StoreError, match=f"expected index 0, found the first entry with index {begin}"):
            indexes(group, startingOffsets="0")
        for part in planned:
            part.value = replace(part.value, scan=replace(part.value.scan, fail_on_data_loss=False))
        with caplog.at_level(logging.WARNING):
            found = [row["index"] for part in planned for batch in careless.read(part) for row in batch.to_pylist()]
        assert found == list(range(begin, 900))


def test_entries_of_another_group_are_no_rows(tmp_path: Path) -> None:
    """A group of the same name and addresses took the place of the one that was planned on."""
    with nodes(tmp_path / "old", 1) as old:
        append(old, [b"old %d" % number for number in range(5)])
        reader = reader_of(old, "index", failOnDataLoss="false")
        (part,) = reader.partitions()
    with nodes(tmp_path / "new", 1) as new:
        append(new, [b"new %d" % number for number in range(5)])
        address = replace(part.value.scan.address, peers=new.peers)
        part.value = replace(part.value, scan=replace(part.value.scan, address=address))
        with pytest.raises(StoreError, match=r"expected index 4 .* as planned, found index 4 .*: another group"):
            list(reader.read(part))


def test_dead_group_is_an_error_soon_with_that_of_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_log, "MAX_FIRST_WAIT", 0.3)
    begun = time.monotonic()
    with pytest.raises(GroupError, match=r"no member responded within 0 s: .*reach n0: .*; .*reach n1: .*; .*n2: "):
        reader_of(peers_text(free_ports(3))).partitions()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"peers": None}, "option group needs option peers"),
        ({"path": "/data"}, "a path and options group and peers are both given"),
        ({"table": "segments"}, "option table has no effect on spark.read of a live group"),
        ({"heal": "true"}, "option heal has no effect on spark.read of a live group"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger has no effect on spark.read of a live group"),
        ({"isolationLevel": "read_uncommitted"}, "committed entries only"),
    ],
)
def test_options_for_a_store_are_rejected(options: dict[str, Any], match: str) -> None:
    source = dl.DefaultSource({"group": "g", "peers": "n0-127.0.0.1:20911", **options})
    with pytest.raises(OptionError, match=match):
        source.reader(source.schema())


def test_query_reads_a_group(spark: SparkSession, group: Nodes) -> None:
    frame = spark.read.format("dledger").option("group", "g").option("peers", group.peers).load()
    assert frame.where("topic = 'Topic1'").count() == 300
    assert frame.agg({"index": "max"}).collect()[0][0] == 899
