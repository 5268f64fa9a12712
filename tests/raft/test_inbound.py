"""Connections to a node: malformed frames, limits, pipelines and secrets."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.log_records import RateLimitedLog
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, OptionError
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    MetadataRequest,
    PutRequest,
    PutResponse,
    ReadRequest,
    Request,
    Response,
    Role,
)
from pyspark_dledger.raft.node import NodeConfig
from pyspark_dledger.raft.node.callers import Caller as NodeCaller
from pyspark_dledger.raft.node.connections import Connections
from pyspark_dledger.raft.node.inbound import Inbound
from pyspark_dledger.raft.wire import ReceivedRequest, ReceivedResponse, Rejection, WireConnection
from tests.support.groups import (
    HOST,
    Nodes,
    eventually,
    nodes,
    packed,
)


def test_a_client_without_the_binary_offer_gets_json(one_node: Nodes) -> None:
    with closing(one_node.caller("n0")) as caller:
        caller.wire = WireConnection(offers_binary=False)
        response = caller.call(MetadataRequest())
        assert (response.leader_id, response.peers) == ("n0", {"n0": f"{HOST}:{one_node.port('n0')}"})
        assert not caller.wire.is_binary
        assert caller.append(b"json").code == 200


def test_requests_are_rejected_as_in_java(one_node: Nodes) -> None:
    with closing(one_node.caller("n0")) as caller:
        assert caller.call(GetRequest(group="other")).code == ResponseCode.UNKNOWN_GROUP
        assert caller.call(GetRequest(remote_id="n9")).code == ResponseCode.UNKNOWN_MEMBER
        assert caller.call(GetRequest(begin_index=5)).code == ResponseCode.INDEX_OUT_OF_RANGE


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack(">iI", 16 * 1024 * 1024 + 1, 0),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 8, 0x01000004) + b"rocketmq",
        struct.pack(">iI", 4, 0xFF),
        struct.pack(">iI", 8, 4) + b"nojs",
        struct.pack(">iI", 20, 0x44000010) + bytes(16),
    ],
    ids=["http", "oversized", "negative", "rocketmq", "header", "json", "binary-without-hello"],
)
def test_malformed_frames_close_only_their_connection(
    one_node: Nodes, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(one_node.caller("n0")) as good, closing(one_node.caller("n0")) as bad:
        good.append(b"before")
        with caplog.at_level("WARNING", "pyspark_dledger.node"):
            bad.sock.sendall(data)
            assert bad.is_closed()
        records = [found for found in caplog.records if found.getMessage() == "connection closed"]
        assert "expected" in records[0].fields["reason"]  # type: ignore[attr-defined]  # an extra of the record
        assert good.append(b"after").code == 200


def test_an_incomplete_frame_does_not_disturb_others(one_node: Nodes) -> None:
    with closing(one_node.caller("n0")) as silent, closing(one_node.caller("n0")) as caller:
        silent.sock.sendall(struct.pack(">iI", 8 * 1024 * 1024, 100) + bytes(50))
        assert caller.append(b"x").code == 200


def test_incomplete_frames_of_many_connections_take_limited_memory(one_node: Nodes) -> None:
    """Those without memory wait, and are disconnected if they send no more."""
    memory = one_node.nodes["n0"]._connections.memory
    memory.limit = 16 << 20
    hoarders = [one_node.caller("n0") for _ in range(4)]
    for hoarder in hoarders:
        hoarder.sock.setblocking(False)
        hoarder.sock.send(struct.pack(">iI", 15 << 20, 100) + bytes(3 << 20))
    eventually(lambda: memory.used >= 5 << 20)
    with closing(one_node.caller("n0")) as caller:
        for size in (1, 30_000):
            assert caller.append(bytes(size)).code == 200
        assert memory.used <= memory.limit
    for hoarder in hoarders:
        hoarder.close()
    eventually(lambda: not memory.used)


def unsent(group: Nodes) -> list[int]:
    async def measure() -> list[int]:
        return [each.unsent for each in group.nodes["n0"]._connections.all()]

    return group.run(measure())


def test_a_client_that_does_not_read_gets_no_more_responses(tmp_path: Path) -> None:
    """Requests stay in the socket while responses are unread, and are handled later."""
    large = os.urandom(1 << 20)
    with nodes(tmp_path, 1, core_options={}, store_options={"data_file_size": 4 << 20}) as group:
        group.leader()
        with closing(group.caller("n0")) as slow, closing(group.caller("n0")) as quick:
            slow.hello()
            slow.append(large)
            opaques = [slow.send(GetRequest(begin_index=0)) for _ in range(300)]
            eventually(lambda: max(unsent(group)) > 0)
            for _ in range(10):
                assert quick.append(b"quick").code == 200
                assert max(unsent(group)) < 40 << 20
            for opaque in opaques:
                response = slow.receive(opaque)
                assert isinstance(response, GetResponse)
                assert response.entries[0].body == large
        eventually(lambda: not unsent(group))


def test_the_connection_that_is_idle_the_longest_gives_way(tmp_path: Path) -> None:
    with nodes(tmp_path, 1, core_options={}, max_connections=3) as group, ExitStack() as stack:
        group.leader()
        idle, busy, recent = (stack.enter_context(closing(group.caller("n0"))).hello() for _ in range(3))
        busy.send(ReadRequest(first_index=0, wait_ms=60_000))
        assert recent.append(b"not read yet").code == 200
        busy.send(ReadRequest(first_index=9, wait_ms=60_000))
        with closing(group.caller("n0")) as later:
            later.hello()
            assert idle.is_closed()
            assert recent.append(b"x").code == 200
            later.send(ReadRequest(first_index=9, wait_ms=60_000))
            recent.send(ReadRequest(first_index=9, wait_ms=60_000))
            eventually(lambda: sum(each.is_idle for each in group.nodes["n0"]._connections.all()) == 0)
            with closing(group.caller("n0")) as refused:
                assert refused.is_closed()
        eventually(lambda: len(group.nodes["n0"]._connections.all()) == 2)
        with closing(group.caller("n0")) as later:
            later.call(MetadataRequest())


ONE_NODE = NodeConfig("g", "n0", "n0-127.0.0.1:1")


class ScriptedHandler:
    """A handler that rejects appends of one body. The test responds to all requests."""

    threads = SimpleNamespace(is_busy=False)
    turns = SimpleNamespace(is_late=False)

    def __init__(self, rejected_body: bytes) -> None:
        self.rejected_body = rejected_body
        self.accepted: list[NodeCaller] = []
        self.rejected: list[NodeCaller] = []

    def handle(self, request: Request, caller: Any) -> bool:
        assert isinstance(request, AppendRequest)
        is_rejected = bytes(request.bodies.block).endswith(self.rejected_body)
        (self.rejected if is_rejected else self.accepted).append(caller)
        return not is_rejected

    def flush_later(self, channel: Any) -> None:
        channel.flush()


class Wire:
    """A transport that decodes the responses that it gets."""

    def __init__(self) -> None:
        self.client = WireConnection(offers_binary=True)
        self.responses: dict[int, Response | Rejection] = {}

    def write(self, data: bytes) -> None:
        for item in self.client.feed(data):
            assert isinstance(item, ReceivedResponse)
            self.responses[item.opaque] = item.response

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


def test_appends_after_a_rejected_one_are_rejected() -> None:
    """Later appends of a pipeline must not overtake it, until the sender restarts the pipeline."""

    async def run() -> None:
        server, transport = ScriptedHandler(b"no"), Wire()
        inbound = Inbound(server, 1 << 20, Connections(ONE_NODE), RateLimitedLog())
        inbound._transport = transport  # type: ignore[assignment]  # a stand-in
        opaques = iter(range(100))

        def send(body: bytes, is_restart: bool) -> int:
            opaque = next(opaques)
            transport.client._outstanding[opaque] = 50001
            request = AppendRequest(bodies=packed(body), is_restart=is_restart)
            inbound.received(ReceivedRequest(opaque, request, False, False, False, 50001))
            return opaque

        first, rejected, second = send(b"yes", True), send(b"no", False), send(b"second", False)
        assert len(server.accepted) == 1
        server.rejected[0].respond(AppendResponse(code=ResponseCode.LEADER_PENDING_FULL))
        later = send(b"later", False)
        assert [transport.responses[each].code for each in (rejected, second, later)] == [503, 503, 503]
        assert first not in transport.responses
        again = send(b"again", True)
        server.accepted[0].respond(AppendResponse(index=7))
        server.accepted[1].respond(AppendResponse(index=8))
        assert [transport.responses[each].index for each in (first, again)] == [7, 8]  # type: ignore[union-attr]
        assert len(server.accepted) == 2

    asyncio.run(run())


def test_puts_and_appends_are_rejected_after_each_other() -> None:
    """Each gets a response of its own class."""

    async def run() -> None:
        server, transport = ScriptedHandler(b"no"), Wire()
        inbound = Inbound(server, 1 << 20, Connections(ONE_NODE), RateLimitedLog())
        inbound._transport = transport  # type: ignore[assignment]  # a stand-in

        def send(opaque: int, request: AppendRequest) -> None:
            code = request.request_code
            transport.client._outstanding[opaque] = code
            transport.client._binary_requests.add(opaque)
            inbound.received(ReceivedRequest(opaque, request, True, False, False, code))

        send(0, PutRequest(bodies=packed(b"no")))
        send(1, AppendRequest(bodies=packed(b"second"), is_restart=False))
        send(2, PutRequest(bodies=packed(b"second"), is_restart=False))
        server.rejected[0].respond(PutResponse(code=ResponseCode.LEADER_NOT_READY, leader_id="n0", reason="not yet"))
        send(3, AppendRequest(bodies=packed(b"later"), is_restart=False))
        assert not server.accepted
        found = [transport.responses[opaque] for opaque in range(4)]
        assert [type(response) for response in found] == [PutResponse, AppendResponse, PutResponse, AppendResponse]
        assert all((response.code, response.leader_id) == (505, "n0") for response in found)  # type: ignore[union-attr]
        send(4, AppendRequest(bodies=packed(b"no"), is_restart=True))
        send(5, PutRequest(bodies=packed(b"second"), is_restart=False))
        server.rejected[1].respond(AppendResponse(code=ResponseCode.DISK_FULL))
        assert isinstance(transport.responses[5], PutResponse) and transport.responses[5].code == 415
        send(6, PutRequest(bodies=packed(b"again"), is_restart=True))
        assert len(server.accepted) == 1

    asyncio.run(run())


SECRET = "of this test"


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Nodes]:
    with nodes(tmp_path, 1, core_options={}, secret=SECRET) as group:
        group.leader()
        yield group


@pytest.mark.parametrize("given", [None, "another", SECRET + "x", ""])
@pytest.mark.parametrize(
    "request_", [MetadataRequest(), AppendRequest(bodies=packed(b"x")), GetRequest(begin_index=0)], ids=repr
)
def test_a_client_without_the_secret_is_rejected_and_disconnected(
    secret: Nodes, given: str | None, request_: Request
) -> None:
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=given)
        response = caller.call(replace(request_))
        assert isinstance(response, Rejection)
        found = "another" if given is not None and isinstance(request_, MetadataRequest) else "none"
        expected = f"expected the secret of this node in the first request, found {found}: give it with --secret-file"
        assert response.code == 16 and response.remark.startswith(expected)
        assert caller.is_closed()
    assert secret.status("n0")["endIndex"] == -1


def test_requests_after_a_wrong_secret_are_ignored(secret: Nodes) -> None:
    """Even if they arrive with the first one and have the right secret."""
    with closing(secret.caller("n0")) as caller:
        wrong, right = WireConnection(secret="wrong"), WireConnection(secret=SECRET)
        frames = [
            *wrong.request(MetadataRequest(group="g", remote_id="n0"))[1],
            *right.request(MetadataRequest(group="g", remote_id="n0"))[1],
            *right.request(AppendRequest(group="g", remote_id="n0", bodies=packed(b"x")))[1],
        ]
        caller.sock.sendall(b"".join(frames))
        assert caller.is_closed()
    time.sleep(0.1)
    assert secret.status("n0")["endIndex"] == -1


def test_a_client_with_the_secret_may_send_any_request(secret: Nodes) -> None:
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=SECRET)
        caller.hello()
        assert caller.append(b"x").code == 200
        # As a Java client, if it could send a secret.
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(offers_binary=False, secret=SECRET)
        assert caller.call(MetadataRequest()).leader_id == "n0"
        assert caller.call(GetRequest(begin_index=0)).entries[0].body == b"x"


def test_large_frames_need_the_secret(secret: Nodes) -> None:
    """Clients without the secret take no memory from others."""
    with closing(secret.caller("n0")) as caller:
        caller.sock.sendall(struct.pack(">iI", 1 << 20, 100))
        assert caller.is_closed()
    with closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=SECRET)
        caller.hello()
        assert caller.append(bytes(1 << 19)).code == 200


def test_a_client_without_a_hello_is_disconnected_soon(secret: Nodes) -> None:
    secret.stop("n0")
    secret.start("n0", handshake_timeout_ms=200)
    secret.leader()
    with closing(secret.caller("n0")) as silent, closing(secret.caller("n0")) as caller:
        caller.wire = WireConnection(secret=SECRET)
        caller.hello()
        assert silent.is_closed()
        time.sleep(0.1)
        assert caller.append(b"x").code == 200


@pytest.mark.slow
def test_members_and_clients_with_one_secret_work_together(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, secret=SECRET) as group:
        group.leader()
        with dl.connect("g", group.peers, secret=SECRET) as client:
            assert client.append(b"x").index == 0
            assert client.status("n1").end_index >= -1
        for wrong in (None, "wrong"):
            with dl.connect("g", group.peers, secret=wrong, timeout_ms=30_000) as client:
                started = time.monotonic()
                with pytest.raises(GroupError, match="give it with --secret-file") as caught:
                    client.append(b"y")
                assert caught.value.code == ResponseCode.UNKNOWN_MEMBER
                assert time.monotonic() - started < 20
        # A member with another secret cannot join.
        group.stop("n2")
        group.start("n2", secret="wrong")
        time.sleep(1)
        assert group.status("n2")["role"] == Role.CANDIDATE.value
        assert SECRET not in repr(group.nodes["n0"].config)


@pytest.mark.parametrize("value", ["", "x" * 1001, "gr\u00fcn", "a\nb", "\ud800"])
def test_an_invalid_secret_is_rejected_without_showing_it(value: str) -> None:
    for make in (
        lambda: NodeConfig("g", "n0", "n0-127.0.0.1:1", secret=value),
        lambda: dl.connect("g", "n0-127.0.0.1:1", secret=value),
    ):
        with pytest.raises(OptionError, match=f"^secret: expected .* found another text of length {len(value)}"):
            make()
