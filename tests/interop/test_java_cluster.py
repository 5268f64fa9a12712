"""Reads of a real cluster: a name server, brokers that are killed while producers write, and an ACL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import ClusterError
from tests.interop.java_broker import SMALL_FILES, JavaBroker, JavaClients
from tests.support.cluster_reads import batch_reader, rows, stream_reader
from tests.support.groups import HOST, eventually

TOPIC = "Orders"
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


class Stream:
    """A stream without Spark. Each micro-batch is planned and read twice, by different readers."""

    def __init__(self, address: str) -> None:
        self._options = {"topic": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
        self._reader, self._again = (stream_reader(address, **self._options) for _ in range(2))
        self._at: dict[str, Any] = self._reader.initialOffset()
        self.rows: list[dict[str, Any]] = []

    def trigger(self) -> int:
        """Reads a micro-batch. Returns its number of rows."""
        end = self._reader.latestOffset(self._at, self._reader.getDefaultReadLimit())
        found = rows(self._reader, self._reader.partitions(self._at, end))
        again = rows(self._again, self._again.partitions(self._at, end))
        assert _sorted(found) == _sorted(again)
        self.rows += found
        self._at = end
        return len(found)

    def close(self) -> None:
        self._reader.stop()
        self._again.stop()


def _sorted(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["broker"], row["queueId"], row["queueOffset"]))


def test_a_stream_has_each_acknowledged_message_once_although_the_broker_is_killed(
    clients: JavaClients, tmp_path: Path
) -> None:
    address = f"{HOST}:{clients.port}"
    broker = JavaBroker(tmp_path / "store", clients.port, SMALL_FILES)
    try:
        clients.send_first(TOPIC)
        clients.start_load(TOPIC, 2)
        stream = Stream(address)
        eventually(lambda: stream.trigger() > 0)
        clients.wait_for(500)
        broker.kill()
        broker = JavaBroker(tmp_path / "store", clients.port, SMALL_FILES)
        broker.wait_started()  # on a busy machine this takes longer than a stream waits
        stream.trigger()
        clients.wait_for(500)
        sent = clients.end_load()
        while stream.trigger():
            pass
        stream.close()
        found = {(row["queueId"], row["queueOffset"]): row for row in stream.rows}
        assert len(found) == len(stream.rows)
        acknowledged = {(each.queue_id, each.queue_offset): each for each in sent}
        assert acknowledged.keys() <= found.keys()
        for key, each in acknowledged.items():
            row = found[key]
            assert (row["body"], row["offsetMsgId"]) == (b"%d" % each.number, each.offset_msg_id)
            assert (row["problem"], row["broker"], row["tags"]) == (None, "broker", "tag")
        consumed = clients.consume(TOPIC)
        assert {(each.queue_id, each.queue_offset, each.physical_offset) for each in consumed} == {
            (*key, row["commitLogOffset"]) for key, row in found.items()
        }
        assert _sorted(rows(batch_reader(address, topic=TOPIC))) == _sorted(stream.rows)
        times = sorted(row["storeTimestamp"] for row in stream.rows)
        middle = times[len(times) // 2]
        later = rows(batch_reader(address, topic=TOPIC, startingTimestamp=middle))
        assert len(later) == sum(time >= middle for time in times)
        earlier = rows(batch_reader(address, topic=TOPIC, endingTimestamp=middle))
        assert len(earlier) + len(later) == len(times)
    finally:
        broker.close()


def test_an_account_of_the_acl_reads_and_others_are_rejected(clients: JavaClients, tmp_path: Path) -> None:
    broker = JavaBroker(tmp_path / "secure", clients.port, {**SMALL_FILES, **WITH_ACL})
    try:
        broker.wait_started()
        address = f"{HOST}:{clients.port}"
        options = {"topic": "SELF_TEST_TOPIC", "accessKey": USER, "secretKey": PASSWORD}

        def read() -> bool:
            return rows(batch_reader(address, **options)) == []

        eventually(lambda: _is_found(read), 60)
        for wrong in ({"secretKey": "another"}, {"accessKey": "nobody"}):
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
