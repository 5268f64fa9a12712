"""Scripted members of a group, over real sockets; they can send responses that real nodes rarely or never send."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.entry_encoding import unpack_bodies
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    PutRequest,
    PutResponse,
    Request,
    Response,
    TopicsRequest,
    TopicsResponse,
)
from pyspark_dledger.raft.wire import ReceivedRequest, Rejection, WireConnection
from pyspark_dledger.store.dledger_store import Entry, EntryRun

HOST = "127.0.0.1"
HEADER = 48


class Log:
    """The log of the whole group."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.lock = threading.Lock()

    def append(self, bodies: list[bytes], term: int = 1) -> AppendResponse:
        with self.lock:
            index, pos = len(self.bodies), sum(map(len, self.bodies)) + HEADER * len(self.bodies)
            self.bodies += bodies
        return AppendResponse(
            group="g", index=index, pos=pos, term=term, count=len(bodies), runs=(EntryRun(index, pos),)
        )

    def put(self, bodies: list[bytes]) -> PutResponse:
        """Append messages without duplicates. Bodies that begin with ``anonymous`` have no identity."""
        with self.lock:
            response = PutResponse(group="g", term=1, count=len(bodies))
            for body in bodies:
                if body.startswith(b"anonymous") or body not in self.bodies:
                    self.bodies.append(body)
                    index = len(self.bodies) - 1
                else:
                    index = self.bodies.index(body)
                response.positions = bytes(response.positions) + struct.pack(
                    ">qqq", index, self.get(index).pos, index % 100
                )
        return response

    def get(self, index: int) -> Entry:
        return Entry(index, 1, sum(map(len, self.bodies[:index])) + HEADER * index, 1, self.bodies[index])


@dataclass
class Act:
    """The reaction to one append: whether it is appended, and the response; ``code`` None: no response."""

    is_appended: bool = True
    code: int | None = ResponseCode.SUCCESS
    leader_id: str | None = None
    disconnects: bool = False
    delay: float = 0.0
    count_off: int = 0
    index_off: int = 0
    raw: bytes = b""
    rejection: Rejection | None = None


ACK = Act()
SILENT = Act(code=None)
DISCONNECTED = Act(is_appended=False, code=None, disconnects=True)
APPENDED_AND_DISCONNECTED = Act(code=None, disconnects=True)


def reject(code: int, leader_id: str | None = None) -> Act:
    return Act(is_appended=False, code=code, leader_id=leader_id)


def appended_but(code: int) -> Act:
    return Act(code=code)


@dataclass
class SeenAppend:
    """A received append."""

    bodies: list[bytes]
    is_restart: bool
    connection: int
    queue_nums: int | None = None


@dataclass
class FakeMember:
    """One member. ``script`` has the reaction to each append; after its end all are acknowledged.

    A binary member that rejected an append rejects all later ones with the same code, until one is a restart.
    """

    node_id: str = "n0"
    leader_id: str | None = "n0"
    log: Log = field(default_factory=Log)
    is_binary: bool = True
    serves_messages: bool = False
    script: deque[Act] = field(default_factory=deque)
    responses: dict[type[Request], Callable[[Request], Response | None]] = field(default_factory=dict)
    hello_code: int = ResponseCode.SUCCESS
    appends: list[SeenAppend] = field(default_factory=list)
    wrap: Callable[[socket.socket], socket.socket] | None = None
    peers: dict[str, str] = field(default_factory=dict)
    connections: list[socket.socket] = field(default_factory=list)
    is_running: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.server = socket.create_server((HOST, 0))
        self.port = self.server.getsockname()[1]
        self.is_running.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def peer(self) -> str:
        return f"{self.node_id}-{HOST}:{self.port}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections.append(connection)
                threading.Thread(target=self._serve, args=(connection, len(self.connections)), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError):
            if self.wrap is not None:
                connection = self.wrap(connection)
            _Served(self, connection, number).run()

    def disconnect(self) -> None:
        """Reset all connections."""
        for connection in self.connections:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.disconnect()
        for connection in self.connections:
            connection.close()
        self.is_running.set()


