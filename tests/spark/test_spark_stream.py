"""The stream source in Spark: micro-batches, limits, restarts at every point, and errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_dledger.log import open_log
from pyspark_dledger.log.tail.tail import NOTHING, TailOffset
from pyspark_dledger.spark.source import DLedgerDataSource
from pyspark_dledger.spark.stream.stream_reader import _OffsetTracker
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.log.test_tail import commit, forget
from tests.support.crashes import body_of
from tests.support.stores import bodies, opened

PYSPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
# Under load a Python process may take longer to start than the ten seconds that Spark allows.
NO_WORKER = "Python worker failed to connect back"
MAX_TRIES = 5
HAS_LIMITS = PYSPARK >= (4, 2)
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="PySpark 4.0 and 4.1 give a Python source no limit")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MmapFileStore]:
    """Twenty entries, five per file, committed up to 11."""
    found = opened(tmp_path / "store")
    found.save_term(1, "n0")
    found.append_as_leader(bodies(0, 20), 1)
    commit(found, 11)
    yield found
    found.shutdown()


class Sink:
    """A ``foreachBatch`` that keeps each micro-batch by its id. A repeated batch must have the same rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.fault: str | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.trip("before the sink writes")
        found = sorted(row[0] for row in frame.select("index").collect())
        assert self.batches.setdefault(number, found) == found, "a repeated batch has the same rows"
        self.trip("after the sink wrote")

    def trip(self, point: str) -> None:
        if self.fault == point:
            self.fault = None
            raise RuntimeError(point)

    @property
    def rows(self) -> list[int]:
        return [index for number in sorted(self.batches) for index in self.batches[number]]


class Streams:
    """Starts queries over one store with one checkpoint."""

    def __init__(self, spark: SparkSession, store: MmapFileStore, folder: Path) -> None:
        self.spark = spark
        self.path = str(store.config.base_dir)
        self.checkpoint = str(folder / "checkpoint")
        self.sink = Sink()
        self.queries: list[StreamingQuery] = []

    def start(self, source: str = "dledger", trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        frame = self.spark.readStream.format(source).options(**options).load(self.path)
        writer = frame.writeStream.foreachBatch(self.sink).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        self.queries.append(query)
        return query

    def run(self, source: str = "dledger", **options: Any) -> StreamingQuery:
        """Run a query over the present log to its end."""
        for _ in range(MAX_TRIES):
            query = self.start(source, **options)
            try:
                assert query.awaitTermination(300)
            except StreamingQueryException as error:
                if NO_WORKER not in str(error):
                    raise
            else:
                return query
        raise AssertionError(f"{NO_WORKER} {MAX_TRIES} times")


@pytest.fixture
def streams(spark: SparkSession, store: MmapFileStore, tmp_path: Path) -> Iterator[Streams]:
    found = Streams(spark, store, tmp_path)
    yield found
    for query in found.queries:
        query.stop()


def wait_for(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Micro-batches


@needs_limits
def test_trigger_reads_no_more_than_its_limits(streams: Streams) -> None:
    streams.run(startingOffsets="earliest", maxOffsetsPerTrigger=5, maxBytesPerTrigger=4 * 148)
    assert streams.sink.batches == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [8, 9, 10, 11]}


@needs_limits
def test_bytes_alone_limit_a_trigger(streams: Streams) -> None:
    streams.run(startingOffsets="earliest", maxBytesPerTrigger=6 * 148)
    assert streams.sink.batches == {0: list(range(6)), 1: list(range(6, 12))}


@needs_limits
def test_trigger_waits_for_the_minimum(streams: Streams, store: MmapFileStore) -> None:
    trigger = {"processingTime": "0 seconds"}
    query = streams.start(trigger=trigger, startingOffsets="earliest", minOffsetsPerTrigger=8, maxTriggerDelay="1h")
    query.processAllAvailable()
    commit(store, 14)
    query.processAllAvailable()
    assert streams.sink.batches == {0: list(range(12))}
    commit(store, 19)
    wait_for(lambda: streams.sink.batches == {0: list(range(12)), 1: list(range(12, 20))})


@needs_limits
@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "5"}])
def test_trigger_is_delayed_at_most_for_the_given_time(
    store: MmapFileStore, monkeypatch: pytest.MonkeyPatch, limit: dict[str, str]
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    now = 1000.0
    monkeypatch.setattr("pyspark_dledger.spark.stream.stream_reader.time.monotonic", lambda: now)
    options = {"startingOffsets": "10", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "60s", **limit}
    source = DLedgerDataSource({"path": str(store.config.base_dir), **options})
    reader: Any = source.streamReader(source.schema())
    limits = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limits)
    assert end["index"] == 11, "the first trigger is not delayed"
    commit(store, 13)
    assert reader.latestOffset(end, limits) == end
    assert reader.reportLatestOffset()["lagEntries"] == 2
    assert reader.latestOffset(end, ReadAllAvailable())["index"] == 13
    now += 59
    assert reader.latestOffset(end, limits) == end
    now += 1
    end = reader.latestOffset(end, limits)
    assert end["index"] == 13
    commit(store, 16)
    end = reader.latestOffset(end, limits)
    assert end["index"] == 16
    commit(store, 17)
    assert reader.latestOffset(end, limits) == end
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, limits)["index"] == 17, "a query of AvailableNow ends"
    reader.stop()


