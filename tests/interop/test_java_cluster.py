"""Reads and writes of a real cluster: a name server, brokers that are killed while messages are written, and an ACL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

import pyspark_dledger as dl
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.spark.cluster.cluster_write_options import parse_cluster_write_options
from pyspark_dledger.spark.cluster.cluster_writers import ClusterBatchWriter
from pyspark_dledger.spark.sink.task_writer import TaskCommit
from tests.interop.failing_brokers import (
    CONTROLLER_MODE,
    DLEDGER_MODE,
    PLAIN,
    FailingBrokers,
    check_rows,
    failing_brokers,
)
from tests.interop.java_broker import OLDEST_VERSION, SMALL_FILES, VERSION, JavaBroker, JavaClients
from tests.support import golden
from tests.support.cluster_reads import Stream, batch_reader, by_offset, rows
from tests.support.cluster_writes import Task, frame
from tests.support.groups import HOST, eventually
from tests.support.long_runs import takes_long

TOPIC, WRITTEN, REPLAYED = "Orders", "Written", "OrderTopic"
ROWS = 10_000
OTHERS = (
    *((PLAIN, version) for version in (OLDEST_VERSION, "5.5.0")),
    *((DLEDGER_MODE, version) for version in (OLDEST_VERSION, VERSION)),
    *((CONTROLLER_MODE, version) for version in (VERSION, "5.5.0")),
)
USER, PASSWORD = "reader", "a-secret-of-a-test"
WITH_ACL: dict[str, object] = {
    "brokerName": "secure",
    "authenticationEnabled": True,
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": f'{{"username":"{USER}","password":"{PASSWORD}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"{USER}","secretKey":"{PASSWORD}"}}',
}


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[JavaClients]:
    found = JavaClients(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        (PLAIN, VERSION),
        (DLEDGER_MODE, "5.1.4"),
        *(pytest.param(*each, marks=takes_long) for each in OTHERS),
    ],
)
def test_a_stream_has_each_acknowledged_message_once_although_the_master_is_killed(
    kind: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing_brokers(kind, tmp_path, version) as brokers:
        clients = brokers.clients
        clients.send_first(TOPIC)
        clients.start_load(TOPIC, 2)
        stream = Stream(brokers.address, topic=TOPIC)
        eventually(lambda: stream.trigger() > 0)
        clients.wait_for(500)
        brokers.kill_master()
        if kind == PLAIN:
            brokers.restart()
        stream.trigger()
        clients.wait_for(500)
        brokers.restart()
        sent = clients.end_load()
        found = stream.finish()
        check_rows(found, sent, clients.consume(TOPIC))
        check_times(brokers.address, found)
        monkeypatch.setattr(TaskContext, "get", lambda: Task({"partition": 0}))
        check_sink(brokers, kind)
        if (kind, version) == (PLAIN, VERSION):
            clients.send_first(REPLAYED)
            check_replay(brokers.address, tmp_path)


def check_times(address: str, found: list[dict[str, Any]]) -> None:
    """Batch reads by time divide the rows of the stream."""
    assert by_offset(rows(batch_reader(address, topic=TOPIC))) == by_offset(found)
    times = sorted(row["storeTimestamp"] for row in found)
    middle = times[len(times) // 2]
    later = rows(batch_reader(address, topic=TOPIC, startingTimestamp=middle))
    assert len(later) == sum(time >= middle for time in times)
    earlier = rows(batch_reader(address, topic=TOPIC, endingTimestamp=middle))
    assert len(earlier) + len(later) == len(times)


def check_sink(brokers: FailingBrokers, kind: str) -> None:
    """All rows of a sink are there although the master is killed while it writes, and one UNIQ_KEY tells duplicates."""
    brokers.clients.send_first(WRITTEN)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, ROWS, ROWS // 20):
            if start == ROWS // 2:
                brokers.kill_master()
                if kind == PLAIN:
                    brokers.restart()
            yield frame({"body": [b"%d" % number for number in range(start, start + ROWS // 20)]})[0]

    # The next master may not have heard of the topic (RocketMQ issue 9804).
    assert write(brokers.address, batches(), autoCreate="true") == ROWS
    delayed, schema = frame({"body": [b"delayed"], "delayLevel": [1]})
    assert write(brokers.address, iter([delayed]), schema, autoCreate="true") == 1

    def found() -> list[dict[str, Any]]:
        return [row for row in rows(batch_reader(brokers.address, topic=WRITTEN)) if row["tags"] is None]

    bodies = {b"%d" % number for number in range(ROWS)} | {b"delayed"}
    eventually(lambda: {row["body"] for row in found()} == bodies, 60)
    keys = {(row["uniqKey"], row["body"]) for row in found()}
    assert len(keys) == len({key for key, _ in keys}) == len(bodies)


def write(address: str, batches: Iterator[pa.RecordBatch], schema: StructType | None = None, **options: Any) -> int:
    given = parse_cluster_write_options({"nameServer": address, "topic": WRITTEN, **options})
    written = ClusterBatchWriter(given, schema or frame({"body": []})[1]).write(batches)
    assert isinstance(written, TaskCommit)
    return written.count


def check_replay(address: str, folder: Path) -> None:
    """Messages of a store of another broker arrive with the same fields, at the offsets that the replay says."""
    source = golden.unpack("mq-53-single", folder)
    report = dl.replay(source, address, folder / "journal", topic=REPLAYED)
    sent = {row["pos"]: row for batch in dl.open_log(source, topic=REPLAYED).scan() for row in batch.to_pylist()}
    read = {(row["queueId"], row["queueOffset"]): row for row in rows(batch_reader(address, topic=REPLAYED))}
    places = [json.loads(line) for file in (folder / "journal").glob("offsets-*.jsonl") for line in file.open()]
    assert (len(places), report.unknown) == (report.messages, 0)
    for place in places:
        old, new = sent[place["pos"]], read[place["newQueueId"], place["newQueueOffset"]]
        names = ("body", "keys", "tags", "flag")
        assert [new[name] for name in names] == [old[name] for name in names]
        assert new["offsetMsgId"] == place["newOffsetMsgId"]
        assert new["uniqKey"] == place["uniqKey"]
        assert old["uniqKey"] in (None, new["uniqKey"])
        kept = {name: value for name, value in old["properties"] if name not in ("UNIQ_KEY", "WAIT", "TRAN_MSG")}
        assert kept.items() <= dict(new["properties"]).items()
        assert dict(new["properties"])["BORN_TIMESTAMP"] == str(round(old["bornTimestamp"].timestamp() * 1000))
    for queue in {row["newQueueId"] for row in places}:
        of_queue = sorted((row["newQueueOffset"], row["pos"]) for row in places if row["newQueueId"] == queue)
        assert [pos for _, pos in of_queue] == sorted(pos for _, pos in of_queue)


def test_an_account_of_the_acl_reads_and_writes_and_others_are_rejected(
    clients: JavaClients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Task({"partition": 0}))
    broker = JavaBroker(tmp_path / "secure", clients.port, {**SMALL_FILES, **WITH_ACL})
    try:
        broker.wait_started()
        address = f"{HOST}:{clients.port}"
        options = {"topic": "SELF_TEST_TOPIC", "accessKey": USER, "secretKey": PASSWORD}

        def read() -> bool:
            return rows(batch_reader(address, **options)) == []

        eventually(lambda: _is_found(read), 60)
        rows_of_one = frame({"body": [b"written"]})[0]
        access = {"accessKey": USER, "secretKey": PASSWORD, "autoCreate": "true"}
        assert write(address, iter([rows_of_one]), **access) == 1
        for wrong in ({"secretKey": "another"}, {"accessKey": "nobody"}):
            with pytest.raises(ClusterError, match="expected success, found") as error:
                write(address, iter([rows_of_one]), **{**access, **wrong})
            assert PASSWORD not in str(error.value)
            with pytest.raises(ClusterError, match="expected success, found") as error:
                rows(batch_reader(address, **{**options, **wrong}))
            assert PASSWORD not in str(error.value)
        with pytest.raises(ClusterError, match="expected success, found"):
            rows(batch_reader(address, topic="SELF_TEST_TOPIC"))
    finally:
        broker.close()


def _is_found(read: Any) -> bool:
    """Whether the name server knows the broker already."""
    try:
        return bool(read())
    except ClusterError as error:
        if "found no route" not in str(error):
            raise
        return False
