"""Processes of `dledger serve` and `dledger cluster`."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from pyspark_dledger.raft.messages import (
    GetRequest,
    MetadataRequest,
)
from tests.support.groups import (
    BUSY,
    HOST,
    THREE,
    Caller,
    Served,
    data_of,
    eventually,
    free_ports,
    peers_text,
)
from tests.support.scrapes import reason


@pytest.fixture
def served() -> Iterator[Callable[..., Served]]:
    """Starts processes of `dledger serve`, and kills those still running at the end."""
    started: list[Served] = []

    def start(*arguments: Any) -> Served:
        started.append(Served(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.close()


def try_append(ports: Sequence[int], body: bytes) -> int | None:
    """Append to one of the nodes n0, n1, ... at these ports. Returns the index if one acknowledged."""
    return try_append_to(THREE[: len(ports)], ports, body)


def try_append_to(ids: Sequence[str], ports: Sequence[int], body: bytes) -> int | None:
    for node, port in zip(ids, ports, strict=True):
        with suppress(OSError), closing(Caller(port, remote_id=node)) as caller:
            response = caller.append(body)
            if response.code == 200:
                index: int = response.index
                return index
    return None


def body_at(port: int, index: int) -> bytes:
    with closing(Caller(port)) as caller:
        body: bytes = caller.call(GetRequest(begin_index=index)).entries[0].body
        return body


def test_serve_reports_ready_and_stops_cleanly(tmp_path: Path, served: Callable[..., Served]) -> None:
    ports = free_ports(1)
    process = served("n0", peers_text(ports), tmp_path, "--log-format", "json")
    expected = {"event": "ready", "group": "g", "id": "n0", "address": f"{HOST}:{ports[0]}", "pid": process.process.pid}
    assert process.ready() == expected
    assert eventually(lambda: try_append(ports, b"x") is not None)
    assert process.terminate() == 0
    rows = [json.loads(line) for line in process.errors().splitlines()]
    assert {"time", "level", "event", "id"} <= set(rows[0])
    events = [row["event"] for row in rows]
    assert "started" in events
    assert events[-1] == "stopped"
    status = next(row for row in rows if row["event"] == "status")
    assert {"role", "term", "endIndex", "committedIndex"} <= set(status)
    assert (tmp_path / "dledger-n0" / "checkpoint").read_text().split()[1:] == ["committedIndex=0", "endIndex=0"]


def test_serve_shows_its_status_on_a_terminal(tmp_path: Path) -> None:
    ports = free_ports(1)
    terminal, end = pty.openpty()
    line = [sys.executable, "-m", "pyspark_dledger", "serve", "--group", "g", "--id", "n0"]
    line += ["--peers", peers_text(ports), "--store", str(tmp_path), "--data-file-size", "1m"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=end, env=environment)
    os.close(end)
    shown = b""
    try:
        eventually(lambda: try_append(ports, b"x") is not None)
        deadline = time.monotonic() + 15 * BUSY
        while b"endIndex=0" not in shown:
            assert time.monotonic() < deadline
            shown += os.read(terminal, 1 << 16)
    finally:
        process.terminate()
        with suppress(OSError):
            while data := os.read(terminal, 1 << 16):
                shown += data
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()
        os.close(terminal)
    # The status line is removed for a record, and drawn again after it.
    assert b"role=LEADER term=0 leaderId=n0" in shown
    records = [text for text in shown.decode().split("\r\n") if "INFO" in text]
    assert all(re.search(r"(?:^|\x1b\[[0-9;?]*[a-zA-Z]|\r)\d{4}-\d\d-\d\dT", text) for text in records)
    assert "INFO stopped" in records[-1]


def test_serve_can_be_interrupted(tmp_path: Path, served: Callable[..., Served]) -> None:
    process = served("n0", peers_text(free_ports(1)), tmp_path)
    process.ready()
    process.process.send_signal(signal.SIGINT)
    assert process.process.wait(20) == 130


def test_serve_ends_with_its_terminal(tmp_path: Path, served: Callable[..., Served]) -> None:
    process = served("n0", peers_text(free_ports(1)), tmp_path)
    process.ready()
    process.process.send_signal(signal.SIGHUP)
    assert process.process.wait(20) == 0
    assert "stopped" in process.errors()


@pytest.mark.slow
def test_serve_after_a_kill_has_all_acknowledged_entries(tmp_path: Path, served: Callable[..., Served]) -> None:
    ports = free_ports(1)
    for life in range(3):
        process = served("n0", peers_text(ports), tmp_path)
        process.ready()
        assert eventually(lambda life=life: try_append(ports, b"life %d" % life) is not None)
        process.kill()
    process = served("n0", peers_text(ports), tmp_path)
    process.ready()
    assert eventually(lambda: try_append(ports, b"end")) == 3
    assert [body_at(ports[0], index) for index in range(4)] == [b"life 0", b"life 1", b"life 2", b"end"]


@pytest.mark.slow
def test_group_survives_kill_and_pause_of_its_leader(tmp_path: Path, served: Callable[..., Served]) -> None:
    ports = free_ports(3)
    running = {node: served(node, peers_text(ports), tmp_path) for node in THREE}
    for process in running.values():
        process.ready()

    def leader() -> str | None:
        for node, port in zip(THREE, ports, strict=True):
            with suppress(OSError), closing(Caller(port, remote_id=node)) as caller:
                if name := caller.call(MetadataRequest()).leader_id:
                    return str(name)
        return None

    def append(body: bytes) -> None:
        eventually(lambda: try_append(ports, body) is not None)

    append(b"one")
    killed = eventually(leader)
    running[killed].kill()
    append(b"two")
    running[killed] = served(killed, peers_text(ports), tmp_path)
    running[killed].ready()
    append(b"three")
    paused = eventually(leader)
    running[paused].pause()
    try:
        others = [node for node in THREE if node != paused]
        rest = [ports[THREE.index(node)] for node in others]
        eventually(lambda: try_append_to(others, rest, b"four") is not None)
    finally:
        running[paused].resume()
    append(b"five")
    eventually(lambda: data_of(tmp_path, "n0") == data_of(tmp_path, "n1") == data_of(tmp_path, "n2"))
    for process in running.values():
        assert process.terminate() == 0
    data = data_of(tmp_path, "n0")
    found = [data.find(body) for body in (b"one", b"two", b"three", b"four", b"five")]
    assert found == sorted(found)
    assert found[0] == 48


def test_a_second_writer_of_a_store_is_rejected(tmp_path: Path, served: Callable[..., Served]) -> None:
    first = served("n0", peers_text(free_ports(1)), tmp_path)
    first.ready()
    second = served("n0", peers_text(free_ports(1)), tmp_path)
    assert second.process.wait(20) == 2
    assert str(first.process.pid) in second.errors()
    assert first.terminate() == 0


def test_a_member_that_serves_messages_does_not_start_without_them(
    tmp_path: Path, served: Callable[..., Served]
) -> None:
    peers = peers_text(free_ports(1))
    first = served("n0", peers, tmp_path, "--messages")
    first.ready()
    assert first.terminate() == 0
    second = served("n0", peers, tmp_path)
    assert second.process.wait(20) == 2
    folder = tmp_path / "dledger-n0" / "identities"
    assert f"--messages is missing: {folder} shows that n0 serves messages: add it" in second.errors()


@pytest.mark.slow
def test_serve_reports_invalid_arguments(tmp_path: Path, served: Callable[..., Served]) -> None:
    cases = [
        (("n0", "n0-10.1.2.3:20911", tmp_path), "allow that with listen 10.1.2.3"),
        (("n5", peers_text([1]), tmp_path), "expected this node's id n5 among them"),
        (("n0", peers_text([1]), tmp_path, "--config", tmp_path / "none"), "expected key=value lines"),
        (("n0", peers_text([1]), tmp_path, "--set", "maxHeartBeatLeek=3"), "the nearest is maxHeartBeatLeak"),
        (("n0", peers_text([1]), tmp_path, "--set", "minVoteIntervalMs=9000"), "--set: minVoteInterval"),
    ]
    for arguments, text in cases:
        process = served(*arguments[:3], *map(str, arguments[3:]))
        assert process.process.wait(20) == 2
        lines = process.errors().splitlines()
        assert len(lines) == 1
        assert text in lines[0]


def test_serve_reads_a_config_file(tmp_path: Path) -> None:
    ports = free_ports(1)
    config = tmp_path / "n0.properties"
    config.write_text(f"group=g\nselfId=n0\npeers={peers_text(ports)}\nstoreBaseDir={tmp_path}\nstoreType=MEMORY\n")
    line = [sys.executable, "-m", "pyspark_dledger", "serve", "--config", str(config)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready == ["event=ready", "group=g", "id=n0", f"address={HOST}:{ports[0]}", f"pid={process.pid}"]
    finally:
        process.terminate()
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()
    assert not (tmp_path / "dledger-n0").exists()


def base_port(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        first = free_ports(1)[0]
        with suppress(OSError, OverflowError):
            for port in range(first, first + count):
                socket.create_server((HOST, port)).close()
            return first


@pytest.mark.slow
def test_a_cluster_survives_the_kill_of_a_member(tmp_path: Path) -> None:
    first = base_port(6)
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--json", "--nodes", "3"]
    line += ["--store", str(tmp_path), "--base-port", str(first), "--data-file-size", "1m"]
    line += ["--metrics-port", str(first + 3)]
    line += ["--set", "heartBeatTimeIntervalMs=500"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(4)]
        ports = [first, first + 1, first + 2]
        assert rows[0] == {"event": "ready", "group": "g", "peers": peers_text(ports)}
        eventually(lambda: try_append(ports, b"hello") is not None)
        eventually(lambda: not any(reason(first + number) for number in (3, 4, 5)))
        os.kill(rows[1]["pid"], signal.SIGKILL)
        line = process.stderr.readline()
        assert "n0 ended with exit code -9" in line
        command = shlex.split(line.partition("to start it: ")[2])
        assert command[:2] == ["dledger", "serve"]
        again = subprocess.Popen([sys.executable, "-m", "pyspark_dledger", *command[1:]], stdout=PIPE, stderr=DEVNULL)
        assert again.stdout is not None
        assert again.stdout.readline().startswith(b"event=ready group=g id=n0")
        eventually(lambda: try_append(ports, b"again") is not None)
        again.terminate()
        assert again.wait(20) == 0
        again.stdout.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    for row in rows[1:]:
        with pytest.raises(ProcessLookupError):
            os.kill(row["pid"], 0)


def test_a_cluster_that_cannot_start_reports_why(tmp_path: Path) -> None:
    first = base_port(2)
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--nodes", "2", "--base-port", str(first)]
    with closing(socket.create_server((HOST, first + 1))):
        run = subprocess.run([*line, "--store", str(tmp_path)], capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 2
    assert "n1: did not start; its log" in run.stderr
    assert "cannot listen at" in run.stderr
    assert "Unknown child" not in run.stderr
    assert len(run.stderr.splitlines()) == 1


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.slow
def test_members_stop_when_their_cluster_is_killed(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--json", "--nodes", "2", "--data-file-size", "1m"]
    line += ["--store", str(tmp_path), "--base-port", str(base_port(2))]
    with subprocess.Popen(line, stdout=PIPE, stderr=DEVNULL, text=True) as process:
        assert process.stdout is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.kill()
    eventually(lambda: not any(is_running(row["pid"]) for row in rows[1:]))
    for row in rows[1:]:
        assert "INFO stopped" in Path(row["log"]).read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("count", "stores", "found"),
    [
        ("-1", [], "argument --nodes: expected a number of members, 1 or more, found -1"),
        ("2", ["n0", "n1", "n2"], "found dledger-n0, dledger-n1, dledger-n2: use --nodes 3"),
        ("3", ["n0", "n1"], "expected the stores of 3 members in"),
    ],
)
def test_a_cluster_rejects_another_number_of_members(tmp_path: Path, count: str, stores: list[str], found: str) -> None:
    for name in stores:
        (tmp_path / f"dledger-{name}").mkdir()
    line = [sys.executable, "-m", "pyspark_dledger", "cluster", "--nodes", count, "--store", str(tmp_path)]
    run = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert run.returncode == 2
    assert found in run.stderr
