"""Streams of a cluster: which messages a micro-batch has, also after a retry, a restart or a change of the cluster."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from pyspark_dledger.cluster import cluster as cluster_module
from pyspark_dledger.cluster import tail as tail_module
from pyspark_dledger.cluster.offsets import ClusterOffsets, from_checkpoint, limited
from pyspark_dledger.errors import ClusterError, DataLossError, OptionError
from pyspark_dledger.log.tail.tail import NO_LIMITS, Limits
from pyspark_dledger.spark.cluster.cluster_readers import ClusterStreamReader
from pyspark_dledger.spark.stream import stream_reader as stream_reader_module
from tests.support.cluster_reads import Key, keys, keys_of, queue_of, rows, stream_reader, tail_of
from tests.support.fake_cluster import FakeServer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MAX_WAIT", 0.5)
    monkeypatch.setattr(tail_module, "MAX_WAIT", 0.5)
    monkeypatch.setattr(cluster_module, "MAX_PAUSE", 0.1)


def batch(reader: ClusterStreamReader, start: Any, limit: int | None = None) -> tuple[Any, list[Key]]:
    """The end of a micro-batch, as Spark stores it, and its rows."""
    tail = tail_of(reader)
    end = tail.latest(reader.offset(start), Limits(entries=limit)).to_json()
    end = json.loads(json.dumps(end))
    return end, keys(rows(reader, reader.partitions(start, end)))


@pytest.mark.parametrize(("options", "first"), [({"startingOffsets": "earliest"}, 0), ({}, 10)], ids=str)
def test_the_start_is_pinned_and_the_rows_come_after_it(
    server: FakeServer, options: dict[str, str], first: int
) -> None:
    server.add("Orders", 0, 10)
    reader = stream_reader(server.address, topic="Orders", **options)
    start, nothing = batch(reader, reader.initialOffset())
    assert (start, nothing) == ({"Orders": {"b": {"0": first}}}, [])
    server.add("Orders", 0, 5)
    end, found = batch(reader, start)
    assert (end, found) == ({"Orders": {"b": {"0": 15}}}, keys_of("b", "Orders", 0, range(first, 15)))
    assert batch(reader, end) == (end, [])
    reader.stop()


def test_a_batch_that_is_planned_again_has_the_same_rows(server: FakeServer) -> None:
    server.add("Orders", 0, 50)
    reader = stream_reader(server.address, topic="Orders", startingOffsets="earliest")
    start, _ = batch(reader, {})
    end, found = batch(reader, start)
    server.add("Orders", 0, 50)
    again = stream_reader(server.address, topic="Orders")
    assert keys(rows(again, again.partitions(start, end))) == found
    server.expire("Orders", 0, 10)
    with pytest.raises(DataLossError, match="expected messages from offset 0 on"):
        rows(again, again.partitions(start, end))


def test_new_queues_and_topics_are_read_from_their_begin(server: FakeServer) -> None:
    server.add("Orders", 0, 10)
    reader = stream_reader(server.address, topicPattern="Ord.*")
    start, _ = batch(reader, {})
    server.add("Orders", 1, 4)
    server.add("Ordinary", 0, 3)
    pinned, nothing = batch(reader, start)
    assert nothing == []
    server.add("Orders", 0, 1)
    _, found = batch(reader, pinned)
    assert found == [
        *keys_of("b", "Orders", 0, range(10, 11)),
        *keys_of("b", "Orders", 1, range(4)),
        *keys_of("b", "Ordinary", 0, range(3)),
    ]


def test_limits_share_a_batch_in_proportion(server: FakeServer) -> None:
    server.add("Orders", 0, 300)
    server.add("Orders", 1, 100)
    server.add("Orders", 2, 2)
    reader = stream_reader(server.address, topic="Orders", startingOffsets="earliest")
    end, _ = batch(reader, {})
    sizes, found = [], []
    while True:
        end, some = batch(reader, end, limit=100)
        if not some:
            break
        sizes.append(len(some))
        found += some
    assert sizes == [100, 100, 100, 100, 2]
    expected = [
        key for queue, count in ((0, 300), (1, 100), (2, 2)) for key in keys_of("b", "Orders", queue, range(count))
    ]
    assert sorted(found) == sorted(expected)


def test_limited_never_exceeds_the_limit_and_always_reads_something() -> None:
    start = ClusterOffsets({queue_of(number): 5 for number in range(1000)})
    end = ClusterOffsets({queue_of(number): 5 + number % 3 for number in range(1000)})
    for limit in (1, 7, 500, 5000):
        got = limited(start, end, limit)
        assert sum(got.values()) - sum(start.values()) == min(limit, sum(end.values()) - sum(start.values()))
        assert all(start[queue] <= got[queue] <= end[queue] for queue in end)


def test_available_now_ends_where_the_queues_ended(server: FakeServer) -> None:
    server.add("Orders", 0, 10)
    reader = stream_reader(server.address, topic="Orders", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    server.add("Orders", 0, 10)
    start = reader.latestOffset({}, None)
    end = reader.latestOffset(start, None)
    assert end == {"Orders": {"b": {"0": 10}}}
    assert reader.latestOffset(end, None) == end


def test_progress_has_the_lag_of_each_queue(server: FakeServer) -> None:
    server.add("Orders", 0, 30)
    reader = stream_reader(server.address, topic="Orders", startingOffsets="earliest")
    start, _ = batch(reader, {})
    batch(reader, start, limit=10)
    assert reader.reportLatestOffset() == {"lagEntries": 20, "entries": 10, "lag": {"Orders": {"b": {"0": 20}}}}


def test_read_offsets_are_reported_for_a_group(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server.add("Orders", 0, 30)
    silent = stream_reader(server.address, topic="Orders")
    silent.commit({"Orders": {"b": {"0": 5}}})
    assert not server.committed
    reader = stream_reader(server.address, topic="Orders", consumerGroup="g")
    reader.commit({"Orders": {"b": {"0": 20}}})
    assert server.committed == {("Orders", 0): 20}
    server.change = lambda *_: (1, {}, b"")
    with caplog.at_level(logging.WARNING):
        reader.commit({"Orders": {"b": {"0": 21}}})
    assert "the offsets of group g are not reported" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_a_broker_that_goes_away_is_waited_for(server: FakeServer, fails: bool) -> None:
    server.add("Orders", 0, 10)
    server.brokers["c"] = {0: server.address}
    options = {"topic": "Orders", "startingOffsets": "earliest", "failOnDataLoss": str(fails).lower()}
    reader = stream_reader(server.address, **options)
    start, _ = batch(reader, {})
    assert set(start["Orders"]) == {"b", "c"}
    del server.brokers["c"]
    if fails:
        with pytest.raises(
            ClusterError, match="expected queue 0 of topic Orders at broker c and 0 more queues, found no"
        ):
            batch(reader, start)
        return
    end, found = batch(reader, start)
    assert (end["Orders"]["c"], found) == ({"0": 0}, keys_of("b", "Orders", 0, range(10)))
    server.brokers["c"] = {0: server.address}
    _, found = batch(reader, end)
    assert found == keys_of("c", "Orders", 0, range(10))


def test_a_queue_that_ends_before_what_was_read_has_lost_messages(server: FakeServer) -> None:
    server.add("Orders", 0, 10)
    start = {"Orders": {"b": {"0": 12}}}
    with pytest.raises(
        DataLossError, match="queue 0 of topic Orders at broker b: expected at least 12 messages, found 10"
    ):
        batch(stream_reader(server.address, topic="Orders"), start)
    reader = stream_reader(server.address, topic="Orders", failOnDataLoss="false")
    end, _ = batch(reader, start)
    assert end == {"Orders": {"b": {"0": 10}}}


def test_checkpoints_of_other_queries_are_rejected() -> None:
    for value in ({"index": 5}, {"Orders": {"b": {"0": "5"}}}, {"Orders": {"b": [1]}}, {"Orders": {"b": {"-1": 1}}}):
        with pytest.raises(OptionError, match="in the checkpoint, found"):
            from_checkpoint(value)
    assert NO_LIMITS.until is None


def test_a_slave_that_lags_has_lost_nothing(server: FakeServer) -> None:
    with FakeServer() as slave:
        for each, count in ((server, 20), (slave, 10)):
            each.add("Orders", 0, count)
            each.brokers["b"] = {0: server.address, 1: slave.address}
        start = {"Orders": {"b": {"0": 15}}}
        reader = stream_reader(server.address, topic="Orders", readFrom="slave")
        assert batch(reader, start) == (start, [])
        server.drop_connections()
        slave.add("Orders", 0, 6)
        end, found = batch(reader, start)
        assert (end, found) == ({"Orders": {"b": {"0": 16}}}, keys_of("b", "Orders", 0, range(15, 16)))


class OldQuery:
    """A query of PySpark 4.0 or 4.1, which asks for an end without the start, and its log of offsets."""

    def __init__(self, server: FakeServer, **options: Any) -> None:
        self._server = server
        self._options = options
        self._log: list[Any] = []

    def run(self, triggers: int) -> list[int]:
        """Start the query, and stop it after so many triggers. Returns the offsets of its rows."""
        reader = stream_reader(self._server.address, topic="Orders", **self._options)
        found: list[int] = []
        start = self._log[-1] if self._log else reader.initialOffset()
        for _ in range(triggers):
            end = reader.latestOffset()
            if end != start:
                found += [row["queueOffset"] for row in rows(reader, reader.partitions(start, end))]
                self._log.append(end)
                start = end
        reader.stop()
        return found


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader_module, "HAS_LIMITS", False)


@pytest.mark.usefixtures("old_spark")
@pytest.mark.parametrize("triggers", [1, 3])
def test_queries_of_old_spark_read_each_message_once_after_restarts(server: FakeServer, triggers: int) -> None:
    query = OldQuery(server, startingOffsets="earliest")
    server.add("Orders", 0, 10)
    assert query.run(triggers) == list(range(10))
    assert query.run(triggers) == []
    server.add("Orders", 0, 5)
    server.expire("Orders", 0, 3)
    assert query.run(triggers) == list(range(10, 15))


@pytest.mark.usefixtures("old_spark")
def test_queries_of_old_spark_read_queues_that_are_new_after_a_restart_from_their_begin(server: FakeServer) -> None:
    query = OldQuery(server)
    server.add("Orders", 0, 10)
    assert query.run(2) == []
    server.add("Orders", 0, 3)
    server.add("Orders", 1, 4)
    assert query.run(4) == [10, 11, 12, 0, 1, 2, 3]
    assert query.run(4) == []


def test_a_pattern_without_topics_reads_the_first_one_from_its_begin(server: FakeServer) -> None:
    server.add("Other", 0, 1)
    reader = stream_reader(server.address, topicPattern="Orders.*")
    start, nothing = batch(reader, reader.initialOffset())
    assert (start, nothing) == ({}, [])
    server.add("Orders1", 0, 100)
    start, nothing = batch(reader, start)
    assert nothing == []
    assert batch(reader, start)[1] == keys_of("b", "Orders1", 0, range(100))


def test_offsets_of_a_group_are_reported_although_a_broker_was_removed(server: FakeServer) -> None:
    server.add("Orders", 0, 20)
    options = {"consumerGroup": "g", "failOnDataLoss": "false", "startingOffsets": "earliest"}
    reader = stream_reader(server.address, topic="Orders", **options)
    end = reader.latestOffset({"Orders": {"a": {"0": 7}, "b": {"0": 3}}}, None)
    began = time.monotonic()
    reader.commit(end)
    assert time.monotonic() - began < 0.4
    assert server.committed == {("Orders", 0): 20}


def test_available_now_goes_on_without_a_deleted_topic(server: FakeServer) -> None:
    server.add("Orders", 0, 20)
    reader = stream_reader(server.address, topic="Orders,Gone", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(ClusterError, match="expected topic Gone"):
        stream_reader(server.address, topic="Orders,Gone").prepareForTriggerAvailableNow()
