"""A group of `dledger serve` processes on loopback, in a network that can fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pyspark_dledger.store.files.node_files import MEMBERS
from tests.chaos.proxy import HOST, Network
from tests.support.groups import free_ports

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
    """Nodes by id. ``folder`` has the store of each by its id, and its output as ``<id>.log``.

    ``ids``: the members as an operator knows them; the other nodes are spare. ``asleep``: a member that is down until
    `wake`.
    """

    def __init__(self, folder: Path, size: int, flush: str, messages: bool = False, spares: int = 0) -> None:
        self.folder = folder
        self.flush = flush
        self.messages = messages
        nodes = [f"n{i}" for i in range(size + spares)]
        self.ids = nodes[:size]
        self.ports = dict(zip(nodes, free_ports(len(nodes)), strict=True))
        self.network = Network(self.ports)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.paused: set[str] = set()
        self.asleep: str | None = None
        # Nodes that are told to join, if their disk is empty.
        self._joining: set[str] = set()
        self.lost_disks = 0
        # The list of members that each node was first started with. It keeps it: the log has later ones.
        self._peers: dict[str, str] = {}
        self._output: dict[str, int] = {}
        self._settings = folder / "chaos.conf"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))

    @property
    def peers(self) -> str:
        """The present members."""
        return self._peers_text(self.ids)

    def _peers_text(self, nodes: Iterable[str]) -> str:
        return ";".join(f"{node}-{self.network.addresses[node]}" for node in nodes)

    @property
    def spares(self) -> list[str]:
        """Nodes that neither are members nor run."""
        return [node for node in self.ports if node not in self.ids and node not in self.processes]

    def learn(self, members: Iterable[str]) -> None:
        """These are the members: the others are stopped."""
        self.ids = sorted(members)
        for node in [node for node in self.processes if node not in self.ids]:
            self.kill(node)
        if self.asleep not in self.ids:
            self.asleep = None
        self.start_all()

    def root(self, node: str) -> Path:
        return self.folder / node

    def store(self, node: str) -> Path:
        return self.root(node) / f"dledger-{node}"

    def start(self, node: str) -> None:
        peers = self._peers.setdefault(node, self._peers_text(sorted({*self.ids, node})))
        command = [sys.executable, "-m", "tests.chaos.node", "serve", "--config", str(self._settings)]
        command += ["--group", GROUP, "--id", node, "--peers", peers, "--store", str(self.root(node))]
        command += ["--listen", f"{HOST}:{self.ports[node]}", "--flush", self.flush]
        is_empty = not (self.store(node) / MEMBERS).exists()
        command += [*["--messages"] * self.messages, *["--join"] * (node in self._joining and is_empty)]
        with (self.folder / f"{node}.log").open("ab") as log:
            self._output[node] = log.tell()
            self.processes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_all(self) -> None:
        """Start all other members that do not run."""
        for node in self.ids:
            if node not in self.processes and node != self.asleep:
                self.start(node)

    def wake(self) -> None:
        """Start the member that is asleep."""
        if self.asleep in self.ids and self.asleep not in self.processes:
            self.start(self.asleep)
        self.asleep = None

    def join(self, node: str) -> None:
        """Start a spare node with an empty disk, so that it can become a member."""
        if self.store(node).exists():
            self.lose_disk(node)
        self._joining.add(node)
        self.start(node)

    def output(self, node: str) -> str:
        """What a node has printed since its last start."""
        return (self.folder / f"{node}.log").read_bytes()[self._output[node] :].decode()

    def kill(self, node: str) -> None:
        """kill -9, if it runs"""
        process = self.processes.pop(node, None)
        if process is not None:
            process.kill()
            process.wait()
        self.paused.discard(node)

    def terminate(self, *nodes: str) -> None:
        """SIGTERM; after a minute kill -9."""
        processes = [self.processes.pop(node) for node in nodes if node in self.processes]
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
        """A killed node begins with an empty disk.

        Every second one does so as docs/operations.md says: it keeps its term and vote, and is told to join.
        """
        self.lost_disks += 1
        currterm = self.store(node) / "currterm"
        is_kept = self.lost_disks % 2 == 0
        kept = currterm.read_bytes() if is_kept and currterm.exists() else None  # it was killed before it had a term
        shutil.rmtree(self.root(node))
        self.store(node).mkdir(parents=True)
        if kept is not None:
            (self.store(node) / "currterm").write_bytes(kept)
        (self._joining.add if is_kept else self._joining.discard)(node)
        self._peers.pop(node, None)

    def restore(self, node: str, source: str) -> bool:
        """Restore a killed member from a backup of another one; False if the command rejects that."""
        backup, old = self.folder / f"backup-{source}", self.folder / f"{node}.old"
        self.root(node).rename(old)
        group = ["--group", GROUP, "--peers", self.peers]
        is_restored = self._dledger("restore", str(backup), "--to", str(self.root(node)), "--id", node, *group)
        shutil.rmtree(backup)
        if is_restored:
            shutil.rmtree(old)
            self._peers.pop(node, None)
        else:
            shutil.rmtree(self.root(node), ignore_errors=True)
            old.rename(self.root(node))
        return is_restored

    def back_up(self, node: str) -> bool:
        """Back up a member, which may run."""
        target = self.folder / f"backup-{node}"
        return self._dledger("backup", str(self.root(node)), "--to", str(target))

    def _dledger(self, *arguments: str) -> bool:
        """Run the command; whether it did what it should."""
        command = [sys.executable, "-m", "pyspark_dledger", *arguments]
        with (self.folder / "operator.log").open("ab") as log:
            return subprocess.run(command, stdout=log, stderr=log, check=False).returncode in (0, 1)

    def pause(self, node: str) -> None:
        if node in self.processes:
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
