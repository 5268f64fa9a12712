"""Putting single messages from a node's process: the statuses of a broker, by its version."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import GroupError, OptionError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.layout import MESSAGE_MAGIC_V2
from pyspark_dledger.format.message import Message, offset_msg_id, parse_message, parse_properties
from pyspark_dledger.raft.messages import PutRequest
from pyspark_dledger.rocketmq.service.message_putter import (
    AppendMessageResult,
    BrokerVersion,
    MessagePutter,
    OutgoingMessage,
    PutOutcome,
    outcome_of,
)
from tests.support.groups import FAST
from tests.support.message_nodes import HOST_BYTES, MessageNodes, message_nodes

BUSY_4, BUSY_5 = "OS_PAGECACHE_BUSY", "OS_PAGE_CACHE_BUSY"
NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"


@pytest.mark.parametrize(
    ("version", "busy", "no_quorum"),
    [
        ("4.5.1", BUSY_4, BUSY_4),
        ("4.9.8", BUSY_4, BUSY_4),
        ("5.0.0-ALPHA", BUSY_4, BUSY_4),
        ("5.0.0", BUSY_5, "IN_SYNC_REPLICAS_NOT_ENOUGH"),
        ("5.3.3", BUSY_5, "IN_SYNC_REPLICAS_NOT_ENOUGH"),
    ],
)
def test_statuses_by_version(version: str, busy: str, no_quorum: str) -> None:
    after = {code: BrokerVersion(version).status(code, True) for code in (200, 404, 409, 415, 501, 502, 503, 505)}
    assert after == {
        200: "PUT_OK",
        404: NOT_AVAILABLE,
        409: NOT_AVAILABLE,
        415: NOT_AVAILABLE,
        501: "UNKNOWN_ERROR",
        502: no_quorum,
        503: busy,
        505: NOT_AVAILABLE,
    }
    # A broker that sees position -1 ignores the code.
    assert {BrokerVersion(version).status(code, False) for code in (404, 415, 503, 505, 411)} == {busy}


@pytest.mark.parametrize("version", ["", "5", "6.0.0", "5.3.3.3", "five"])
def test_unknown_versions_are_rejected(version: str) -> None:
    with pytest.raises(OptionError, match=r"such as 4\.9\.8 or 5\.3\.3"):
        BrokerVersion(version).status(200, True)


def putter_of(group: MessageNodes, node_id: str, **given: Any) -> MessagePutter:
    """A putter of a node in this process."""

    def submit(bodies: Bodies, queue_nums: int) -> Future[PutOutcome]:
        async def ask() -> PutOutcome:
            response: Any = await group.nodes[node_id].request(PutRequest(bodies=bodies, queue_nums=queue_nums))
            return outcome_of(response)

        return asyncio.run_coroutine_threadsafe(ask(), group._loop)

    return MessagePutter(submit, HOST_BYTES, **given)


def test_the_result_locates_the_message(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 1) as group:
        group.ready_leader()
        putter = putter_of(group, "n0")
        given = {"tags": "t", "keys": "k1 k2", "properties": {"a": "b"}, "flag": 7, "born_timestamp": 12345}
        results = [putter.put_message(OutgoingMessage("T", b"body", 1, **given)) for _ in range(3)]
        assert [result.status for result in results] == ["PUT_OK"] * 3
        appends = [result.append for result in results]
        assert [append.logics_offset for append in appends if append] == [0, 1, 2]

        async def stored() -> bytes:
            return group.nodes["n0"].store.get(2).body

        body, last = group.run(stored()), appends[2]
        message = parse_message(body, 0, len(body), 0)
        assert isinstance(message, Message)
        assert last is not None
        offset = message.physical_offset
        assert last == AppendMessageResult("PUT_OK", offset, len(body), offset_msg_id(HOST_BYTES, offset), 2)
        assert (message.queue_id, message.flag, message.born_timestamp) == (1, 7, 12345)
        properties = body[message.properties_start : message.properties_start + message.properties_length]
        assert parse_properties(properties) == {"a": "b", "KEYS": "k1 k2", "TAGS": "t"}


def test_a_follower_is_busy_to_a_producer(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 2) as group:
        leader = group.leader()
        (other,) = (node_id for node_id in group.ids if node_id != leader)
        result = putter_of(group, other).put_message(OutgoingMessage("T", b"x"))
        assert (result.status, result.append) == (BUSY_5, AppendMessageResult("UNKNOWN_ERROR"))
        assert "404" in result.reason


def test_without_a_quorum_the_status_is_that_of_the_version(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 2, core_options={**FAST, "max_wait_ack_time_ms": 200}) as group:
        leader = group.ready_leader()
        group.stop(*(node_id for node_id in group.ids if node_id != leader))
        statuses = {
            version: putter_of(group, leader, version=version).put_message(OutgoingMessage("T", b"x")).status
            for version in ("4.9.8", "5.3.3")
        }
        assert statuses == {"4.9.8": BUSY_4, "5.3.3": "IN_SYNC_REPLICAS_NOT_ENOUGH"}


class FakeNode:
    """Returns given outcomes, and records the bodies."""

    def __init__(self, *outcomes: PutOutcome | Exception) -> None:
        self.outcomes = list(outcomes)
        self.bodies: list[Bodies] = []

    def __call__(self, bodies: Bodies, _queue_nums: int) -> Future[PutOutcome]:
        self.bodies.append(bodies)
        future: Future[PutOutcome] = Future()
        for outcome in self.outcomes:
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return future


def test_a_timeout_is_an_unknown_error() -> None:
    result = MessagePutter(FakeNode(), HOST_BYTES, wait_seconds=0.05).put_message(OutgoingMessage("T", b"x"))
    assert (result.status, result.append) == ("UNKNOWN_ERROR", None)
    assert "may be in the log" in result.reason


def test_a_node_that_stops_is_an_unknown_error() -> None:
    result = MessagePutter(FakeNode(GroupError("stopped", 500)), HOST_BYTES).put_message(OutgoingMessage("T", b"x"))
    assert (result.status, result.reason) == ("UNKNOWN_ERROR", "stopped")


@pytest.mark.parametrize(
    ("message", "status", "append"),
    [
        (OutgoingMessage("T" * 128, b"x"), "MESSAGE_ILLEGAL", None),
        (OutgoingMessage("T", b"x", properties={"a": "b" * 32767}), "PROPERTIES_SIZE_EXCEEDED", None),
        (OutgoingMessage("T", b"x" * 2000), "MESSAGE_ILLEGAL", AppendMessageResult("MESSAGE_SIZE_EXCEEDED")),
        (OutgoingMessage("no topic", b"x"), "MESSAGE_ILLEGAL", AppendMessageResult("UNKNOWN_ERROR")),
        (OutgoingMessage("T", b"x", transaction="maybe"), "MESSAGE_ILLEGAL", None),
        (OutgoingMessage("T", b"x", flag=1 << 40), "MESSAGE_ILLEGAL", AppendMessageResult("UNKNOWN_ERROR")),
        (
            OutgoingMessage("T", b"x", properties={"a": "\ud800"}),
            "MESSAGE_ILLEGAL",
            AppendMessageResult("UNKNOWN_ERROR"),
        ),
    ],
    ids=["topic", "properties", "size", "name", "transaction", "flag", "text"],
)
def test_a_broker_rejects_these_before_the_append(
    message: OutgoingMessage, status: str, append: AppendMessageResult | None
) -> None:
    node = FakeNode(PutOutcome(200, 0, 0))
    putter = MessagePutter(node, HOST_BYTES, version="4.9.8", max_message_size=1000)
    result = putter.put_message(message)
    assert (result.status, result.append, result.is_ok) == (status, append, False)
    assert not node.bodies


def test_the_version_decides_on_long_topics_and_separators() -> None:
    node = FakeNode(PutOutcome(200, 0, 0))
    message = OutgoingMessage("T" * 128, b"x", properties={"a": "b"})
    assert MessagePutter(node, HOST_BYTES, version="5.3.3").put_message(message).is_ok
    assert int.from_bytes(node.bodies[0].block[8:12], "big", signed=True) == MESSAGE_MAGIC_V2
    assert bytes(node.bodies[0].block).endswith(b"a\x01b\x02")
    assert MessagePutter(node, HOST_BYTES, version="5.1.4").put_message(message).is_ok
    assert bytes(node.bodies[1].block).endswith(b"a\x01b")
