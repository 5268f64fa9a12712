"""Batch reads of a cluster: which messages they give, in which order, with which columns, and how they are pulled."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import pickle
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cluster import bounds, codes, pulls
from pyspark_dledger.cluster import cluster as cluster_module
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.connection import Connection, LostError
from pyspark_dledger.errors import ClusterError, DataLossError, MalformedError, OptionError
from pyspark_dledger.raft.wire.remoting import Command
from tests.support.certificates import make_tls
from tests.support.cluster_reads import batch_reader, keys, keys_of, rows
from tests.support.fake_cluster import Answer, FakeServer, response


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MAX_WAIT", 1.0)
    monkeypatch.setattr(cluster_module, "_MAX_FIRST_WAIT", 0.3)
    monkeypatch.setattr(cluster_module, "MAX_PAUSE", 0.1)
    monkeypatch.setattr(pulls, "MAX_WAIT", 1.0)


def test_all_messages_come_in_the_order_of_each_queue(server: FakeServer, engine: str) -> None:
    for queue, count in ((0, 1000), (1, 0), (2, 33), (5, 1)):
        server.add("Orders", queue, count)
    server.add("Other", 0, 10)
    found = rows(batch_reader(server.address, topic="Orders", engine=engine))
    expected = [
        key for queue, count in ((0, 1000), (2, 33), (5, 1)) for key in keys_of("b", "Orders", queue, range(count))
    ]
    assert keys(found) == expected
    first = found[0]
    assert first["body"] == b"Orders 0 0 ".ljust(20, b".")
    assert first["commitLogOffset"] == 1000
    assert {row["problem"] for row in found} == {None}


def test_broker_that_returns_less_than_was_asked_for_is_asked_again(server: FakeServer) -> None:
    server.most, server.max_bytes = 7, 2000
    server.add("Orders", 0, 200, size=300)
    server.add("Orders", 1, 200, size=1)
    found = rows(batch_reader(server.address, topic="Orders"))
    assert keys(found) == keys_of("b", "Orders", 0, range(200)) + keys_of("b", "Orders", 1, range(200))
    # It is soon asked for as many as it returns: no request is wasted.
    assert len(server.requests_of(codes.PULL_MESSAGE)) < 2 * (200 // 5 + 200 // 7) + pulls._MAX_IN_FLIGHT


@pytest.mark.parametrize(("max_bytes", "in_flight"), [("32m", (4, 64)), ("512k", (2, 64)), ("1", (1, 1))])
def test_pulls_are_sent_before_earlier_ones_are_answered(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, max_bytes: str, in_flight: tuple[int, int]
) -> None:
    server.add("Orders", 0, 3200)
    unanswered: list[int] = []
    received = pulls.Puller._received

    def counted(puller: pulls.Puller, pull: Any) -> Any:
        connections = [each for some in puller._connections.values() for each in some]
        unanswered.append(sum(len(each._outstanding) + len(each._responses) for each in connections))
        return received(puller, pull)

    monkeypatch.setattr(pulls.Puller, "_received", counted)
    assert len(rows(batch_reader(server.address, topic="Orders", maxFetchBytes=max_bytes))) == 3200
    assert (unanswered[0], max(unanswered)) == in_flight
    assert len(server.requests_of(codes.PULL_MESSAGE)) == 100


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "latest"}, range(0)),
        ({"startingOffsets": json.dumps({"Orders": {"b": {"0": 90}}})}, range(90, 100)),
        ({"startingOffsets": json.dumps({"Orders": {"b": {"0": -1}}})}, range(0)),
        ({"endingOffsets": json.dumps({"Orders": {"b": {"0": 10}}})}, range(10)),
        ({"startingOffsets": "committed", "consumerGroup": "g"}, range(70, 100)),
        ({"endingOffsets": "committed", "consumerGroup": "g"}, range(70)),
        ({"queueId": "0"}, range(100)),
        ({"queueId": "1"}, range(0)),
        ({"topic": None, "topicPattern": "Ord.*"}, range(100)),
        ({"minPartitions": "7"}, range(100)),
    ],
    ids=str,
)
def test_a_read_begins_and_ends_where_the_options_say(
    server: FakeServer, options: dict[str, str], expected: range
) -> None:
    server.add("Orders", 0, 100)
    server.committed["Orders", 0] = 70
    found = rows(batch_reader(server.address, **{"topic": "Orders", **options}))
    assert keys(found) == keys_of("b", "Orders", 0, expected)


@pytest.mark.parametrize("near", [0, 30, 49])
def test_times_are_exact_although_brokers_find_only_a_near_offset(server: FakeServer, near: int) -> None:
    for number in range(100):
        server.add("Orders", 0, 1, store_timestamp=1_700_000_000_000 + number // 5)
    # A broker finds any message of a millisecond.
    server.change = lambda _, request: (
        (0, {"offset": near}, b"") if request.code == codes.SEARCH_OFFSET_BY_TIMESTAMP else None
    )
    found = rows(batch_reader(server.address, topic="Orders", startingTimestamp="1700000000010"))
    assert keys(found) == keys_of("b", "Orders", 0, range(50, 100))
    later = batch_reader(server.address, topic="Orders", endingTimestamp="1700000000010")
    assert keys(rows(later)) == keys_of("b", "Orders", 0, range(50))
    assert rows(batch_reader(server.address, topic="Orders", startingTimestamp="1700000009999")) == []


def test_min_partitions_splits_queues_and_else_small_queues_share_a_part(server: FakeServer) -> None:
    for queue in range(100):
        server.add("Many", queue, 3)
    server.add("Orders", 0, 1000)
    assert len(batch_reader(server.address, topic="Many").partitions()) <= 64 * 2
    parts = batch_reader(server.address, topic="Orders", minPartitions="4").partitions()
    assert [[each.size for each in part.value.ranges] for part in parts] == [[250]] * 4
    reader = pickle.loads(pickle.dumps(batch_reader(server.address, topic="Many,Orders")))
    assert len(rows(reader)) == 1300


def test_chosen_columns_and_filters(server: FakeServer) -> None:
    server.add("Orders", 0, 10, properties=[("TAGS", "paid"), ("KEYS", "k")])
    server.add("Orders", 0, 10, properties=[("TAGS", "open")])
    reader = batch_reader(server.address, ("keys", "broker"), topic="Orders", tags="paid")
    assert rows(reader) == [{"keys": "k", "broker": "b"}] * 10
    assert rows(batch_reader(server.address, ("broker",), topic="Orders")) == [{"broker": "b"}] * 20


def test_expired_messages_are_an_error_or_are_skipped(server: FakeServer) -> None:
    server.add("Orders", 0, 100)
    reader = batch_reader(server.address, topic="Orders")
    parts = reader.partitions()
    server.expire("Orders", 0, 40)
    with pytest.raises(DataLossError, match="queue 0 of topic Orders at broker b: expected messages from offset 0 on"):
        rows(reader, parts)
    lenient = batch_reader(server.address, topic="Orders", failOnDataLoss="false")
    start = json.dumps({"Orders": {"b": {"0": 0}}})
    assert keys(rows(lenient)) == keys_of("b", "Orders", 0, range(40, 100))
    lenient = batch_reader(server.address, topic="Orders", failOnDataLoss="false", startingOffsets=start)
    assert keys(rows(lenient)) == keys_of("b", "Orders", 0, range(40, 100))


def test_a_queue_that_lost_its_end_is_an_error(server: FakeServer) -> None:
    server.add("Orders", 0, 100)
    reader = batch_reader(server.address, topic="Orders")
    parts = reader.partitions()
    del server.queues["Orders", 0][50:]
    with pytest.raises(
        ClusterError, match=r"expected messages from offset 50 on, found none within 1 s .PULL_NOT_FOUND"
    ):
        rows(reader, parts)


def test_lost_connections_are_made_again(server: FakeServer) -> None:
    server.add("Orders", 0, 2000)
    drops = iter((10, 30, 31))
    at = next(drops)

    def change(found: FakeServer, _: Command) -> None:
        nonlocal at
        if len(found.requests_of(codes.PULL_MESSAGE)) == at:
            at = next(drops, -1)
            found.drop_connections()

    server.change = change  # type: ignore[assignment]
    found = rows(batch_reader(server.address, topic="Orders"))
    assert keys(found) == keys_of("b", "Orders", 0, range(2000))


def test_another_replica_and_another_name_server_take_over(server: FakeServer) -> None:
    with FakeServer() as slave:
        for each in (server, slave):
            each.add("Orders", 0, 500)
            each.brokers["b"] = {0: server.address, 1: slave.address}
        both = f"{server.address};{slave.address}"
        assert len(rows(batch_reader(both, topic="Orders", readFrom="slave"))) == 500
        assert not server.requests_of(codes.PULL_MESSAGE)
        reader = batch_reader(both, topic="Orders")
        parts = reader.partitions()
        server.close()
        assert keys(rows(reader, parts)) == keys_of("b", "Orders", 0, range(500))


def test_a_slave_that_rejects_reads_is_not_asked_forever(server: FakeServer) -> None:
    def change(_: FakeServer, request: Command) -> Answer | None:
        is_pull = request.code == codes.PULL_MESSAGE
        return (BrokerCode.PULL_RETRY_IMMEDIATELY, {"nextBeginOffset": 0}, b"") if is_pull else None

    with FakeServer(change=change) as slave:
        for each in (server, slave):
            each.add("Orders", 0, 50)
            each.brokers["b"] = {0: server.address, 1: slave.address}
        assert len(rows(batch_reader(server.address, topic="Orders", readFrom="slave"))) == 50


def test_errors_name_what_is_unreachable(server: FakeServer) -> None:
    with pytest.raises(ClusterError, match=r"no name server responded within 0.3 s .127.0.0.1:1: .*nameServer"):
        rows(batch_reader("127.0.0.1:1", topic="Orders"))
    with pytest.raises(ClusterError, match="expected topic Missing, found no route"):
        rows(batch_reader(server.address, topic="Missing"))
    server.add("Orders", 0, 5)
    server.brokers["b"] = {0: "127.0.0.1:1"}
    with pytest.raises(ClusterError, match=r"broker b of topic Orders: no replica responded within 1 s \(127.0.0.1:1:"):
        rows(batch_reader(server.address, topic="Orders"))


def test_requests_are_signed_and_the_secret_is_shown_nowhere(server: FakeServer) -> None:
    server.add("Orders", 0, 5)
    options = {"accessKey": "user", "secretKey": "hidden-secret", "securityToken": "hidden-token"}
    reader = batch_reader(server.address, topic="Orders", **options)
    assert len(rows(reader)) == 5
    for request in server.requests:
        values = {name: value for name, value in request.fields.items() if name != "Signature"}
        assert (values["AccessKey"], values["SecurityToken"]) == ("user", "hidden-token")
        content = "".join(values[name] for name in sorted(values)).encode()
        digest = hmac.new(b"hidden-secret", content, hashlib.sha1).digest()
        assert request.fields["Signature"] == base64.b64encode(digest).decode()
    server.change = lambda *_: (BrokerCode.NO_PERMISSION, {}, b"")
    with pytest.raises(ClusterError, match=r"NO_PERMISSION \(16\)") as error:
        rows(reader)
    shown = f"{error.value} {reader.options} {reader.options.address} {reader.__dict__}"
    assert "hidden" not in shown


def test_tls(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(tls.cert), str(tls.key))
    with FakeServer(tls=context) as server:
        server.add("Orders", 0, 500, size=2000)
        assert len(rows(batch_reader(server.address, topic="Orders", tlsCa=str(tls.ca)))) == 500
        with pytest.raises(ClusterError, match="no name server responded"):
            rows(batch_reader(server.address, topic="Orders"))


def test_a_damaged_message_is_a_row_with_a_problem(server: FakeServer, engine: str) -> None:
    server.add("Orders", 0, 10)
    damaged = bytearray(server.queues["Orders", 0][4])
    damaged[damaged.index(b"Orders 0 4")] ^= 1
    server.queues["Orders", 0][4] = bytes(damaged)
    found = rows(batch_reader(server.address, topic="Orders", engine=engine))
    assert [row["queueOffset"] for row in found if row["problem"]] == [4]
    with pytest.raises(MalformedError, match="broker b: message at"):
        rows(batch_reader(server.address, topic="Orders", mode="FAILFAST", engine=engine))
    assert len(rows(batch_reader(server.address, topic="Orders", mode="DROPMALFORMED", engine=engine))) == 9


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nameServer": None}, "option nameServer is missing"),
        ({"nameServer": "host"}, "option nameServer: expected HOST:PORT"),
        ({"topic": None}, "expected option topic or option topicPattern, neither is given"),
        ({"topicPattern": "a"}, "both are given"),
        ({"topic": None, "topicPattern": "("}, "option topicPattern: expected a regular expression"),
        ({"startingOffsets": "first"}, "option startingOffsets: expected earliest, latest, committed"),
        ({"startingOffsets": '{"Orders": {"b": {"0": -3}}}'}, "option startingOffsets: expected"),
        ({"startingOffsets": '{"Orders": {"b": {"x": 3}}}'}, "option startingOffsets: expected"),
        ({"startingOffsets": "committed"}, "need option consumerGroup"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp and startingOffsets are both"),
        ({"accessKey": "a"}, "accessKey and secretKey belong together"),
        ({"securityToken": "hidden"}, "securityToken has no effect without"),
        ({"readFrom": "anybody"}, "option readFrom: expected master or slave"),
        ({"tlsCert": "a.pem"}, "expected option tlsCa"),
        ({"table": "segments"}, "option table has no effect on spark.read of a RocketMQ cluster"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger has no effect"),
        ({"nameserver2": "5"}, "unknown option nameserver2: the nearest is nameServer"),
        ({"subscribe": "Orders"}, "consumerGroup, endingOffsets, endingTimestamp, engine"),
        ({"startingOffsets": '{"Orders": {"b": {"9": 3}}}'}, "found queue 9 of topic Orders at broker b"),
        ({"endingOffsets": '{"Orders": {"b": {"0": 6}}}'}, "expected an offset up to 5 of queue 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_options(server: FakeServer, options: dict[str, Any], problem: str) -> None:
    server.add("Orders", 0, 5)
    with pytest.raises(OptionError) as error:
        rows(batch_reader(server.address, **{"topic": "Orders", **options}))
    assert problem in str(error.value)
    assert "hidden" not in str(error.value)


def test_a_broker_that_is_not_reached_is_asked_by_one_pull_at_a_time(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("Orders", 0, 3200)
    reader = batch_reader(server.address, topic="Orders")
    parts = reader.partitions()
    server.brokers["b"] = {0: "127.0.0.1:1"}
    tried: list[object] = []
    connect = cluster_module.Cluster.connect

    def counted(cluster: cluster_module.Cluster, address: Any) -> Any:
        tried.append(address)
        return connect(cluster, address)

    monkeypatch.setattr(cluster_module.Cluster, "connect", counted)
    with pytest.raises(ClusterError, match="no replica responded"):
        rows(reader, parts)
    # Within a second, with growing pauses; one is that to the name server.
    assert len(tried) < 20


@pytest.fixture
def with_slave(server: FakeServer) -> Iterator[FakeServer]:
    """The slave of the server's broker, which lacks the first 50 of 100 messages."""
    with FakeServer() as slave:
        for each in (server, slave):
            each.add("Orders", 0, 100)
            each.brokers["b"] = {0: server.address, 1: slave.address}
        slave.expire("Orders", 0, 50)
        yield slave