@needs_limits
def test_a_log_that_grows_while_a_trigger_is_judged_waits_for_the_minimum(
    store: MmapFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"startingOffsets": "10", "minOffsetsPerTrigger": "3"}
    source = DLedgerDataSource({"path": str(store.config.base_dir), **options})
    reader: Any = source.streamReader(source.schema())
    limits = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limits)
    latest = reader.tail.latest

    def grows(*args: Any) -> Any:
        found = latest(*args)
        monkeypatch.setattr(reader.tail, "latest", latest)
        commit(store, 12)
        return found

    monkeypatch.setattr(reader.tail, "latest", grows)
    assert reader.latestOffset(end, limits) == end
    reader.stop()


@pytest.mark.smoke
def test_stream_continues_where_it_stopped(streams: Streams, store: MmapFileStore) -> None:
    streams.run(startingOffsets="earliest")
    commit(store, 14)
    streams.run(startingOffsets="earliest")
    streams.run(startingOffsets="earliest")
    assert streams.sink.rows == list(range(15))


@pytest.mark.smoke
def test_stream_begins_at_latest_by_default_and_reports_its_progress(streams: Streams, store: MmapFileStore) -> None:
    query = streams.start(trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    assert streams.sink.rows == []
    for last in (13, 14, 19):
        commit(store, last)
        wait_for(lambda wanted=list(range(12, last + 1)): streams.sink.rows == wanted)
    query.processAllAvailable()
    sources = [json.loads(progress.json)["sources"][0] for progress in query.recentProgress]
    assert sources[-1]["endOffset"]["index"] == 19
    if HAS_LIMITS:
        expected = {"committed": 19, "end": 19, "lagEntries": 0, "lagBytes": 0, "expired": 0}
        assert expected.items() <= sources[-1]["latestOffset"].items()
        assert sum((source["latestOffset"] or {}).get("entries") or 0 for source in sources) == 8


def test_schema_and_filters_choose_rows_and_columns(
    spark: SparkSession, case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """From old CommitLog across dividedCommitlogOffset into DLedger, written as files."""
    path, out = str(case_folder("mq-53-upgrade")), str(tmp_path / "out")
    reader = spark.readStream.format("dledger").schema("TOPIC string, pos long, index long")
    frame = reader.options(startingOffsets="earliest", topic="OrderTopic").load(path)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(out)
    assert query.awaitTermination(60)
    batch = spark.read.format("dledger").option("topic", "OrderTopic").schema(frame.schema).load(path)
    found = spark.read.parquet(out)
    assert found.columns == ["TOPIC", "pos", "index"]
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, batch.collect()))


