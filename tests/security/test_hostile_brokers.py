"""A name server or broker of an attacker: all that it sends ends in an error, with limited time and memory."""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_dledger.cluster import cluster as cluster_module
from pyspark_dledger.cluster import codes, pulls
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.raft.wire.remoting import Command, encode_command
from tests.fuzz import cluster as fuzz
from tests.support.cluster_reads import batch_reader, rows
from tests.support.fake_cluster import Answer, FakeServer, response
from tests.support.generate import mq_message

MAX_SECONDS = 30
MAX_MEMORY = 150 * 1024 * 1024


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MAX_WAIT", 0.5)
    monkeypatch.setattr(cluster_module, "_MAX_FIRST_WAIT", 0.3)
    monkeypatch.setattr(cluster_module, "MAX_PAUSE", 0.1)
    monkeypatch.setattr(pulls, "MAX_WAIT", 0.5)
    monkeypatch.setattr(cluster_module.Cluster.connect, "__defaults__", (0.5,))


def check_bounded(server: FakeServer, **options: Any) -> None:
    """Read; only an error of this package is allowed."""
    tracemalloc.start()
    begun = time.monotonic()
    try:
        with pytest.raises(DLedgerError):
            rows(batch_reader(server.address, **{"topic": "Orders", **options}))
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < MAX_SECONDS


def of(
    code: int, answer: Callable[[Command], Answer | bytes]
) -> Callable[[FakeServer, Command], Answer | bytes | None]:
    return lambda _, request: answer(request) if request.code == code else None


def route(**changes: Any) -> Answer:
    broker = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}
    queues = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    value = {
        "queueDatas": [{**queues, **changes.get("queues", {})}],
        "brokerDatas": [{**broker, **changes.get("broker", {})}],
    }
    return 0, {}, json.dumps({**value, **changes.get("whole", {})}).encode()


ROUTES: list[Answer] = [
    route(queues={"readQueueNums": 2**31 - 1}),
    route(queues={"readQueueNums": -1}),
    route(queues={"writeQueueNums": 2**31 - 1}),
    route(queues={"writeQueueNums": None}),
    route(queues={"readQueueNums": "many"}),
    route(whole={"queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": 60_000, "writeQueueNums": 1}] * 5000}),
    route(whole={"queueDatas": None}),
    route(whole={"brokerDatas": [[]]}),
    route(broker={"brokerAddrs": {str(number): "127.0.0.1:1" for number in range(1000)}}),
    route(broker={"brokerAddrs": {"0": "http://169.254.169.254/latest"}}),
    route(broker={"brokerAddrs": {"0": "127.0.0.1:99999999999"}}),
    route(broker={"brokerAddrs": {"x": "127.0.0.1:1"}}),
    route(broker={"brokerName": "b" * 100_000}),
    (0, {}, b"[" * 100_000),
    (0, {}, b"{" * 5_000_000),
    (0, {}, b"\xff" * 1000),
    (0, {}, b""),
    (1, {}, b""),
    (-(2**31), {}, b""),
]


@pytest.mark.parametrize("number", range(len(ROUTES)))
def test_routes(number: int) -> None:
    with FakeServer(change=of(codes.GET_ROUTE_OF_TOPIC, lambda _: ROUTES[number])) as server:
        check_bounded(server)


def message(offset: int, **fields: Any) -> bytes:
    return mq_message("Orders", b"x" * 100, queue_offset=offset, **fields).make(0)


def other_size(size: int) -> bytes:
    return struct.pack(">i", size) + message(0)[4:]


BODIES: list[bytes] = [
    b"",
    b"x",
    message(0)[:-1],
    message(0) + message(1)[:50],
    message(1),
    message(0) + message(0),
    message(0) + message(5),
    message(0, queue_id=7),
    other_size(0),
    other_size(-1),
    other_size(2**31 - 1),
    other_size(91),
    message(0, other_flags=0x80),
    bytes(1000),
    b"\xff" * 1000,
    bytes(15 * 1024 * 1024),
    message(2**63 - 1),
]


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_pulled_messages(number: int) -> None:
    with FakeServer(change=of(codes.PULL_MESSAGE, lambda _: (0, {}, BODIES[number]))) as server:
        server.add("Orders", 0, 100)
        check_bounded(server)


