"""A group of `dledger serve` processes on loopback, connected by links that can fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.proxy import Network
from tests.support.groups import free_ports, peers_text

# Short times, so that a round takes a second or two; their ratios are those of the defaults.
SETTINGS = {
    "heartBeatTimeIntervalMs": 200,
    "maxHeartBeatLeak": 3,
    "minVoteIntervalMs": 50,
    "maxVoteIntervalMs": 300,
    "mappedFileSizeForEntryData": 4 * 1024 * 1024,
    "mappedFileSizeForEntryIndex": 32 * 16 * 1024,
    "scrubBytesPerSecond": 64 * 1024 * 1024,
}
GROUP = "chaos"
_STOP_SECONDS = 60.0


class Group:
    """Nodes by id. ``folder`` has the store of each by its id, and its output as ``<id>.log``."""

    def __init__(self, folder: Path, size: int, flush: str, messages: bool = False) -> None:
        self.folder = folder
        self.flush = flush
        self.messages = messages
        self.ids = [f"n{i}" for i in range(size)]
        self.ports = dict(zip(self.ids, free_ports(size), strict=True))
        self.network = Network(self.ports)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.paused: set[str] = set()
        self._joining: set[str] = set()
        self._output: dict[str, int] = {}
        self._settings = folder / "chaos.conf"
        # Each node reaches the others through links of its own.
        settings = {**SETTINGS, "commonPeers": self.peers}
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    @property
    def peers(self) -> str:
        """The members with their own ports, for clients."""
        return peers_text(self.ports)

    def root(self, node: str) -> Path:
        return self.folder / node

    def store(self, node: str) -> Path:
        return self.root(node) / f"dledger-{node}"

    def _peers_of(self, node: str) -> str:
        links = {other: self.network.links[node, other].port for other in self.ids if other != node}
        return peers_text({**self.ports, **links})

    def start(self, node: str) -> None:
        command = [sys.executable, "-m", "tests.chaos.node", "serve", "--config", str(self._settings)]
        command += ["--group", GROUP, "--id", node, "--peers", self._peers_of(node), "--store", str(self.root(node))]
        command += ["--flush", self.flush, *["--messages"] * self.messages, *["--join"] * (node in self._joining)]
        self._joining.discard(node)
        with (self.folder / f"{node}.log").open("ab") as log:
            self._output[node] = log.tell()
            self.processes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def output(self, node: str) -> str:
        """What a node has printed since its last start."""
        return (self.folder / f"{node}.log").read_bytes()[self._output[node] :].decode()

    def start_all(self) -> None:
        for node in self.ids:
            if node not in self.processes:
                self.start(node)

    def kill(self, node: str) -> None:
        """kill -9"""
        process = self.processes.pop(node)
        process.kill()
        process.wait()
        self.paused.discard(node)

    def terminate(self, *nodes: str) -> None:
        """SIGTERM; after a minute kill -9."""
        processes = [self.processes.pop(node) for node in nodes]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()

    def lose_disk(self, node: str) -> None:
        """A killed node begins with an empty disk, as docs/operations.md says; it keeps its term and vote."""
        kept = (self.store(node) / "currterm").read_bytes()
        shutil.rmtree(self.root(node))
        self.store(node).mkdir(parents=True)
        (self.store(node) / "currterm").write_bytes(kept)
        self._joining.add(node)

    def pause(self, node: str) -> None:
        self.processes[node].send_signal(signal.SIGSTOP)
        self.paused.add(node)

    def resume(self) -> None:
        for node in self.paused:
            self.processes[node].send_signal(signal.SIGCONT)
        self.paused.clear()

    def crashed(self) -> list[str]:
        """Nodes that ended by themselves."""
        return [node for node, process in self.processes.items() if process.poll() is not None]

    def stop(self) -> None:
        """Stop all nodes."""
        self.resume()
        self.terminate(*self.processes)
        self.network.close()
