"""A group of `dledger serve --messages` processes on loopback, each with its own root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from tests.chaos.group import GROUP, Group


class MessageGroup(Group):
    """``folder`` has the root of each node by its id, and its output as ``<id>.log``."""

    def root(self, node: str) -> Path:
        return self.folder / node

    def start(self, node: str) -> None:
        command = [sys.executable, "-m", "pyspark_dledger", "serve", "--messages", "--config", str(self._settings)]
        command += ["--group", GROUP, "--id", node, "--peers", self._peers_of(node), "--store", str(self.root(node))]
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen([*command, "--flush", self.flush], stdout=log, stderr=log)

    def leader(self) -> str | None:
        """Return the leader, if one is known."""
        try:
            with dl.connect(group=GROUP, peers=self.peers, timeout_ms=2_000, max_retries=2) as client:
                leader = client.metadata().leader_id
        except DLedgerError:
            return None
        return leader if leader in self.processes else None
