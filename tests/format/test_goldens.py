"""The rows of every store that Java wrote are those of Java's reader, with both engines and every plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_dledger as dl
from pyspark_dledger.format.columns import DEFAULT_NAMES, arrow_schema
from pyspark_dledger.log.options import option_filters, parse_options
from tests.support import golden as goldens
from tests.support.golden import ALL, Golden, Record, assert_same, rows_of
from tests.support.long_runs import some

# Data files of the goldens have 16 to 128 KiB.
PLANS = {
    "whole files": {"maxPartitionBytes": "1g"},
    "three": {"maxPartitionBytes": "1g", "minPartitions": "3"},
    "many": {"maxPartitionBytes": "8k", "maxBatchRows": "7"},
}
SMOKE = {"raw-three.n1", "mq-53-upgrade"}
# Spark reads these in several ways (without Spark all goldens are): an upgrade, terms of -1, a stale checkpoint, data
# folders, NOOP, old entries after the end, the leader's `pos`.
IN_MORE_WAYS = {
    *("mq-53-upgrade", "mq-oldest", "raw-killed", "raw-multipath", "raw-single-040"),
    *("raw-truncated-tail.n1", "raw-040-snapshot-keep.n2"),
}
IN_SPARK = SMOKE | IN_MORE_WAYS | set(map(str, some(ALL, 8)))


def every(chosen: Iterable[Golden]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "golden", [pytest.param(g, marks=pytest.mark.smoke if str(g) in SMOKE else (), id=str(g)) for g in chosen]
    )


every_golden = every(ALL)
killed_brokers = every(g for g in ALL if "killed" in g.case and not g.is_raw)


class Store:
    """An unpacked golden: its path, the options to open it, and the rows of Java's reader."""

    def __init__(self, golden: Golden, folder: Path) -> None:
        self.golden = golden
        self.path = str(folder / golden.folder)
        extra = sorted(folder.glob("path[0-9]"))
        self.options: dict[str, Any] = {"dataDirs": [str(path) for path in extra]} if extra else {}
        own = [path for name in ("data", "commitlog") for path in Path(self.path).rglob(name) if path.is_dir()]
        files = [file for path in (*extra, *own) for file in path.glob("[0-9]" * 20)]
        self.bases = [int(file.name) for file in files]
        self.file_size = max(file.stat().st_size for file in files)
        self.expected = golden.expected()

    def rows(self, committed: int | None, restarted: bool = False) -> list[Record]:
        return self.golden.expected(restarted).rows(committed, self.bases)

    def plan(self, name: str) -> dict[str, str]:
        """One of `PLANS`, or one for Spark, for which a task costs more than reading its part.

        ``cut`` is ``many`` with no more parts than show it: a first part of each file, one of its middle and a last
        one, or halves where there are many files. ``few`` are whole files, some of them together.
        """
        if name == "cut":
            parts = 3 if len(self.bases) <= 8 else 2
            return {**PLANS["many"], "maxPartitionBytes": str(max(8192, self.file_size // parts))}
        if name == "few":
            return {"maxPartitionBytes": str(self.file_size * max(1, len(self.bases) // 4))}
        return PLANS[name]

    def load(self, spark: SparkSession, **options: str) -> DataFrame:
        reader = spark.read.format("dledger").options(**options)
        for name, value in self.options.items():
            reader = reader.option(name, json.dumps(value))
        return reader.load(self.path)


@pytest.fixture
def store(golden: Golden, case_folder: Callable[[str], Path]) -> Store:
    return Store(golden, case_folder(golden.case))


def scan(store: Store, engine: str = "native", **options: Any) -> list[Record]:
    log = dl.open_log(store.path, engine=engine, **store.options)
    return rows_of(pa.Table.from_batches(log.scan(**options), arrow_schema(DEFAULT_NAMES)))


@pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=pytest.mark.slow if plan == "three" else ()) for plan in PLANS]
)
@every_golden
def test_scan(store: Store, engine: str, plan: str) -> None:
    assert_same(scan(store, engine, **PLANS[plan]), store.rows(store.expected.proven))


@every_golden
def test_plans_differ(store: Store) -> None:
    """Otherwise the tests of several plans would be the same test."""
    log = dl.open_log(store.path, **store.options)
    counts = {}
    for name in (*PLANS, "cut", "few"):
        options = parse_options(store.plan(name))
        counts[name] = len(log.plan(DEFAULT_NAMES, options, option_filters(options)))
    size = sum(row["size"] for row in store.rows(None))
    if size > 65536:
        assert counts["three"] >= 3
        assert counts["many"] >= max(3, size // 16384)
        assert counts["cut"] > len(store.bases)
        assert len(store.bases) == 1 or 2 <= counts["few"] <= len(store.bases)


@pytest.mark.parametrize("bound", ["checkpoint", "end", "5"])
@every_golden
def test_committed_bound(store: Store, bound: str) -> None:
    """Java uses `checkpoint`; a given bound is limited by the end of the log."""
    entries = [entry["index"] for entry in store.expected.entries if entry.get("index") is not None]
    end = max(entries, default=None)
    committed = {"checkpoint": store.expected.checkpoint, "end": end}.get(bound, 5)
    assert_same(scan(store, committedBound=bound), store.rows(committed))


@every_golden
def test_read_committed(store: Store) -> None:
    rows = [row for row in store.rows(store.expected.proven) if row["committed"]]
    if any(row["source"] == "dledger" for row in rows) or not store.expected.dledger:
        assert_same(scan(store, isolationLevel="read_committed"), rows)
    else:
        with pytest.raises(dl.StoreError, match="committedBound=end"):
            scan(store, isolationLevel="read_committed")


@every_golden
def test_entry_body(store: Store, engine: str) -> None:
    """The bytes that DLedger replicated: the stored message, or the body if it is no message."""
    log = dl.open_log(store.path, engine=engine, **store.options)
    columns = ("kind", "body", "storeSize", "entryBody")
    rows = rows_of(pa.Table.from_batches(log.scan(columns=columns), arrow_schema(columns)))
    assert len(rows) == len(store.expected.entries)
    for row in rows:
        assert row["entryBody"] == row["body"] if row["kind"] != "message" else row["entryBody"][0] == row["storeSize"]


@killed_brokers
def test_restart_after_a_kill_commits_the_whole_log(store: Store) -> None:
    """The node's log is the same after its start."""
    restarted = store.golden.expected(restarted=True)
    assert restarted.checkpoint == store.expected.dledger["endIndex"]
    assert_same(scan(store, committedBound="end"), store.rows(restarted.checkpoint, restarted=True))


@every_golden
def test_state(store: Store) -> None:
    state = dl.open_log(store.path, **store.options).state
    java = store.expected.dledger
    head = store.expected.head
    rows = store.rows(None)
    assert state.committed_index == store.expected.proven
    assert (state.committed_from in ("checkpoint", "consumeQueue")) == (store.expected.proven is not None)
    assert state.checkpoint_committed_index == store.expected.checkpoint
    if rows:
        assert state.max_offset == rows[-1]["pos"] + rows[-1]["size"]
    if java:
        # Java's begin index of a log without entries is 0.
        assert state.begin_index == (java["beginIndex"] if rows else -1)
        assert (state.end_index, state.end_term) == (java["endIndex"], java["endTerm"])
        assert state.curr_term == java["currTerm"]
    if store.golden.is_raw:
        assert state.vote_leader == head["voteLeader"]
        assert (state.data_file_size, state.index_file_size) == (head["dataFileSize"], head["indexFileSize"])
        assert state.dialect == ("0.4" if "-040-snapshot" in store.golden.case else "0.3")
    else:
        assert state.divided_commitlog_offset == head["dividedCommitlogOffset"]
        assert state.min_offset == head["minPhyOffset"]
        assert state.abort == head["abortFile"]


@every(g for g in ALL if str(g) in IN_SPARK)
def test_spark(spark: SparkSession, store: Store) -> None:
    rows = store.load(spark, engine="native", **store.plan("cut"))
    assert rows.columns == list(DEFAULT_NAMES)
    assert_same(rows_of(rows.toArrow()), store.rows(store.expected.proven))


@pytest.mark.parametrize(("engine", "plan"), some([("python", "cut"), ("native", "three")], 1))
@every(g for g in ALL if str(g) in IN_MORE_WAYS)
def test_spark_with_another_engine_and_plan(spark: SparkSession, store: Store, engine: str, plan: str) -> None:
    rows = store.load(spark, engine=engine, **store.plan(plan))
    assert_same(rows_of(rows.toArrow()), store.rows(store.expected.proven))


@every(g for g in ALL if str(g) in IN_MORE_WAYS)
def test_spark_in_one_task(spark: SparkSession, store: Store) -> None:
    """One task reads all partitions in order."""
    rows = store.load(spark, **store.plan("few")).coalesce(1)
    assert rows.rdd.getNumPartitions() == 1
    assert_same(rows_of(rows.toArrow()), store.rows(store.expected.proven))
    assert store.load(spark).count() == len(store.expected.entries)


def test_unpacked_goldens_keep_their_holes(tmp_path: Path) -> None:
    """Index files of RocketMQ's DLedger are 160 MiB of holes: unpacked densely the goldens would take 2 GB."""
    folder = goldens.unpack("mq-498-single", tmp_path)
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    assert sum(file.st_size for file in files) > 160 * 2**20
    assert sum(file.st_blocks * 512 for file in files) < 20 * 2**20


def test_self_id_chooses_a_node(case_folder: Callable[[str], Path]) -> None:
    folder = str(case_folder("raw-three-diverged"))
    with pytest.raises(dl.StoreError, match=r"n0.*n1.*n2.*selfId|selfId.*n0.*n1.*n2"):
        dl.open_log(folder)
    for node, count in (("n0", 325), ("n1", 360), ("n2", 325)):
        log = dl.open_log(folder, selfId=node)
        assert sum(batch.num_rows for batch in log.scan(columns=["index"])) == count