FRAMES: list[Callable[[Command], bytes]] = [
    lambda _: b"\x7f\xff\xff\xff",
    lambda _: b"\xff\xff\xff\xff",
    lambda _: b"\x00\x00\x00\x04\x01\x00\x00\x00",
    lambda _: b"\x00\x00\x00\x04\x44\x00\x00\x00",
    lambda _: b"\x00\x00\x00\x08\x00\x00\x00\x04null",
    lambda _: b"\x00\xff\xff\xf0\x00\x00\x00\x10" + bytes(16),
    lambda _: b"GET / HTTP/1.1\r\n\r\n",
    lambda request: response(Command(0, request.opaque + 1), (0, {}, b"")) * 1000,
    lambda request: framed(encode_command(Command(0, request.opaque))) * 1000,
    lambda request: framed(b'{"code":0,"opaque":%d,"flag":1,"extFields":{"offset":[1]}}' % request.opaque),
    lambda request: framed(b'{"code":0,"opaque":%d,"flag":1,"extFields":{"offset":"9e99"}}' % request.opaque),
    lambda request: framed(b'{"code":0,"opaque":%d,"flag":1,"extFields":7}' % request.opaque),
    lambda request: framed(b'{"code":' + b"9" * 50_000 + b',"opaque":%d}' % request.opaque),
]


def framed(header: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header), len(header)) + header


@pytest.mark.parametrize("number", range(len(FRAMES)))
def test_frames(number: int) -> None:
    with FakeServer(change=of(codes.GET_MAX_OFFSET, FRAMES[number])) as server:
        server.add("Orders", 0, 100)
        check_bounded(server)


@pytest.mark.parametrize("code", [19, 20, 21])
def test_redirections_without_end(code: int) -> None:
    """The broker always says that messages are elsewhere in the queue."""
    places = itertools.cycle((5, 0, 2**62, -1, 50))

    def change(_: Command) -> Answer:
        return code, {"nextBeginOffset": next(places), "suggestWhichBrokerId": 7}, b""

    with FakeServer(change=of(codes.PULL_MESSAGE, change)) as server:
        server.add("Orders", 0, 100)
        check_bounded(server)


def test_large_responses_are_not_collected() -> None:
    """Each response has one message of 4 MiB: memory stays within the limit of the option, and some responses."""
    large = mq_message("Orders", bytes(4_000_000), queue_offset=0).make(0)

    def change(request: Command) -> Answer:
        at = struct.pack(">q", int(request.fields["queueOffset"]))
        return 0, {}, large[:20] + at + large[28:]

    with FakeServer(change=of(codes.PULL_MESSAGE, change)) as server:
        server.add("Orders", 0, 40)
        reader = batch_reader(server.address, ("queueOffset",), topic="Orders", maxFetchBytes="8m")
        tracemalloc.start()
        try:
            assert [row["queueOffset"] for row in rows(reader)] == list(range(40))
            assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
        finally:
            tracemalloc.stop()


def test_random_damage_of_responses() -> None:
    choice = random.Random(7)

    def change(found: FakeServer, request: Command) -> bytes:
        whole = bytearray(response(request, found.answer(request)))
        for _ in range(choice.randrange(3)):
            whole[choice.randrange(len(whole))] = choice.randrange(256)
        return bytes(whole)

    for _ in range(30):
        with FakeServer(change=change) as server:
            server.add("Orders", 0, 60)
            begun = time.monotonic()
            try:
                found = rows(batch_reader(server.address, topic="Orders"))
            except DLedgerError:
                pass
            else:
                assert [row["queueOffset"] for row in found] == list(range(len(found)))
            assert time.monotonic() - begun < MAX_SECONDS


def test_random_damage_of_what_is_read() -> None:
    done = {fuzz.check_case(seed) for seed in range(2000)}
    assert done == {f"{name} {outcome}" for name in fuzz.RESPONSES for outcome in ("read", "rejected")}
