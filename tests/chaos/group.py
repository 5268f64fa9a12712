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
}
GROUP = "chaos"


class Group:
    """Nodes by id. ``folder`` has the store ``dledger-<id>`` and the output ``<id>.log`` of each."""

    def __init__(self, folder: Path, size: int, flush: str) -> None:
        self.folder = folder
        self.flush = flush
        self.ids = [f"n{i}" for i in range(size)]
        self.ports = dict(zip(self.ids, free_ports(size), strict=True))
        self.network = Network(self.ports)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.paused: set[str] = set()
        self._settings = folder / "chaos.conf"
        # Each node reaches the others through links of its own.
        settings = {**SETTINGS, "commonPeers": self.peers}
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    @property
    def peers(self) -> str:
        """The members with their own ports, for clients."""
        return peers_text(self.ports)

    def _peers_of(self, node: str) -> str:
        links = {other: self.network.links[node, other].port for other in self.ids if other != node}
        return peers_text({**self.ports, **links})

    def start(self, node: str) -> None:
        command = [sys.executable, "-m", "pyspark_dledger", "serve", "--config", str(self._settings)]
        command += ["--group", GROUP, "--id", node, "--peers", self._peers_of(node), "--store", str(self.folder)]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen([*command, "--flush", self.flush], stdout=log, stderr=log)

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

    def lose_disk(self, node: str) -> None:
        """A killed node begins with an empty log; it keeps its term and vote."""
        store = self.folder / f"dledger-{node}"
        kept = (store / "currterm").read_bytes()
        shutil.rmtree(store)
        store.mkdir()
        (store / "currterm").write_bytes(kept)

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
        """Stop all nodes; after 20 seconds with kill -9."""
        self.resume()
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + 20
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
        self.processes.clear()
        self.network.close()
