"""Hostile peers: requests of members that no member has sent.

Strangers are at an address of nobody and may send anything. Forgers are at a member's address, as a client on its
machine can be: a node cannot tell them from the member, so they send what must do no harm even if a member sends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.raft.messages import (
    HeartBeatRequest,
    PushRequest,
    PushType,
    Request,
    TransferRequest,
    VoteRequest,
)

if TYPE_CHECKING:
    from tests.simulation.node import SimNode
    from tests.simulation.world import World

STRANGER = "10.9.9.9"
# Requests at a time.
BURST = 8
FAR = 1_000_000
MAX_TERM = 2**62


class Hostile:
    """Sends bursts of requests to random nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random

    def strangers(self) -> None:
        for _ in range(BURST):
            node = self.random.choice(self.world.nodes)
            self.send(node, self.any_request(node, self.someone(node)), STRANGER)

    def forgers(self) -> None:
        for _ in range(BURST):
            node = self.random.choice(self.world.nodes)
            name = self.someone(node)
            for request in self.harmless(node, name):
                self.send(node, request, self.world.host(name))

    def send(self, node: SimNode, request: Request, host: str) -> None:
        request.group, request.remote_id, request.local_id = "g", node.id, request.leader_id
        self.world.send_as(host, node, request)

    def someone(self, node: SimNode) -> str:
        """The leader, or another member than the node."""
        leader = self.world.leader
        if leader is not None and leader is not node and self.random.random() < 0.5:
            return leader.id
        return self.random.choice([each.id for each in self.world.nodes if each is not node] or [node.id])

    def term(self, node: SimNode) -> int:
        """A term: the present one, a later one, or an absurd one."""
        present = node.store.curr_term
        return self.random.choice((present, present, present + 1, present + 5, present + 2**21, MAX_TERM, MAX_TERM + 1))

    def index(self, node: SimNode) -> int:
        store = node.store
        choices = (0, store.committed_index, store.ledger_end_index, store.ledger_end_index + 1, FAR)
        return max(0, self.random.choice(choices))

    def any_request(self, node: SimNode, name: str) -> Request:
        kind = self.random.randrange(5)
        if kind == 0:
            return self.vote(node, name)
        if kind == 1:
            return HeartBeatRequest(leader_id=name, term=self.term(node))
        if kind == 2:
            target = self.index(node)
            return TransferRequest(
                leader_id=name,
                term=node.store.curr_term,
                transfer_id=name,
                transferee_id=node.id,
                take_leadership_ledger_index=target,
            )
        return self.push(node, name, self.index(node), self.term(node))

    def harmless(self, node: SimNode, name: str) -> Iterator[Request]:
        """Votes and heartbeats with any term, pushes of a later term, and a reset in the present one."""
        present = node.store.curr_term
        kind = self.random.randrange(4)
        if kind == 0:
            yield self.vote(node, name)
        elif kind == 1:
            yield HeartBeatRequest(leader_id=name, term=self.term(node))
        elif kind == 2:
            # No term that a forged heartbeat has: a paused node may handle both, and follow the forger.
            yield self.push(node, name, self.index(node), present + self.random.randrange(7, 2**21, 2) * 4 + 3)
        elif node.store.ledger_begin_index >= 0:
            # An empty log has nothing to lose, and would begin there.
            yield self.reset(name, present)

    def vote(self, node: SimNode, name: str) -> VoteRequest:
        end_term = self.random.choice((-1, node.store.ledger_end_term, MAX_TERM))
        return VoteRequest(
            leader_id=name, term=self.term(node), ledger_end_index=self.index(node), ledger_end_term=end_term
        )

    def push(self, node: SimNode, name: str, index: int, term: int) -> PushRequest:
        kind = self.random.choice((PushType.APPEND, PushType.TRUNCATE, PushType.COMPARE, PushType.COMMIT))
        if kind is PushType.COMMIT:
            return PushRequest(leader_id=name, term=term, type=kind, commit_index=index)
        data = encode_entry(index, min(term, MAX_TERM), node.store.end_pos, b"forged")
        return PushRequest(
            leader_id=name, term=term, type=kind, first_index=index, count=1, data=data, commit_index=index
        )

    def reset(self, name: str, term: int) -> PushRequest:
        data = encode_entry(FAR, term, 1 << 20, b"forged")
        return PushRequest(
            leader_id=name,
            term=term,
            type=PushType.TRUNCATE,
            first_index=FAR,
            count=1,
            data=data,
            commit_index=FAR,
        )
