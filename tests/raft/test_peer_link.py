"""A node's connection to a peer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    Response,
)
from pyspark_dledger.raft.node.peer_link import PeerLink
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire import ReceivedRequest, WireConnection
from tests.support.groups import (
    BUSY,
    HOST,
    free_ports,
)


class Peer:
    """A scripted peer."""

    def __init__(self, offers_binary: bool = True) -> None:
        self.wire = WireConnection(offers_binary=offers_binary)
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writer = writer
        self.wire = WireConnection(offers_binary=self.wire._offers_binary)
        while data := await reader.read(1 << 16):
            for received in self.wire.feed(data):
                assert isinstance(received, ReceivedRequest)
                if not isinstance(received.request, MetadataRequest):
                    self.requests.append(received)
                else:
                    self.respond(received, MetadataResponse())

    def respond(self, received: ReceivedRequest, response: Response) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(self.wire.respond(received, response)))

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()


class Linked:
    """A link to a scripted peer, and the reported outcomes."""

    def __init__(self, port: int) -> None:
        self.responses: dict[int, Response | None] = {}
        self.binary_peers: list[bool] = []
        hello = MetadataRequest(group="g", remote_id="n1", local_id="n0")
        self.link = PeerLink(
            "n1",
            Address(HOST, port),
            hello,
            None,
            1 << 20,
            self._on_response,
            lambda _, is_binary, _hello: self.binary_peers.append(is_binary),
        )
        self.link.start()

    def _on_response(self, token: int, response: Response | None) -> None:
        assert token not in self.responses
        self.responses[token] = response

    def send(self, token: int) -> None:
        request = HeartBeatRequest(group="g", remote_id="n1", leader_id="n0", term=token)
        self.link.send(token, request, int(asyncio.get_running_loop().time() * 1000))
        self.link.flush()


@asynccontextmanager
async def linked_to(port: int) -> AsyncIterator[Linked]:
    """A link that is stopped if an assertion fails, too: the end of the loop may wait for a running one for ever."""
    linked = Linked(port)
    try:
        yield linked
    finally:
        await asyncio.wait_for(linked.link.stop(), 30)


async def until(check: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + BUSY * seconds
    while not check():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("offers_binary", [True, False], ids=["binary", "java"])
def test_link_uses_the_dialect_of_its_peer(offers_binary: bool) -> None:
    async def run() -> None:
        peer = Peer(offers_binary)
        async with linked_to(await peer.start()) as linked:
            await until(lambda: linked.link.is_connected and linked.binary_peers)
            assert linked.binary_peers == [offers_binary]
            linked.send(1)
            await until(lambda: peer.requests)
            assert peer.requests[0].is_binary is offers_binary
            peer.respond(peer.requests[0], HeartBeatResponse(term=7))
            await until(lambda: linked.responses)
            response = linked.responses[1]
            assert response is not None
            assert response.term == 7
        peer.server.close()

    asyncio.run(run())


def test_link_reports_every_outcome_once() -> None:
    async def run() -> None:
        peer = Peer()
        async with linked_to(await peer.start()) as linked:
            linked.send(1)  # while it connects
            await until(lambda: linked.link.is_connected and peer.requests)
            linked.send(2)
            await until(lambda: len(peer.requests) == 2)
            peer.respond(peer.requests[0], HeartBeatResponse(term=1))
            await until(lambda: 1 in linked.responses)
            peer.hang_up()
            await until(lambda: 2 in linked.responses)
            assert linked.responses[2] is None
            linked.send(3)
            await until(lambda: linked.link.is_connected and peer.connections == 2)
            linked.send(4)
            await until(lambda: len(peer.requests) >= 3)
            peer.respond(peer.requests[-1], HeartBeatResponse(term=4))
            await until(lambda: len(linked.responses) == 4)
        peer.server.close()

    asyncio.run(run())


def test_link_reconnects_to_a_silent_peer() -> None:
    async def run() -> None:
        peer = Peer()
        async with linked_to(await peer.start()) as linked:
            await until(lambda: linked.link.is_connected)
            linked.send(1)
            await until(lambda: peer.requests)
            later = int(asyncio.get_running_loop().time() * 1000) + 3001
            linked.link.expire(later)
            assert linked.responses == {1: None}
            await until(lambda: peer.connections == 2 and linked.link.is_connected)
        peer.server.close()

    asyncio.run(run())


@pytest.mark.slow
def test_link_can_be_stopped_at_any_time() -> None:
    """A cancellation at the same time as an awaited result must not be lost."""

    async def run() -> None:
        peer = Peer()
        port = await peer.start()
        nobody = free_ports(1)[0]
        for turns in range(40):
            linked = Linked(nobody if turns % 2 else port)
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            await asyncio.wait_for(linked.link.stop(), 30)
            assert not linked.link.is_connected
        peer.server.close()

    asyncio.run(run())


def test_link_to_an_absent_peer_fails_at_once() -> None:
    async def run() -> None:
        async with linked_to(free_ports(1)[0]) as linked:
            await asyncio.sleep(0.2)
            for token in range(1000):
                linked.send(token)
            await until(lambda: len(linked.responses) == 1000)
            assert set(linked.responses.values()) == {None}

    asyncio.run(run())