class _Served:
    """One connection of a member."""

    def __init__(self, fake: FakeMember, connection: socket.socket, number: int) -> None:
        self.fake = fake
        self.socket = connection
        self.number = number
        self.wire = WireConnection(offers_binary=fake.is_binary)
        self.rejection: Act | None = None

    def run(self) -> None:
        while data := self.socket.recv(1 << 20):
            self.fake.is_running.wait()
            for received in self.wire.feed(data):
                assert isinstance(received, ReceivedRequest)
                if not self._handle(received):
                    return

    def _handle(self, received: ReceivedRequest) -> bool:
        request = received.request
        assert isinstance(request, Request)
        if isinstance(request, AppendRequest):
            return self._append(received, request)
        response = self._response(request)
        if response is not None:
            self.socket.sendall(b"".join(self.wire.respond(received, response)))
        return True

    def _response(self, request: Request) -> Response | None:
        fake = self.fake
        if type(request) in fake.responses:
            return fake.responses[type(request)](request)
        if isinstance(request, MetadataRequest):
            peers = fake.peers or {fake.node_id: f"{HOST}:{fake.port}"}
            return MetadataResponse(group="g", leader_id=fake.leader_id, peers=peers, code=fake.hello_code)
        if isinstance(request, TopicsRequest):
            return self._topics(request)
        assert isinstance(request, GetRequest)
        if 0 <= request.begin_index < len(fake.log.bodies):
            return GetResponse(group="g", entries=[fake.log.get(request.begin_index)])
        return GetResponse(group="g", code=ResponseCode.INDEX_OUT_OF_RANGE)

    def _topics(self, request: TopicsRequest) -> Response:
        if not self.fake.serves_messages:
            return TopicsResponse(group="g", code=ResponseCode.UNSUPPORTED)
        counts = dict.fromkeys(request.names, request.queue_nums)
        return TopicsResponse(group="g", queue_counts=counts, store_host=bytes(range(8)))

    def _append(self, received: ReceivedRequest, request: AppendRequest) -> bool:
        fake = self.fake
        bodies = unpack_bodies(request.bodies)
        is_put = isinstance(request, PutRequest)
        queue_nums = request.queue_nums if isinstance(request, PutRequest) else None
        fake.appends.append(SeenAppend(bodies, request.is_restart, self.number, queue_nums))
        if request.is_restart or not fake.is_binary:
            self.rejection = None
        act = self.rejection or (fake.script.popleft() if fake.script else ACK)
        if is_put and not fake.serves_messages:
            act = reject(ResponseCode.UNSUPPORTED)
        if not act.is_appended and act.code is not None:
            self.rejection = act
        response: AppendResponse | PutResponse = PutResponse(term=1) if is_put else AppendResponse(term=1)
        if act.is_appended:
            response = fake.log.put(bodies) if is_put else fake.log.append(bodies)
        if act.delay:
            time.sleep(act.delay)
        if act.raw:
            self.socket.sendall(act.raw)
        if act.rejection is not None:
            self.socket.sendall(b"".join(self.wire.reject(received, act.rejection)))
        elif act.code is not None:
            response.group, response.code, response.leader_id = "g", act.code, act.leader_id
            response.count += act.count_off
            if isinstance(response, AppendResponse):
                response.index += act.index_off
            if isinstance(response, PutResponse):
                self._finish(response, act)
            self.socket.sendall(b"".join(self.wire.respond(received, response)))
        if act.disconnects:
            self.socket.close()
        return not act.disconnects

    def _finish(self, response: PutResponse, act: Act) -> None:
        if act.code != ResponseCode.SUCCESS or act.count_off:
            response.positions = b""
        if act.code == ResponseCode.UNEXPECTED_ARGUMENT:
            response.reason = "message 3: expected a topic, found none"


@contextmanager
def fakes(*members: FakeMember) -> Iterator[str]:
    """The members' ``peers``. They share the log of the first, know each other, and are closed at the end."""
    addresses = {member.node_id: f"{HOST}:{member.port}" for member in members}
    for member in members:
        member.log = members[0].log
        member.peers = member.peers or addresses
    try:
        yield ";".join(member.peer for member in members)
    finally:
        for member in members:
            member.close()