def test_store_that_another_process_writes_is_read_once(spark: SparkSession, tmp_path: Path, streams: Streams) -> None:
    streams.path = str(tmp_path / "written")
    code = "\n".join((
        "import sys, time",
        "from pathlib import Path",
        "from tests.support.crashes import body_of, config",
        "from pyspark_dledger.store.mmap_file_store import MmapFileStore",
        "store = MmapFileStore(config(Path(sys.argv[1]), 'async'))",
        "store.startup(services=True)",
        "store.save_term(1, 'n0')",
        "for first in range(0, 3000, 30):",
        "    store.append_as_leader([body_of(first + number, 0) for number in range(30)], 1)",
        "    store.update_committed_index(1, store.ledger_end_index)",
        "    time.sleep(0.02)",
        "store.shutdown()",
    ))  # fmt: skip
    root = Path(__file__).resolve().parent.parent.parent
    writer = subprocess.Popen([sys.executable, "-c", code, streams.path], cwd=root)
    try:
        wait_for((Path(streams.path) / "dledger-n0" / "data").is_dir)
        found: list[tuple[int, bytes]] = []
        frame = spark.readStream.format("dledger").option("startingOffsets", "earliest").load(streams.path)

        def keep(batch: DataFrame, _: int) -> None:
            found.extend((row[0], bytes(row[1])) for row in batch.select("index", "body").collect())

        query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", streams.checkpoint).start()
        streams.queries.append(query)
        wait_for(lambda: len(found) >= 3000)
        query.processAllAvailable()
    finally:
        writer.kill()
        writer.wait()
    assert found == [(index, body_of(index, 0)) for index in range(3000)]


# Restarts


def faulty(folder: Path) -> type[DLedgerDataSource]:
    """Return a source ``faulty``: it fails or is killed once at each point that has a file in `folder`."""

    def trip(point: str) -> None:
        with suppress(FileNotFoundError):
            how = (folder / point).read_text()
            (folder / point).unlink()
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"fault at {point}")

    class Faulty(DLedgerDataSource):
        @classmethod
        def name(cls) -> str:
            return "faulty"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
            reader = super().streamReader(schema)

            class FaultyReader(type(reader)):  # type: ignore[misc]
                def initialOffset(self) -> Any:  # noqa: N802
                    trip("initialOffset")
                    return super().initialOffset()

                def latestOffset(self, start: Any = None, limit: Any = None) -> Any:  # noqa: N802
                    trip("before latestOffset")
                    found = super().latestOffset(start, limit)
                    trip("after latestOffset")
                    return found

                def partitions(self, start: Any, end: Any) -> Any:
                    trip("before partitions")
                    found = super().partitions(start, end)
                    trip("after partitions")
                    return found

                def read(self, partition: Any) -> Any:
                    for batch in super().read(partition):
                        trip("read")
                        yield batch

                def commit(self, end: Any) -> None:
                    trip("commit")
                    super().commit(end)

            reader.__class__ = FaultyReader
            return reader

    return Faulty


POINTS = ["after latestOffset", "after partitions", "read", "after the sink wrote", "commit"]
if os.environ.get("DLEDGER_SINK_FAULTS"):
    # Spark does not ask for the initial offset again after a batch was planned.
    POINTS = ["initialOffset", "before latestOffset", *POINTS, "before partitions", "before the sink writes"]


@pytest.mark.slow
def test_stream_that_fails_anywhere_gives_every_row_once(
    spark: SparkSession, streams: Streams, store: MmapFileStore, tmp_path: Path
) -> None:
    """Fails at one point of a micro-batch after the other, by an error or by a kill of the process.

    `make sink-faults` adds the points that Spark cannot distinguish from these.
    """
    faults = tmp_path / "faults"
    faults.mkdir()
    spark.dataSource.register(faulty(faults))
    options = {"startingOffsets": "earliest"} | ({"maxOffsetsPerTrigger": "4"} if HAS_LIMITS else {})
    kills = {"after latestOffset": "kill", "read": "kill"}
    failed = []
    for point in POINTS:
        if "sink" in point:
            streams.sink.fault = point
        else:
            (faults / point).write_text(kills.get(point, "raise"))
        with pytest.raises(StreamingQueryException):
            streams.run("faulty", **options)
        assert not list(faults.iterdir()) and streams.sink.fault is None, "the fault happened"
        failed.append(point)
        # A later batch fails next.
        store.append_as_leader(bodies(store.ledger_end_index + 1, 6), 1)
        commit(store, store.ledger_end_index)
    assert failed == POINTS
    streams.run("faulty", **options)
    assert streams.sink.rows == list(range(store.ledger_end_index + 1))


