"""Groups of real nodes on loopback addresses: in a thread of this process, or as processes of `dledger serve`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark_dledger.errors import GroupError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.messages import AppendRequest, MetadataRequest, Request, Response, Role
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.wire import ReceivedResponse, Rejection, WireConnection

T = TypeVar("T")

HOST = "127.0.0.1"
# Short elections, but long enough for a busy machine; and files that a test can fill.
FAST = {"heart_beat_time_interval_ms": 500, "min_vote_interval_ms": 50, "max_vote_interval_ms": 300}
# For tests in which one more election does no harm.
FASTER = {**FAST, "heart_beat_time_interval_ms": 150, "max_vote_interval_ms": 150}
# A member waits for a random part of the minimum until it campaigns for the first time.
NEVER_CAMPAIGNS = {"min_vote_interval_ms": 10**9, "max_vote_interval_ms": 10**9 + 1}
SMALL = {"data_file_size": 1 << 20, "index_file_size": 32 * 1024}
THREE = ("n0", "n1", "n2")
# Waits are given for an idle machine. The suite also runs on slow ones, several tests at once.
BUSY = 4


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback address.

    They are below the range for outgoing connections, which could take the port of a node that restarts.
    """
    ports: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        with suppress(OSError), socket.create_server((HOST, port)):
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def peers_text(ports: Iterable[int] | Mapping[str, int]) -> str:
    """The ``peers`` of a group: n0, n1 and so on, or the given ids."""
    named = ports if isinstance(ports, Mapping) else {f"n{number}": port for number, port in enumerate(ports)}
    return ";".join(f"{node}-{HOST}:{port}" for node, port in named.items())


def eventually(check: Callable[[], T], seconds: float = 30.0) -> T:
    """Repeat `check` until its result is true, and return that. The last result or exception becomes the failure."""
    deadline = time.monotonic() + BUSY * seconds
    while True:
        try:
            if found := check():
                return found
            problem: BaseException = AssertionError(f"still {found!r} after {BUSY * seconds} s")
        except (AssertionError, OSError) as error:
            problem = error
        if time.monotonic() > deadline:
            raise problem
        time.sleep(0.02)


def packed(*bodies: bytes) -> Bodies:
    lengths = b"".join(len(body).to_bytes(4, "big") for body in bodies)
    return Bodies(len(bodies), lengths + b"".join(bodies))


def data_of(folder: Path, node_id: str) -> bytes:
    """All bytes of a node's data files."""
    return b"".join(path.read_bytes() for path in sorted((folder / f"dledger-{node_id}" / "data").iterdir()))


