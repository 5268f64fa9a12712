"""Clients that try to take memory, open files and connections from all others."""

from __future__ import annotations

import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.raft.messages import ConfigRequest, ReadRequest, Request, StatusRequest, TopicsRequest
from tests.support.certificates import make_tls
from tests.support.groups import HOST, Caller, Served, eventually, free_ports, nodes, peers_text
from tests.support.message_nodes import message_nodes
from tests.support.processes import open_files, peak_memory, settled
from tests.support.sinks import Sinks, client_of

MEBIBYTE = 1 << 20
MAX_GROWTH = 256 * MEBIBYTE
FRAME_HEADER = struct.Struct(">iI")
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads memory in /proc, or sets limits of a process")


# Memory


class Victim:
    """A node in a process of its own, and the memory that attacks cost it."""

    def __init__(self, folder: Path, *flags: str, **options: Any) -> None:
        (self.port,) = free_ports(1)
        self.peers = peers_text([self.port])
        self._node = Served("n0", self.peers, folder, *flags)
        self._node.ready()
        self._base = 0
        self.client = dl.connect("g", self.peers, **options)

    def caller(self) -> Caller:
        """A connection that takes little of what the node sends."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((HOST, self.port))
        return Caller(self.port, sock=sock).hello()

    def begin(self) -> None:
        """The attack begins: memory counts from here."""
        self._base = peak_memory(self._node.process.pid)

    def growth(self) -> int:
        """Bytes, while another client appends."""

        def measure() -> int:
            self.client.append(b"of another client")
            return (peak_memory(self._node.process.pid) - self._base) // MEBIBYTE

        return settled(measure, MAX_GROWTH // MEBIBYTE) * MEBIBYTE

    def open_files(self) -> int:
        return open_files(self._node.process.pid)

    def close(self) -> None:
        self.client.close()
        self._node.close()


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Callable[..., Victim]]:
    with ExitStack() as stack:

        def start(*flags: str, **options: Any) -> Victim:
            return stack.enter_context(closing(Victim(tmp_path, *flags, **options)))

        yield start


def send_together(caller: Caller, requests: Sequence[Request]) -> None:
    """Send many requests at once, and take no response."""
    frames = []
    for request in requests:
        request.group, request.remote_id = caller.group, caller.remote_id
        frames += caller.wire.request(request)[1]
    caller.sock.sendall(b"".join(frames))


@only_linux
def test_reads_that_arrive_together_need_little_memory(victim: Callable[..., Victim]) -> None:
    node = victim("--data-file-size", "64m")
    for _ in range(5):
        node.client.append(bytes(4 * MEBIBYTE - 1000))
    with closing(node.caller()) as caller:
        node.begin()
        send_together(caller, [ReadRequest(first_index=0, max_bytes=4 * MEBIBYTE) for _ in range(90)])
        growth = node.growth()
    assert growth < MAX_GROWTH, f"90 requests cost {growth // MEBIBYTE} MiB"


@pytest.mark.slow
@only_linux
def test_config_requests_need_little_memory(victim: Callable[..., Victim]) -> None:
    node = victim("--messages")
    with suppress(DLedgerError):
        node.client.topics([f"topic-{number:06}" for number in range(50_000)])
    # The leader encodes the topics once, which takes seconds.
    node.client.config()
    with closing(node.caller()) as caller:
        node.begin()
        send_together(caller, [ConfigRequest() for _ in range(40)])
        growth = node.growth()
    assert growth < MAX_GROWTH, f"40 requests cost {growth // MEBIBYTE} MiB"


@pytest.mark.slow
@only_linux
def test_unfinished_frames_need_little_memory(victim: Callable[..., Victim]) -> None:
    node = victim()
    size = 16 * MEBIBYTE - 4
    with ExitStack() as stack:
        node.begin()
        for _ in range(24):
            sock = stack.enter_context(socket.create_connection((HOST, node.port), 10))
            with suppress(OSError):
                sock.sendall(FRAME_HEADER.pack(size, 10) + bytes(size - 200_000))
        growth = node.growth()
    assert growth < MAX_GROWTH, f"24 frames that are not complete take {growth // MEBIBYTE} MiB"


@pytest.mark.slow
@only_linux
def test_many_large_frames_that_begin_together_need_little_memory(victim: Callable[..., Victim]) -> None:
    """Memory is reserved before it is allocated, and another client's large append finds some."""
    node = victim("--data-file-size", "64m")
    with ExitStack() as stack:
        node.begin()
        for _ in range(150):
            sock = stack.enter_context(socket.create_connection((HOST, node.port), 10))
            sock.settimeout(0.05)
            with suppress(OSError):
                sock.sendall(FRAME_HEADER.pack(16 * MEBIBYTE - 4, 10) + bytes(4 * MEBIBYTE))
        growth = node.growth()
        node.client.append(bytes(MEBIBYTE))
    assert growth < MAX_GROWTH, f"150 frames that are not complete take {growth // MEBIBYTE} MiB"


