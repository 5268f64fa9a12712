"""What a core asks of whoever drives it, and how it tells how it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.raft.messages import Request, Response, Role


class Send(NamedTuple):
    """Send that request to a peer; what comes of it goes to ``Core.answered`` with the token, exactly once."""

    peer_id: str
    token: int
    request: Request


class Reply(NamedTuple):
    """The answer to the request that was handed to ``Core.handle`` with that token."""

    token: object
    answer: Response


class Committed(NamedTuple):
    """Every entry up to that index is committed."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls


class RoleChanged(NamedTuple):
    """Role, term or leader of this member has become another."""

    role: Role
    term: int
    leader_id: str | None


Effect = Send | Reply | Committed | RoleChanged


@dataclass(frozen=True)
class PeerStatus:
    """How the leader sees a peer: the highest index known to equal its own, and whether it answers heartbeats."""

    peer_id: str
    match_index: int
    is_live: bool
    is_ours: bool


@dataclass(frozen=True)
class Status:
    """How a member stands. Only a leader fills ``peers``.

    ``problems`` counts what an operator should look at; ``problem`` is the latest that is not solved, or "".
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