class Caller:
    """A blocking connection to one node, for one or several requests at a time."""

    def __init__(self, port: int, group: str = "g", remote_id: str = "n0", sock: socket.socket | None = None) -> None:
        self.group, self.remote_id = group, remote_id
        self.sock = sock or socket.create_connection((HOST, port), 30)
        self.sock.settimeout(60)
        self.wire = WireConnection()
        self._responses: dict[int, Response | Rejection] = {}

    def hello(self) -> Caller:
        """Switch to the binary dialect."""
        self.call(MetadataRequest())
        assert self.wire.is_binary
        return self

    def send(self, request: Request) -> int:
        request.group, request.remote_id = request.group or self.group, request.remote_id or self.remote_id
        opaque, parts = self.wire.request(request)
        self.sock.sendall(b"".join(parts))
        return opaque

    def receive(self, opaque: int) -> Any:
        """The response to that request."""
        while opaque not in self._responses:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed")
            for item in self.wire.feed(data):
                assert isinstance(item, ReceivedResponse)
                self._responses[item.opaque] = item.response
        return self._responses.pop(opaque)

    def call(self, request: Request) -> Any:
        return self.receive(self.send(request))

    def append(self, *bodies: bytes) -> Any:
        return self.call(AppendRequest(bodies=packed(*bodies)))

    def is_closed(self) -> bool:
        """Wait until the other side closes the connection."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        return True

    def close(self) -> None:
        self.sock.close()


class Nodes:
    """Nodes in an event loop in a thread of this process.

    The option ``application`` is a factory that gets the id; with ``metrics`` each node has an address for metrics.
    """

    def __init__(self, folder: Path, count: int, **options: Any) -> None:
        self.folder = folder
        self.ports = free_ports(count)
        self.peers = peers_text(self.ports)
        self.nodes: dict[str, Node] = {}
        self.metrics_ports: dict[str, int] = {}
        self._options = {"core_options": FAST, "store_options": SMALL, **options}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def ids(self) -> list[str]:
        return [f"n{number}" for number in range(len(self.ports))]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the nodes' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self, *ids: str, **options: Any) -> Nodes:
        """Start these nodes, by default all."""
        for node_id in ids or self.ids:
            settings: dict[str, Any] = {"group": "g", "peers": self.peers, "store": self.folder}
            settings |= self._settings(node_id, options)
            make_application = settings.pop("application", None)
            application = None if make_application is None else make_application(node_id)
            node = Node(NodeConfig(self_id=node_id, **settings), application)
            self.run(node.start())
            self.nodes[node_id] = node
        return self

    def _settings(self, node_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        settings = {**self._options, **options}
        if settings.get("metrics") is True:
            settings["metrics"] = str(self.metrics_ports.setdefault(node_id, free_ports(1)[0]))
        return settings

    def stop(self, *ids: str) -> None:
        for node_id in ids or list(self.nodes):
            self.run(self.nodes.pop(node_id).stop())

    def status(self, node_id: str) -> Mapping[str, Any]:
        async def status() -> Mapping[str, Any]:
            return self.nodes[node_id].status()

        return self.run(status())

    def leader(self, seconds: float = 30.0) -> str:
        """The leader that every running node follows."""

        def agreed() -> str | None:
            found = [self.status(node_id) for node_id in self.nodes]
            named = {(row["leaderId"], row["term"]) for row in found}
            leader = found[0]["leaderId"]
            if len(named) != 1 or leader not in self.nodes:
                return None
            return leader if self.status(leader)["role"] == Role.LEADER.value else None

        leader = eventually(agreed, seconds)
        assert leader is not None
        return leader

    def replace_leaders(self, count: int, pause: float = 0.3) -> None:
        """Stop the leader and start it again after the next election, `count` times, with pauses in seconds."""
        for _ in range(count):
            leader = self.leader()
            time.sleep(pause)
            self.stop(leader)
            self.leader()
            time.sleep(pause)
            self.start(leader)

    def port(self, node_id: str) -> int:
        return self.ports[self.ids.index(node_id)]

    def caller(self, node_id: str, tls: ssl.SSLContext | None = None) -> Caller:
        sock = None
        if tls is not None:
            sock = tls.wrap_socket(socket.create_connection((HOST, self.port(node_id)), 30), server_hostname=HOST)
        return Caller(self.port(node_id), remote_id=node_id, sock=sock)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def nodes(folder: Path, count: int, **options: Any) -> Iterator[Nodes]:
    """A group that runs in this process until the end of the context."""
    group = Nodes(folder, count, **options)
    try:
        yield group.start()
    finally:
        group.close()


def remove(group: Nodes, client: Client, node_id: str) -> None:
    """Remove a member, once the others are level, and all know the cluster id."""
    eventually(lambda: len({node.store.cluster_id for node in group.nodes.values()} - {""}) == 1)
    eventually(lambda: all(node.store.cluster_id for node in group.nodes.values()))

    def removed() -> bool:
        try:
            return bool(client.remove_member(node_id))
        except GroupError as error:
            if "up and level" not in str(error):
                raise
            return False

    eventually(removed)


class Served:
    """A process of `dledger serve`, with an optional limit of open files."""

    def __init__(self, node_id: str, peers: str, folder: Path, *flags: str, open_files: int | None = None) -> None:
        line = [sys.executable, "-m", "pyspark_dledger", "serve", "--json", "--group", "g"]
        line += ["--id", node_id, "--peers", peers, "--store", str(folder), "--data-file-size", "1m"]
        for name, value in FAST.items():
            first, *rest = name.removesuffix("_ms").split("_")
            line += ["--set", f"{first}{''.join(map(str.capitalize, rest))}Ms={value}"]
        line += flags
        self.id = node_id

        def limit() -> None:
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        self.process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit
        )
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def ready(self) -> dict[str, Any]:
        """The first line of its output, printed when it listens."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        row: dict[str, Any] = json.loads(line)
        return row

    def errors(self) -> str:
        """Its standard error, complete if the process has ended."""
        if self.process.poll() is not None:
            self._reader.join(10)
        return "".join(self._errors)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def terminate(self) -> int:
        """Send SIGTERM, as a service manager does. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
