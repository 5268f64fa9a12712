"""Known defects of nodes under load: answers that nobody takes and connections that stay silent."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.messages import ReadRequest
from tests.known_defects import DefectShown, should
from tests.support.certificates import make_tls
from tests.support.groups import HOST, Caller, Served, free_ports, peers_text
from tests.support.processes import open_files, peak_memory, settled

_MIB = 1 << 20
_CONNECTIONS, _READS = 12, 16
_MAX_GROWTH = 256 * _MIB
_MAX_OPEN_FILES = 256


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="answers that no client takes are kept in memory, and nothing limits them for all connections together",
)
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
            sock = stack.enter_context(socket.socket())
            # The system keeps few of the answers.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((HOST, port))
            caller = Caller(port, sock=sock).hello()
            with suppress(OSError):
                for _ in range(_READS):
                    caller.send(ReadRequest(first_index=0, max_bytes=4 * _MIB))
        growth = settled(lambda: peak_memory(node.process.pid) - before, _MAX_GROWTH)
        should(growth < _MAX_GROWTH, f"{_CONNECTIONS * _READS} requests cost {growth // _MIB} MiB")
        client.append(b"after")


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="unfinished TLS handshakes take all open files, so the leader cannot create its next data file",
)
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
        try:
            for _ in range(6):
                client.append(bytes(30_000))
        except (GroupError, UnknownOutcomeError) as error:
            should(False, f"an append is refused: {error}")
