"""Limits of a node's connections: responses that no client reads, silent connections, and room for members."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.raft.client import member_connection
from pyspark_dledger.raft.messages import ReadRequest
from tests.support.certificates import make_tls
from tests.support.groups import FAST, HOST, Caller, Nodes, Served, eventually, free_ports, nodes, peers_text
from tests.support.processes import open_files, peak_memory, settled

_MIB = 1 << 20
_CONNECTIONS, _READS = 12, 16
_MAX_GROWTH = 256 * _MIB
_MAX_OPEN_FILES = 256


def _slow_caller(port: int) -> Caller:
    """A connection whose system keeps few of the answers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((HOST, port))
    return Caller(port, sock=sock).hello()


def _send_reads(caller: Caller) -> list[int]:
    return [caller.send(ReadRequest(first_index=0, max_bytes=4 * _MIB)) for _ in range(_READS)]


@pytest.mark.slow
def test_reads_whose_answers_nobody_takes_need_little_memory(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    peers = peers_text([port])
    with ExitStack() as stack:
        node = Served("n0", peers, tmp_path, "--data-file-size", "64m")
        stack.callback(node.close)
        node.ready()
        client = stack.enter_context(dl.connect("g", peers))
        for _ in range(6):
            client.append(bytes(_MIB))
        before = peak_memory(node.process.pid)
        for _ in range(_CONNECTIONS):
            _send_reads(stack.enter_context(closing(_slow_caller(port))))
        growth = settled(lambda: peak_memory(node.process.pid) - before, _MAX_GROWTH)
        assert growth < _MAX_GROWTH, f"{_CONNECTIONS * _READS} requests cost {growth // _MIB} MiB"
        client.append(b"after")


def test_silent_connections_leave_open_files_for_the_store(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    (port,) = free_ports(1)
    peers = peers_text([port])
    files = ("--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca))
    with ExitStack() as stack:
        node = Served("n0", peers, tmp_path, "--data-file-size", "64k", *files, open_files=_MAX_OPEN_FILES)
        stack.callback(node.close)
        node.ready()
        client = stack.enter_context(dl.connect("g", peers, tls=tls, timeout_ms=3000, max_retries=1))
        client.append(b"before")
        with suppress(OSError):
            for _ in range(_MAX_OPEN_FILES + 40):
                stack.enter_context(socket.create_connection((HOST, port), 1))
        settled(lambda: open_files(node.process.pid), _MAX_OPEN_FILES)
        for _ in range(6):
            client.append(bytes(30_000))


@pytest.mark.slow
def test_a_slow_client_is_served_while_others_read_nothing(tmp_path: Path) -> None:
    """It takes 1 MB/s. The others use all the memory, and are disconnected when it is missed."""
    with nodes(tmp_path, 1, max_connection_memory=64 * _MIB, store_options={"data_file_size": 8 * _MIB}) as group:
        group.leader()
        with ExitStack() as stack:
            slow = stack.enter_context(closing(group.caller("n0"))).hello()
            slow.append(bytes(3 * _MIB))
            for _ in range(12):
                _send_reads(stack.enter_context(closing(_slow_caller(group.port("n0")))))
            opaque = slow.send(ReadRequest(first_index=0, max_bytes=4 * _MIB))
            received = 0
            slow.sock.settimeout(20)
            while received < 3 * _MIB:
                data = slow.sock.recv(50_000)
                assert data, "the slow client was disconnected"
                received += len(data)
                slow._responses |= {item.opaque: item.response for item in slow.wire.feed(data)}  # type: ignore[union-attr]
                time.sleep(0.05)
            assert slow.receive(opaque).count == 1


# Time


def test_silent_connections_are_closed(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    limits = {"handshake_timeout_ms": 1000, "idle_timeout_ms": 1000, "transfer_timeout_ms": 300}
    with nodes(tmp_path / "log", 1, tls=tls, **limits) as group, ExitStack() as stack:
        group.leader()
        client = stack.enter_context(dl.connect("g", group.peers, tls=tls))
        client.append(b"before")
        handshake = stack.enter_context(socket.create_connection((HOST, group.port("n0")), 10))
        idle, frame = (stack.enter_context(closing(group.caller("n0", tls.client_context()))) for _ in range(2))
        idle.hello()
        frame.sock.sendall(b"\0\0\1\0")
        assert not handshake.recv(1)
        assert frame.is_closed() and idle.is_closed()
        # The client has been disconnected too, and connects again.
        eventually(lambda: not group.nodes["n0"]._connections.all())
        time.sleep(0.2)
        assert client.append(b"after").index == 1


def test_a_client_that_reads_no_response_is_disconnected(tmp_path: Path) -> None:
    options = {"data_file_size": 8 * _MIB}
    with nodes(tmp_path, 1, transfer_timeout_ms=300, store_options=options) as group, ExitStack() as stack:
        group.leader()
        client = stack.enter_context(dl.connect("g", group.peers))
        client.append(bytes(3 * _MIB))
        _send_reads(stack.enter_context(closing(_slow_caller(group.port("n0")))))
        connections = group.nodes["n0"]._connections
        assert len(connections.all()) == 2
        eventually(lambda: len(connections.all()) == 1)
        assert client.append(b"after").index == 1


def test_an_idle_client_disconnects_itself(one_node: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no append meets the end of its connection."""
    monkeypatch.setattr(member_connection, "_IDLE_SECONDS", 0.2)
    with dl.connect("g", one_node.peers) as client:
        assert client.append(b"x").index == 0
        eventually(lambda: not one_node.nodes["n0"]._connections.all())
        assert client.append(b"y").index == 1
        # A request without a response keeps the connection.
        assert client.read(2, wait_ms=600).count == 0


# Members


def test_members_connect_when_clients_use_all_connections(tmp_path: Path) -> None:
    with nodes(tmp_path, 3, max_connections=4, core_options=FAST) as group, ExitStack() as stack:
        client = stack.enter_context(dl.connect("g", group.peers))
        client.append(b"before")
        leader = group.leader()
        follower = next(node for node in group.ids if node != leader)
        group.stop(follower)
        client.append(b"while it is down")
        for node in group.nodes:
            for _ in range(4):
                caller = stack.enter_context(closing(group.caller(node)))
                with suppress(ConnectionResetError):
                    caller.hello().send(ReadRequest(first_index=99, wait_ms=60_000))
            for _ in range(20):
                stack.enter_context(closing(group.caller(node)))
        group.start(follower)
        assert group.leader() in group.ids
        eventually(lambda: group.status(follower)["endIndex"] >= 1)
        assert len(group.nodes[leader]._connections.all()) <= 4 + 2 * 4 + 2
