"""`Log.reader` and `Log.dataset` have the rows of `Log.scan`, and DuckDB, Polars and pandas read them."""

from __future__ import annotations

import operator
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyarrow.compute import field, scalar

import pyspark_dledger as dl
from pyspark_dledger.errors import MalformedError, OptionError, StoreError
from pyspark_dledger.format.columns import DEFAULT_NAMES, arrow_schema
from pyspark_dledger.log.arrow import parallel
from pyspark_dledger.log.arrow.log_dataset import pushed_of
from pyspark_dledger.log.arrow.parallel import read_parallel
from pyspark_dledger.log.plan import Partition, read_partition
from tests.support.damage import write_at
from tests.support.generate import mq_message, raw, write_dledger

ROWS = 400
SMALL = {"maxPartitionBytes": 4096}
NOON = datetime(2023, 11, 14, 12, tzinfo=timezone.utc)
EXACT = [
    field("topic") == "Pay",
    scalar(3000) < field("pos"),
    field("topic").isin(["Pay", "Orders"]) & (field("queueOffset") >= 0) & (field("pos") <= 40_000),
    field("storeTimestamp") >= NOON,
    field("storeTimestamp") == pa.scalar(1_700_000_000, pa.timestamp("s", "UTC")),
    field("index").isin([1, 7, 100_000]),
    field("committed"),
    ~field("committed"),
    field("kind") != "noop",
    field("kind") == "none of them",
    field("queueId").is_valid(),
    field("topic") == scalar(None),
    pc.if_else(field("topic").is_valid(), field("topic").isin(["Pay"]), pa.scalar(None, pa.bool_())),
]
OTHERS = [
    (field("topic") == "Pay") | (field("index") == 3),
    ~field("topic").isin(["Pay"]),
    ~(field("topic") == "Pay"),
    field("topic").isin(["Pay", None]),
    field("topic").is_null(),
    field("index") > 2.5,
    field("index") + 1 == 4,
    field("queueOffset") == 7,
    pc.starts_with(field("topic"), "Or"),
    field("committed") == field("committed"),
    scalar(False),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> dl.Log:
    """Three segments with messages of two topics, entries and a noop, of which some are not committed."""
    bodies = [mq_message("Pay" if number % 3 else "Orders", b"body %d" % number) for number in range(ROWS)]
    payloads = [*bodies, raw(b"plain"), raw(b"", "noop")]
    path = tmp_path_factory.mktemp("arrow") / "store"
    return dl.open_log(write_dledger(path, payloads, committed=ROWS - 30).path)


@pytest.fixture(scope="module")
def whole(log: dl.Log) -> pa.Table:
    return pa.Table.from_batches(log.scan(), arrow_schema(DEFAULT_NAMES))


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_reader_has_the_rows_of_a_scan(log: dl.Log, whole: pa.Table, threads: int | None) -> None:
    assert log.reader(threads=threads, **SMALL).read_all() == whole
    some = log.reader(["pos", "topic"], threads=threads, ordered=False, **SMALL).read_all()
    assert some.sort_by("pos") == whole.select(["pos", "topic"])
    assert log.reader(topic="None", threads=threads).read_all() == whole.slice(0, 0)
    pending = log.reader(["body"], threads=threads, **SMALL)
    assert pending.read_next_batch().num_rows  # the others are not read


def test_threads_split_the_partitions_of_a_plan(log: dl.Log, whole: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Partition] = []
    monkeypatch.setattr(log, "_read", lambda part: (read.append(part), read_partition(part))[1])
    assert log.reader(threads=1).read_all() == whole
    planned = len(read)
    monkeypatch.setattr(parallel, "_WIDE_PART_BYTES", 4096)
    assert log.reader(threads=3).read_all() == whole
    assert len(read) - planned > 2 * planned


def test_filters_are_pushed_down_exactly(log: dl.Log, whole: pa.Table) -> None:
    picks = random.Random(5)
    mixed = [picks.choice(EXACT) & picks.choice([*EXACT, *OTHERS]) for _ in range(20)]
    for expression in [*EXACT, *OTHERS, *mixed]:
        wanted = whole.filter(expression)
        assert log.reader(filter=expression, **SMALL).read_all() == wanted, str(expression)
        found = log.dataset(**SMALL).to_table(columns=["body"], filter=expression)
        assert found == wanted.select(["body"]), str(expression)
    assert all(pushed_of(expression).is_exact for expression in EXACT[:2] + EXACT[3:])  # type: ignore[union-attr]
    assert not any(pushed_of(expression).is_exact for expression in OTHERS)  # type: ignore[union-attr]
    nested = pushed_of(field("properties", "key") == "x")
    assert nested is None


def test_a_dataset_reads_the_needed_columns_only(log: dl.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = log.dataset()
    asked: list[tuple[Any, ...]] = []
    opened = dataset._open_reader
    monkeypatch.setattr(dataset, "_open_reader", lambda *given: asked.append(given) or opened(*given))
    duckdb.sql("select count(*), max(queueId) from dataset where topic = 'Pay' and pos > 9").fetchall()
    duckdb.sql("select max(pos) from dataset where topic in ('Pay', 'x') and body <> 'x'").fetchall()
    frame = pl.scan_pyarrow_dataset(dataset).filter(pl.col("topic") == "Pay", pl.col("index") < 5).select("pos")
    assert frame.collect().height == 3
    assert [set(columns) for columns, *_ in asked] == [{"queueId"}, {"pos", "topic", "body"}, {"topic", "index", "pos"}]
    assert [filters.topic for _, filters, _ in asked] == [("Pay",), ("Pay", "x"), ("Pay",)]
    assert asked[2][1].index.high == 4


def test_engines_read_a_log(log: dl.Log, whole: pa.Table) -> None:
    messages = log.dataset(**SMALL)
    pay = whole.filter(field("topic") == "Pay").num_rows
    assert duckdb.sql("select count(*) from messages where topic = 'Pay'").fetchall() == [(pay,)]
    reader = log.reader()  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("select count(*) from reader").fetchall() == [(len(whole),)]
    assert duckdb.from_arrow(log.reader(["body"])).aggregate("sum(octet_length(body))").fetchall() == [
        (pc.sum(pc.binary_length(whole["body"])).as_py(),)
    ]
    assert pl.from_arrow(log.reader()).height == len(whole)  # type: ignore[union-attr]
    assert pl.scan_pyarrow_dataset(messages).group_by("topic").len().collect().height == 3
    assert log.reader().read_pandas().shape == (len(whole), len(DEFAULT_NAMES))


def test_engines_read_a_log_without_rows(log: dl.Log) -> None:
    nothing, reader = log.dataset(topic="None"), log.reader(topic="None")  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("select count(*), max(pos) from nothing").fetchall() == [(0, None)]
    assert duckdb.sql("from reader").columns == list(DEFAULT_NAMES)
    assert pl.scan_pyarrow_dataset(nothing).collect().columns == list(DEFAULT_NAMES)
    assert pl.from_arrow(log.reader(topic="None")).shape == (0, len(DEFAULT_NAMES))  # type: ignore[union-attr]
    assert pl.from_arrow(log.reader(["pos"], filter=field("pos") + 0 < 0)).shape == (0, 1)  # type: ignore[union-attr]
    assert nothing.to_table() == log.reader(topic="None").read_all()


def test_a_dataset_has_the_calls_of_pyarrow(log: dl.Log, whole: pa.Table) -> None:
    dataset = log.dataset(includeEntryBody=True)
    assert dataset.schema.names == [*DEFAULT_NAMES, "entryBody"]
    assert dataset.count_rows(filter=field("topic") == "Pay") == whole.filter(field("topic") == "Pay").num_rows
    assert dataset.head(3, columns=["pos"]) == whole.select(["pos"]).slice(0, 3)
    assert dataset.to_table(columns={"next": field("pos") + field("size")}).num_rows == len(whole)
    for call in (dataset.get_fragments, dataset.sort_by, dataset.join, dataset.filter):
        with pytest.raises(NotImplementedError, match="a log has no files of a dataset"):
            call()
    with pytest.raises(FileNotFoundError, match="a log has no files of a dataset"):
        ds.Scanner.from_dataset(dataset).to_table()
    with pytest.raises(KeyError, match="nothing"):
        dataset.to_table(columns=["nothing"])


def test_wrong_calls_are_rejected(log: dl.Log, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="threads: expected 1 or more, found 0"):
        log.reader(threads=0)
    with pytest.raises(OptionError, match="unknown column topics"):
        log.reader(["topics"])
    damaged = write_dledger(tmp_path / "store", [mq_message("Orders", b"x" * 40)] * 60)
    write_at(damaged.segments[0].path, damaged.rows[7]["pos"], b"\x01\x02\x03")
    read = dl.open_log(damaged.path, mode="FAILFAST").reader(["pos"], threads=2, **SMALL)
    with pytest.raises(MalformedError, match="expected magic"):
        read.read_all()


def test_threads_end_with_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_MAX_AHEAD_BYTES", 16)
    batch = pa.record_batch({"number": [1, 2, 3]})

    def read(part: int) -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield batch
        if part == 2:
            raise StoreError("part 2 is damaged")

    before = threading.active_count()
    for is_ordered in (True, False):
        batches = read_parallel(range(5), read, 3, is_ordered=is_ordered)
        assert sum(1 for _ in zip(range(4), batches, strict=False)) == 4
        batches.close()  # type: ignore[attr-defined]
        assert threading.active_count() == before
        with pytest.raises(StoreError, match="part 2 is damaged"):
            list(read_parallel(range(5), read, 3, is_ordered=is_ordered))
        assert threading.active_count() == before
        assert sum(1 for _ in read_parallel([0, 1, 3, 4], read, 3, is_ordered=is_ordered)) == 12
        parts = map(operator.getitem, [{0: 0}, {0: 1}, {}, {0: 3}], [0] * 4)
        with pytest.raises(KeyError):
            list(read_parallel(parts, read, 3, is_ordered=is_ordered))


def test_a_process_exits_with_reads_that_are_not_finished(log: dl.Log) -> None:
    code = f"""
import pyspark_dledger as dl
log = dl.open_log({str(log.path)!r}, maxPartitionBytes=256)
log.dataset().head(3)
readers = [log.reader(threads=8) for _ in range(8)]
for reader in readers:
    reader.read_next_batch()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
