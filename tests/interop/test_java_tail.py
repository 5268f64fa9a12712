"""Our stream tails the store of a real RocketMQ broker under load, through kills and restarts.

The suite runs one course. DLEDGER_INTEROP=SECONDS kills a broker repeatedly for that long, and stops a group of two
from committing (DLEDGER_INTEROP_SEED is the seed).
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.interop.java_broker import VERSION, Cluster, Consumed, Sent, cluster
from tests.interop.java_stores import prepare
from tests.support.dispatching import audit
from tests.support.groups import eventually
from tests.support.long_runs import SECONDS, SEED

TOPIC = "Tailed"
# The first batch of a stream takes Spark long on a loaded machine.
PATIENCE = 180
COLUMNS = ("index", "queueId", "queueOffset", "commitLogOffset", "offsetMsgId", "body", "committed")


class Row(NamedTuple):
    """A row of the stream."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    queue_id: int
    queue_offset: int
    physical_offset: int
    offset_msg_id: str
    body: bytes
    committed: bool

    @property
    def consumed(self) -> Consumed:
        place = self.queue_id, self.queue_offset, self.physical_offset
        return Consumed(self.body.decode(), *place, crc32(self.body))


class Tail:
    """A streaming query on a store, and its rows so far in order of arrival."""

    def __init__(self, spark: SparkSession, root: Path, checkpoint: Path) -> None:
        self._batches: dict[int, list[Row]] = {}
        self._lock = threading.Lock()
        rows = spark.readStream.format("dledger").option("startingOffsets", "earliest").option("topic", TOPIC)
        writer = rows.load(str(root)).select(*COLUMNS).writeStream.foreachBatch(self._store_batch)
        self._query = writer.option("checkpointLocation", str(checkpoint)).start()

    def _store_batch(self, batch: DataFrame, number: int) -> None:
        """Stores a batch. A batch that repeats after a restart replaces its earlier rows."""
        rows = [Row(*row) for row in batch.collect()]
        with self._lock:
            self._batches[number] = rows

    @property
    def rows(self) -> list[Row]:
        """Returns all rows. Raises the query's exception if it failed."""
        if failed := self._query.exception():
            raise failed
        with self._lock:
            return [row for number in sorted(self._batches) for row in self._batches[number]]

    def stop(self) -> None:
        """Stops between two batches if possible: Spark logs a very long trace for an interrupted batch."""
        until = time.monotonic() + PATIENCE
        while self._query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(0.01)
        self._query.stop()


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    for program in ("RunBroker", "RunClients"):
        prepare(program, VERSION, VERSION)


@contextmanager
def tail_under_load(spark: SparkSession, brokers: Cluster, node: str, folder: Path) -> Iterator[Tail]:
    """Runs load on a broker and tails its store."""
    brokers.clients.send_first(TOPIC)
    tail = Tail(spark, brokers.root(node), folder / "checkpoint")
    try:
        brokers.clients.start_load(TOPIC, 4)
        yield tail
    finally:
        tail.stop()


def check_rows(tail: Tail, brokers: Cluster, node: str, sent: list[Sent]) -> None:
    """Checks that consumed messages are rows, once and in order, and that acknowledged messages are rows.

    A consumer may get fewer: a broker killed under load can skip messages that it had not dispatched.
    """

    def rows_as_consumed() -> tuple[list[Row], set[int]]:
        # Dispatch is a moment later than commit, and follows a restart under load.
        consumed, rows, skipped = brokers.clients.consume(TOPIC), tail.rows, in_no_queue(brokers.root(node))
        assert sorted(row.consumed for row in rows if row.physical_offset not in skipped) == sorted(consumed)
        return rows, skipped

    rows, skipped = eventually(rows_as_consumed, PATIENCE)
    assert [row.index for row in rows] == sorted({row.index for row in rows})
    assert all(row.committed for row in rows)
    # A broker that skipped messages reuses their queue offsets.
    if not skipped:
        assert {row.queue_id: row.queue_offset + 1 for row in rows} == brokers.clients.max_offsets(TOPIC)
    found = {row.body: row for row in rows}
    assert len(found) == len(rows) > len(skipped)
    for each in sent:
        row = found[b"%d" % each.number]
        assert (row.queue_id, row.queue_offset, row.offset_msg_id) == each[1:]


def in_no_queue(root: Path) -> set[int]:
    """Returns the offsets of messages missing from the ConsumeQueues, as found by an audit."""
    found = [row for row in audit(root) if (row["code"], row["topic"]) == ("messageNotInQueue", TOPIC)]
    return {row["commitLogOffset"] for row in found}


def test_stream_has_every_message_of_a_broker_once(spark: SparkSession, tmp_path: Path) -> None:
    """The broker is killed under load and restarted; the stream continues."""
    with cluster(tmp_path) as brokers, tail_under_load(spark, brokers, "n0", tmp_path) as tail:
        brokers.clients.wait_for(200)
        eventually(lambda: len(tail.rows) >= 100, PATIENCE)
        brokers.kill()
        before = len(tail.rows)
        brokers.start()
        brokers.clients.wait_for(200)
        eventually(lambda: len(tail.rows) > before, PATIENCE)
        check_rows(tail, brokers, "n0", brokers.clients.end_load())


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS kills a broker for so long")
def test_stream_of_a_broker_killed_repeatedly(spark: SparkSession, tmp_path: Path) -> None:
    """The stream continues through all kills and restarts of the broker."""
    choice, ends = random.Random(SEED), time.monotonic() + SECONDS
    with cluster(tmp_path) as brokers, tail_under_load(spark, brokers, "n0", tmp_path) as tail:
        while time.monotonic() < ends:
            brokers.clients.wait_for(choice.randrange(1, 2000))
            time.sleep(choice.random())
            brokers.kill()
            time.sleep(choice.random() * 4)
            assert tail.rows is not None
            brokers.start()
        check_rows(tail, brokers, "n0", brokers.clients.end_load())


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS keeps two brokers from committing")
def test_stream_has_committed_rows_only(spark: SparkSession, tmp_path: Path) -> None:
    """The second broker is suspended: later messages of the master are not committed and give no rows."""
    with cluster(tmp_path, 2) as brokers:
        master = brokers.master()
        other = next(node for node in brokers.brokers if node != master)
        with tail_under_load(spark, brokers, master, tmp_path) as tail:
            brokers.clients.wait_for(500)
            eventually(lambda: len(tail.rows) >= 500, PATIENCE)
            brokers.brokers[other].send_signal(signal.SIGSTOP)
            leader = brokers.brokers[master]
            eventually(lambda: leader.state()["end"] > leader.state()["committed"])
            # Messages in flight at the suspension may still be acknowledged.
            time.sleep(0.5)
            committed = leader.state()["committed"]
            time.sleep(4)
            assert leader.state()["end"] > committed == leader.state()["committed"]
            assert max(row.index for row in tail.rows) <= committed
            brokers.brokers[other].send_signal(signal.SIGCONT)
            brokers.clients.wait_for(200)
            eventually(lambda: max(row.index for row in tail.rows) > committed, PATIENCE)
            check_rows(tail, brokers, master, brokers.clients.end_load())