def once(code: int, answer: Answer | bytes) -> Callable[[FakeServer, Command], Answer | bytes | None]:
    """One request of a kind gets another answer; with b"" all connections are lost."""
    left = [answer]

    def change(server: FakeServer, request: Command) -> Answer | bytes | None:
        if request.code != code or not left:
            return None
        found = left.pop()
        if found == b"":
            server.drop_connections()
        return found

    return change


@pytest.mark.usefixtures("with_slave")
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("answer", [b"", (int(BrokerCode.SYSTEM_BUSY), {}, b"")], ids=["lost", "busy"])
@pytest.mark.parametrize("code", [codes.GET_MIN_OFFSET, codes.GET_MAX_OFFSET, codes.PULL_MESSAGE])
def test_messages_that_only_a_slave_lacks_are_not_lost(
    server: FakeServer, code: int, answer: Answer | bytes, fails: str
) -> None:
    server.change = once(code, answer)
    assert len(rows(batch_reader(server.address, topic="Orders", failOnDataLoss=fails))) == 100


@pytest.mark.usefixtures("with_slave")
def test_the_offsets_of_a_group_are_those_of_the_master(server: FakeServer) -> None:
    server.committed["Orders", 0] = 90
    server.change = once(codes.QUERY_CONSUMER_OFFSET, b"")
    options = {"startingOffsets": "committed", "consumerGroup": "g", "readFrom": "slave"}
    assert len(rows(batch_reader(server.address, topic="Orders", **options))) == 10


