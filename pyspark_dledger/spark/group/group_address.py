"""How a task reaches a live group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark_dledger.errors import OptionError

if TYPE_CHECKING:
    from pyspark_dledger.raft.client import Client
    from pyspark_dledger.raft.tls import Tls


@dataclass(frozen=True)
class GroupAddress:
    """The group's name and members. It is pickled: each task connects itself. `tls` names files on the task's machine.

    A sink process requires a `secret`.
    """

    group: str
    peers: str
    tls: Tls | None = None
    secret: str | None = field(default=None, repr=False)

    def connect(self, timeout_ms: int, max_retries: int = 10) -> Client:
        """Return a client. It sends nothing before its first call. Raises OptionError for a bad address."""
        from pyspark_dledger.raft.client import connect

        return connect(
            self.group, self.peers, tls=self.tls, timeout_ms=timeout_ms, max_retries=max_retries, secret=self.secret
        )


def group_address(
    group: str | None, peers: str | None, tls_cert: str | None, tls_key: str | None, tls_ca: str | None
) -> GroupAddress:
    """Return the address that these options give. Raises OptionError if some are missing."""
    from pyspark_dledger.raft.peers import parse_peers
    from pyspark_dledger.raft.tls import tls_of

    if not group or not peers:
        missing, given = ("peers", "group") if group else ("group", "peers")
        raise OptionError(f"option {given} needs option {missing}: give both, or a path instead")
    parse_peers(peers)
    return GroupAddress(group, peers, tls_of(tls_cert, tls_key, tls_ca))