@pytest.mark.smoke
def test_first_batch_that_fails_does_not_move_the_start(streams: Streams, store: MmapFileStore) -> None:
    streams.sink.fault = "before the sink writes"
    with pytest.raises(StreamingQueryException):
        streams.run(startingOffsets="latest")
    commit(store, 15)
    streams.run(startingOffsets="latest")
    if not HAS_LIMITS:
        # There a query of AvailableNow that repeats a batch ends after it.
        streams.run(startingOffsets="latest")
    assert streams.sink.rows == [12, 13, 14, 15]


def test_tracker_makes_a_first_end_below_the_start_an_empty_batch() -> None:
    """As on PySpark 4.0 and 4.1 after a restart, if less is known to be committed than before."""
    old, low, new, newer = (TailOffset(index, 1, 100 * index, 7) for index in (9, 5, 12, 15))
    tracker = _OffsetTracker()
    assert tracker.start_of(old, low) == low
    assert tracker.offset == old
    assert tracker.start_of(low, new) == old
    assert tracker.start_of(low, new) == old, "planned again"
    assert tracker.start_of(new, newer) == new
    fresh = _OffsetTracker()
    assert (fresh.start_of(NOTHING, old), fresh.offset) == (NOTHING, old)


# Errors


def test_lost_data_fails_the_query_unless_fail_on_data_loss_is_false(streams: Streams, store: MmapFileStore) -> None:
    streams.run(startingOffsets="earliest")
    forget(store, 8)
    store.append_as_leader(bodies(1000, 6), 1)
    commit(store, 14)
    with pytest.raises(StreamingQueryException, match=r"expected index 11 .* set failOnDataLoss=false"):
        streams.run()
    streams.run(failOnDataLoss="false")
    store.append_as_leader(bodies(15, 2), 1)
    commit(store, 16)
    streams.run()
    assert streams.sink.rows == list(range(17)), "the log continues after index 11"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "5"}, "option endingOffsets has no effect on a stream"),
        ({"startingOffset": "5"}, "unknown option startingoffset: the nearest is startingOffsets"),
        ({"table": "segments"}, "option table has no effect on a stream"),
    ],
)
def test_options_that_a_stream_rejects_are_named_at_its_start(
    streams: Streams, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        streams.run(**options)


@pytest.mark.skipif(HAS_LIMITS, reason="there limits apply")
@pytest.mark.smoke
def test_limits_are_rejected_if_spark_has_none(streams: Streams) -> None:
    with pytest.raises(Exception, match=r"maxOffsetsPerTrigger .* need PySpark 4\.2"):
        streams.run(maxOffsetsPerTrigger=5)


# Checkpoints of releases


@pytest.mark.slow
@pytest.mark.parametrize("release", ["offsets-version-1"])
def test_a_query_continues_with_the_checkpoint_of_a_release(
    spark: SparkSession, tmp_path: Path, case_folder: Callable[[str], Path], release: str
) -> None:
    """It was killed in its third micro-batch of 200 rows, and repeats that one."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(Path(__file__).parent / "checkpoints" / release, checkpoint)
    found: dict[int, list[int]] = {}

    def sink(frame: DataFrame, number: int) -> None:
        found[number] = sorted(row.pos for row in frame.select("pos").collect())

    options = {"startingOffsets": "earliest", "committedBound": "end"}
    reader = spark.readStream.format("dledger").options(**options).schema("index long, pos long")
    writer = reader.load(str(case_folder("mq-53-upgrade"))).writeStream.foreachBatch(sink)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    rows = open_log(case_folder("mq-53-upgrade"), committedBound="end").scan(columns=["pos"])
    positions = sorted(row["pos"] for batch in rows for row in batch.to_pylist())
    assert len(found[2]) == 200
    assert sorted(pos for batch in found.values() for pos in batch) == positions[400:]