def test_a_gap_is_crossed_at_once(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server.begins["Orders", 0] = 100_000
    server.add("Orders", 0, 10)
    options = {"failOnDataLoss": "false", "startingOffsets": '{"Orders": {"b": {"0": 0}}}'}
    found = rows(batch_reader(server.address, topic="Orders", **options))
    assert keys(found) == keys_of("b", "Orders", 0, range(100_000, 100_010))
    assert len(server.requests_of(codes.PULL_MESSAGE)) < 100
    assert len([record for record in caplog.records if "expected messages from offset" in record.getMessage()]) == 1


def test_name_server_that_is_busy_is_left_for_another_one(server: FakeServer) -> None:
    server.add("Orders", 0, 3)
    with FakeServer("x", change=lambda *_: (int(BrokerCode.SYSTEM_BUSY), {}, b"")) as busy:
        assert len(rows(batch_reader(f"{busy.address};{server.address}", topic="Orders"))) == 3


def test_more_queues_than_memory_has_room_for_are_an_error(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_MAX_QUEUES", 4)
    for number in range(5):
        server.add(f"T{number}", 0, 1)
    with pytest.raises(ClusterError, match="expected at most 4 queues to read, found 5"):
        batch_reader(server.address, topicPattern="T.*").partitions()


def test_a_server_that_answers_the_oldest_request_last_does_not_fill_memory(server: FakeServer) -> None:
    held: list[bytes] = []

    def first_last(_: FakeServer, request: Command) -> bytes:
        held.append(response(request, (0, {}, bytes(200_000))))
        return b"".join([*held[1:], held[0]]) if len(held) == 4 else b""

    server.change = first_last
    address = batch_reader(server.address, topic="Orders").options.address
    with closing(Connection(address.name_servers[0], address)) as connection:
        first, *others = [connection.send(codes.PULL_MESSAGE, {}) for _ in range(4)]
        assert [len(connection.wait(opaque).body) for opaque in (first, *others)] == [200_000] * 4
    held.clear()
    with closing(Connection(address.name_servers[0], address)) as connection:
        connection.max_kept = 250_000
        first, *_ = [connection.send(codes.PULL_MESSAGE, {}) for _ in range(4)]
        with pytest.raises(LostError, match="400000 bytes of other responses before the one to the oldest request"):
            connection.wait(first)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"Orders": {"b": {"0": 2, "00": 7}}}'], ids=["deep", "twice"])
def test_offsets_that_are_no_offsets_are_an_error(server: FakeServer, text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        batch_reader(server.address, topic="Orders", startingOffsets=text)


@pytest.mark.parametrize(("chunk", "is_read"), [(20_000, True), (1000, False)])
def test_a_large_response_may_take_longer_than_others_if_its_bytes_come_quickly(
    server: FakeServer, chunk: int, is_read: bool
) -> None:
    accepted = threading.Event()

    def change(_: FakeServer, request: Command) -> bytes:
        data = response(request, (0, {}, bytes(200_000)))
        with server._lock:
            client = server._open[-1]
        with suppress(OSError):
            for start in range(0, len(data), chunk):
                client.sendall(data[start : start + chunk])
                time.sleep(0.05)
        accepted.set()
        return b""

    server.change = change
    address = batch_reader(server.address, topic="Orders").options.address
    with closing(Connection(address.name_servers[0], address, 0.2)) as connection:
        opaque = connection.send(codes.PULL_MESSAGE, {})
        if is_read:
            assert len(connection.wait(opaque).body) == 200_000
        else:
            with pytest.raises(LostError, match=r"no response in 0\.2 s, and less than 65536 bytes a second"):
                connection.wait(opaque)
    assert accepted.wait(20)


def test_a_queue_whose_messages_say_other_offsets_is_read_only_if_loss_is_allowed(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers in DLedger mode have such queues after a failover ("logic queue order maybe wrong")."""
    server.add("Orders", 0, 40)
    del server.queues["Orders", 0][10:18]
    with pytest.raises(DataLossError, match="expected the message of offset 10, found that of offset 18"):
        rows(batch_reader(server.address, topic="Orders"))
    found = rows(batch_reader(server.address, topic="Orders", failOnDataLoss="false"))
    assert keys(found) == keys_of("b", "Orders", 0, range(10)) + keys_of("b", "Orders", 0, range(18, 40))
    (warning,) = [record.getMessage() for record in caplog.records if "lost its count" in record.getMessage()]
    assert "found that of offset 18" in warning
    # Without the broker's word for it, messages can be missing.
    server.change = lambda server, request: _with_next(server, request, 1)
    with pytest.raises(ClusterError, match="expected offset 10, found offset 18"):
        rows(batch_reader(server.address, topic="Orders"))


def _with_next(server: FakeServer, request: Command, more: int) -> Answer | None:
    if request.code != codes.PULL_MESSAGE:
        return None
    code, fields, body = server.answer(request)
    return code, {**fields, "nextBeginOffset": int(fields["nextBeginOffset"]) + more}, body
