"""Messages that a producer sends: where they are, in which order, and what happens when brokers fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.producer import Batch, BatchMessage, Producer, SendSettings, Sent, batches_of
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.raft.peers import parse_address
from pyspark_dledger.raft.wire.remoting import Command
from tests.support.cluster_reads import batch_reader, queue_of, rows
from tests.support.fake_cluster import Answer, FakeServer

BORN = 1_700_000_000_000


@pytest.fixture
def other(server: FakeServer) -> Iterator[FakeServer]:
    """Another broker of the cluster whose name server is `server`."""
    with FakeServer("c") as found:
        found.queues["Orders", 0] = []
        server.brokers["c"] = {0: found.address}
        yield found


@pytest.fixture(autouse=True)
def topic(server: FakeServer) -> None:
    server.queues["Orders", 1] = []


def message(number: int, **fields: Any) -> BatchMessage:
    return BatchMessage(b"%d" % number, b"KEYS\1k%d\2UNIQ_KEY\1u%d\2" % (number, number), BORN, **fields)


def send(server: FakeServer, *batches: Batch, **settings: Any) -> list[Sent]:
    with Cluster(ClusterAddress((parse_address(server.address, "server"),))) as cluster:
        producer = Producer(cluster, SendSettings(**{"seconds": 0.5, **settings}))
        try:
            return list(producer.send(batches))
        finally:
            producer.close()


def batch(*numbers: int, queue: int = 0, **fields: Any) -> Batch:
    return Batch.of(queue_of(queue), [message(number) for number in numbers], **fields)


def bodies(server: FakeServer, queue: int = 0) -> list[int]:
    return [int(row["body"]) for row in rows(batch_reader(server.address, topic="Orders")) if row["queueId"] == queue]


def test_each_message_has_its_offset_and_id_and_a_queue_keeps_its_order(server: FakeServer) -> None:
    given = [batch(*range(at, at + 3), queue=at % 2) for at in range(0, 60, 3)]
    found = send(server, *given)
    assert {sent.problem for sent in found} == {""}
    assert sorted(offset for sent in found if sent.queue.id == 1 for offset in sent.offsets) == list(range(30))
    assert [(list(sent.offsets), sent.ids[2]) for sent in found if sent.batch is given[2]] == [
        ([3, 4, 5], "5".rjust(32, "0"))
    ]
    assert bodies(server) == [number for each in given[::2] for number in (int(m.body) for m in each.messages)]
    row = rows(batch_reader(server.address, topic="Orders"))[0]
    assert (row["keys"], row["uniqKey"], row["bornTimestamp"].timestamp()) == ("k0", "u0", BORN / 1000)


def test_one_batch_of_a_queue_is_sent_at_a_time_and_others_within_the_memory(server: FakeServer) -> None:
    taken: list[int] = []

    def batches() -> Iterator[Batch]:
        for number in range(8):
            taken.append(number)
            yield batch(number, queue=number % 4)

    server.queues["Orders", 3] = []
    with Cluster(ClusterAddress((parse_address(server.address, "server"),))) as cluster:
        producer = Producer(cluster, SendSettings(max_bytes=3 * batch(0).size))
        sending = producer.send(batches())
        assert (next(sending).queue.id, taken) == (0, [0, 1, 2, 3])
        assert [sent.queue.id for sent in sending] == [1, 2, 3, 0, 1, 2, 3]
        producer.close()


def test_a_message_that_must_be_alone_is_sent_alone(server: FakeServer) -> None:
    messages = [message(0), message(1, is_alone=True, flag=7), message(2), message(3)]
    found = list(batches_of([(queue_of(0), False, each) for each in messages], 1 << 20))
    assert [each.count for each in found] == [1, 1, 2]
    send(server, *found)
    assert [request.code for request in server.requests if request.code > 300] == [320, 310, 320]
    assert [row["flag"] for row in rows(batch_reader(server.address, topic="Orders"))] == [0, 7, 0, 0]


def test_batches_end_at_their_size_at_other_queues_and_at_other_times() -> None:
    places = [(queue_of(0), False), (queue_of(1), False), (queue_of(0), True), (queue_of(0), False)]
    messages = [(*place, message(n)._replace(born_timestamp=n // 4)) for n, place in enumerate(places * 2)]
    assert [each.count for each in batches_of(messages, 1 << 20)] == [2, 1, 1, 2, 1, 1]
    sized = [(queue_of(0), False, message(number)) for number in range(10)]
    assert [each.count for each in batches_of(sized, 3 * sized[0][2].size)] == [3, 3, 3, 1]
    assert [each.count for each in batches_of(sized, 1)] == [1] * 10
    many = [(queue_of(0), False, message(0))] * 2500
    assert [each.count for each in batches_of(many, 1 << 20)] == [900, 900, 700]


def answering(*answers: Answer | bytes | None) -> Any:
    """Answers of a broker to its first requests to store messages; None is the usual answer."""
    left = list(answers)

    def change(_: FakeServer, request: Command) -> Answer | bytes | None:
        return left.pop(0) if request.code in (codes.SEND_MESSAGE, codes.SEND_BATCH) and left else None

    return change


@pytest.mark.parametrize("code", [BrokerCode.SYSTEM_BUSY, BrokerCode.SYSTEM_ERROR, BrokerCode.SERVICE_NOT_AVAILABLE])
def test_a_busy_broker_is_asked_again(server: FakeServer, code: BrokerCode) -> None:
    server.change = answering((code, {}, b""), (code, {}, b""))
    (sent,) = send(server, batch(0, 1))
    assert (sent.problem, list(sent.offsets)) == ("", [0, 1])
    assert sent.may_repeat == (code == BrokerCode.SYSTEM_ERROR)


def test_a_batch_without_a_response_goes_to_another_broker_and_may_be_there_twice(
    server: FakeServer, other: FakeServer
) -> None:
    def change(found: FakeServer, request: Command) -> bytes | None:
        if request.code != codes.SEND_BATCH:
            return None
        found.drop_connections()
        return b""

    server.change = change
    first, second = send(server, batch(0, queue=1), batch(1, queue=0))
    assert (first.queue.broker, first.may_repeat, first.problem) == ("c", True, "")
    assert (second.queue.broker, bodies(other)) == ("c", [1])
    # A queue that the caller chose is waited for.
    (third,) = send(server, batch(2, is_pinned=True))
    assert third.queue == queue_of(0) and third.may_repeat
    assert "expected an acknowledgement within 0.5 s, found none" in third.problem


@pytest.mark.parametrize("code", [16, 17, 999])
def test_a_rejected_batch_is_not_sent_again(server: FakeServer, code: int) -> None:
    server.change = answering((code, {}, b""))
    (sent,) = send(server, batch(0))
    assert f"({code})" in sent.problem or "code 999" in sent.problem
    assert not sent.may_repeat and bodies(server) == []


def test_messages_that_are_not_flushed_are_a_problem_unless_accepted(server: FakeServer) -> None:
    for code in (BrokerCode.FLUSH_DISK_TIMEOUT, BrokerCode.FLUSH_SLAVE_TIMEOUT, BrokerCode.SLAVE_NOT_AVAILABLE):
        answer = (code, {"msgId": "0" * 32, "queueId": 0, "queueOffset": 5}, b"")
        server.change = answering(answer)
        (sent,) = send(server, batch(0))
        assert f"found {code.name}" in sent.problem and (list(sent.offsets), sent.status) == ([5], code)
        server.change = answering(answer)
        (sent,) = send(server, batch(0), accepted=frozenset({code}))
        assert (sent.problem, sent.status, list(sent.offsets)) == ("", code, [5])


def test_a_broker_that_takes_no_batches_gets_single_messages(server: FakeServer) -> None:
    rejected = (BrokerCode.MESSAGE_ILLEGAL, {}, b"")
    server.change = answering(rejected)
    (sent,) = send(server, batch(0, 1, 2))
    assert (sent.problem, list(sent.offsets), len(sent.ids)) == ("", [0, 1, 2], 3)
    server.change = answering(rejected, None, rejected)
    (sent,) = send(server, batch(3, 4, 5))
    assert "MESSAGE_ILLEGAL" in sent.problem and list(sent.offsets) == [3]
    assert bodies(server) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queueOffset": 0, "msgId": "0" * 32},
        {"queueOffset": 0, "msgId": f"{'0' * 32},{'x' * 32}"},
        {"queueOffset": -1, "msgId": f"{'0' * 32},{'0' * 32}"},
        {"queueOffset": "9e99", "msgId": f"{'0' * 32},{'0' * 32}"},
        {"queueOffset": 0, "msgId": "," * 900},
    ],
)
def test_a_malformed_acknowledgement_is_a_problem(server: FakeServer, fields: dict[str, Any]) -> None:
    server.change = answering((0, fields, b""))
    (sent,) = send(server, batch(0, 1))
    assert "malformed response" in sent.problem and sent.may_repeat and not sent.offsets


def test_a_message_that_no_request_can_have_is_a_problem(server: FakeServer) -> None:
    large = Batch.of(queue_of(0), [BatchMessage(bytes(17 << 20), b"", BORN)])
    no_text = Batch.of(queue_of(0), [BatchMessage(b"", b"a\1\xff\2", BORN, is_alone=True)])
    assert ["expected a frame" in send(server, large)[0].problem, "utf-8" in send(server, no_text)[0].problem] == [
        True
    ] * 2


def test_a_topic_that_is_missing_is_made_only_on_request(server: FakeServer) -> None:
    def queues(**settings: Any) -> list[int]:
        with Cluster(ClusterAddress((parse_address(server.address, "server"),))) as cluster:
            return [queue.id for queue in Producer(cluster, SendSettings(**settings)).queues("New")]

    with pytest.raises(ClusterError, match="expected topic New to write to, found no route to it: create the topic"):
        queues()
    with pytest.raises(ClusterError, match="expected topic New to write to"):
        queues(new_queues=2)
    server.queues["TBW102", 7] = []
    assert queues(new_queues=2) == [0, 1]
    (rejected,) = send(server, Batch.of(queue_of(1, "New"), [message(0)], is_pinned=True))
    assert "no master of broker b" in rejected.problem
    (sent,) = send(server, Batch.of(queue_of(1, "New"), [message(0)]), new_queues=2)
    assert (sent.problem, list(sent.offsets)) == ("", [0])
