"""A group of `dledger serve --messages` processes on loopback, each with its own root."""

from __future__ import annotations

from pathlib import Path

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from tests.chaos.group import GROUP, Group


class MessageGroup(Group):
    """A group that serves messages."""

    def __init__(self, folder: Path, size: int, flush: str) -> None:
        super().__init__(folder, size, flush, messages=True)

    def leader(self) -> str | None:
        """Return the leader, if one is known."""
        try:
            with dl.connect(group=GROUP, peers=self.peers, timeout_ms=2_000, max_retries=2) as client:
                leader = client.metadata().leader_id
        except DLedgerError:
            return None
        return leader if leader in self.processes else None
