"""Reads of a real cluster: a name server, brokers that are killed while producers write, and an ACL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import ClusterError
from tests.interop.failing_brokers import CONTROLLER_MODE, DLEDGER_MODE, PLAIN, check_rows, failing_brokers
from tests.interop.java_broker import OLDEST_VERSION, SMALL_FILES, VERSION, JavaBroker, JavaClients
from tests.support.cluster_reads import Stream, batch_reader, by_offset, rows
from tests.support.groups import HOST, eventually
from tests.support.long_runs import takes_long

TOPIC = "Orders"
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
    kind: str, version: str, tmp_path: Path
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


def check_times(address: str, found: list[dict[str, Any]]) -> None:
    """Batch reads by time divide the rows of the stream."""
    assert by_offset(rows(batch_reader(address, topic=TOPIC))) == by_offset(found)
    times = sorted(row["storeTimestamp"] for row in found)
    middle = times[len(times) // 2]
    later = rows(batch_reader(address, topic=TOPIC, startingTimestamp=middle))
    assert len(later) == sum(time >= middle for time in times)
    earlier = rows(batch_reader(address, topic=TOPIC, endingTimestamp=middle))
    assert len(earlier) + len(later) == len(times)


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
