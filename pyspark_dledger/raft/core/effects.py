"""What a core asks its driver to do, and the status of a member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.raft.messages import Request, Response, Role


class Send(NamedTuple):
    """Send a request to a peer. Its outcome is given to ``Core.handle_response`` with the token, exactly once."""

    peer_id: str
    token: int
    request: Request


class Load(NamedTuple):
    """Call `DLedgerStore.read` in another thread, and give the result to ``Core.loaded``, exactly once."""

    token: int
    first_index: int
    max_bytes: int


class Reply(NamedTuple):
    """The response to the request that ``Core.handle`` got with that token."""

    token: object
    response: Response


class Committed(NamedTuple):
    """All entries up to that index are committed."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls


class RoleChanged(NamedTuple):
    """Role, term or leader of this member has changed."""

    role: Role
    term: int
    leader_id: str | None


class MembersChanged(NamedTuple):
    """The group has these members, by id, with their addresses; requests to others are no longer sent."""

    addresses: Mapping[str, str]


Effect = Send | Load | Reply | Committed | RoleChanged | MembersChanged


@dataclass(frozen=True)
class PeerStatus:
    """A leader's view of a peer. ``is_live``: it responds to heartbeats. ``is_binary``: it uses the binary dialect."""

    peer_id: str
    match_index: int
    is_live: bool
    is_binary: bool


@dataclass(frozen=True)
class Status:
    """The state of a member. Only a leader fills ``peers``.

    ``problems`` counts the problems that an operator should look at; ``problem`` is the latest unresolved one, or "".
    ``elections`` counts the vote rounds that it began, ``found_damaged`` and ``repaired`` count entries. ``lag`` is the
    number of committed entries that a follower lacks.
    """

    role: Role
    term: int
    leader_id: str | None
    begin_index: int
    end_index: int
    end_term: int
    committed_index: int
    pending_appends: int = 0
    problems: int = 0
    peers: tuple[PeerStatus, ...] = ()
    problem: str = ""
    elections: int = 0
    found_damaged: int = 0
    repaired: int = 0
    lag: int = 0