@pytest.mark.slow
def test_connections_without_a_request_do_not_exclude_others(victim: Callable[..., Victim]) -> None:
    node = victim()
    node.client.append(b"before")
    with ExitStack() as stack:
        for _ in range(600):
            sock = stack.enter_context(socket.create_connection((HOST, node.port), 10))
            with suppress(OSError):
                sock.sendall(FRAME_HEADER.pack(16 * MEBIBYTE - 4, 10))
        node.client.append(b"after")


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard >= 0 else 4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@only_linux
@pytest.mark.usefixtures("many_open_files")
def test_unfinished_handshakes_need_little_memory(tmp_path: Path, victim: Callable[..., Victim]) -> None:
    tls = make_tls(tmp_path)
    node = victim("--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca), tls=tls)
    with ExitStack() as stack:
        node.begin()
        with suppress(OSError):
            for _ in range(1200):
                stack.enter_context(socket.create_connection((HOST, node.port), 10))
        growth = node.growth()
    assert growth < MAX_GROWTH, f"1200 handshakes that are not complete take {growth // MEBIBYTE} MiB"


# Connections


@pytest.fixture
def hour_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock of this process, and so of its event loops, by one hour."""
    clock, added = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + added[0])

    def add() -> None:
        added[0] += 3600

    return add


@pytest.mark.slow
def test_idle_connections_do_not_exclude_others(tmp_path: Path, hour_passes: Callable[[], None]) -> None:
    with nodes(tmp_path, 1, max_connections=8) as group, ExitStack() as stack:
        group.leader()
        for _ in range(8):
            stack.callback(group.caller("n0").close)
        with suppress(OSError):
            # The node has accepted the others before this one.
            assert _has_status(group.caller("n0"))
            return
        hour_passes()
        eventually(lambda: _has_status(group.caller("n0")), 2)


def _has_status(caller: Caller) -> bool:
    with closing(caller):
        return caller.hello().call(StatusRequest()).code == 200


@pytest.mark.slow
def test_unfinished_frame_expires(tmp_path: Path, hour_passes: Callable[[], None]) -> None:
    with nodes(tmp_path, 1) as group, closing(group.caller("n0")) as caller:
        group.leader()
        caller.sock.sendall(FRAME_HEADER.pack(8 * MEBIBYTE, 100) + bytes(MEBIBYTE))
        # The node has seen the frame when it has done this.
        assert all(_has_status(group.caller("n0")) for _ in range(3))
        hour_passes()
        caller.sock.settimeout(10)
        assert caller.is_closed()


@only_linux
def test_strangers_leave_open_files_for_the_store_of_a_sink(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sinks = stack.enter_context(closing(Sinks(tmp_path / "log")))
        sink = sinks.start()
        client = stack.enter_context(client_of(sink))
        client.append(b"before")
        limit = open_files(sink.pid) + 20
        resource.prlimit(sink.pid, resource.RLIMIT_NOFILE, (limit, limit))
        for _ in range(40):
            stack.enter_context(socket.create_connection((sink.host, sink.port), 2))
        settled(lambda: open_files(sink.pid), limit)
        for _ in range(12):
            client.append(bytes(200_000))


# Topics


@pytest.mark.slow
def test_one_request_makes_no_billion_queues(tmp_path: Path) -> None:
    names = tuple(f"t{number}" for number in range(60_000))
    with message_nodes(tmp_path, 1) as group, closing(group.caller(group.ready_leader())) as caller:
        code = caller.hello().call(TopicsRequest(names=names, queue_nums=65_536)).code
        assert code != 200, f"{len(names)} topics with {65_536 * len(names)} queues were made"
