"""A leader's heartbeats. They detect a lost quorum, and confirm leadership for reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.cluster_id import ClusterId
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import HeartBeatRequest, HeartBeatResponse, Response, Role


@dataclass(slots=True)
class _PeerHeartbeat:
    """The round and the send time of the latest heartbeat that a peer accepted."""

    peer_id: str
    round: int = 0
    sent_at: int = 0
    is_live: bool = False
    repeated_round: int = 0
    repeated_term: int = -1


class _SentHeartbeat(NamedTuple):
    peer: _PeerHeartbeat
    leadership_epoch: int
    round: int
    sent_at: int


class _PendingConfirmation(NamedTuple):
    """A callback that waits until a quorum has accepted a heartbeat of that round or a later one."""

    round: int
    deadline: int
    done: Callable[[bool], None]


class Heartbeats:
    """Sends heartbeats, and ends a leadership without a quorum."""

    def __init__(self, member: Member, cluster_id: ClusterId) -> None:
        self._member = member
        self._cluster_id = cluster_id
        self._peers: dict[str, _PeerHeartbeat] = {}
        self._round = 0
        self._next_at = 0
        self._confirmations: deque[_PendingConfirmation] = deque()
        self._is_due = False
        self.members_changed()

    def members_changed(self) -> None:
        before, now = self._peers, self._member.now
        self._peers = {peer: before.get(peer) or _PeerHeartbeat(peer, sent_at=now) for peer in self._member.others}

    def is_live(self, peer_id: str) -> bool:
        """Whether the peer responded to the last heartbeat with a known outcome."""
        peer = self._peers.get(peer_id)
        return peer is not None and peer.is_live

    def role_changed(self) -> None:
        member = self._member
        confirmations, self._confirmations = self._confirmations, deque()
        for confirmation in confirmations:
            confirmation.done(False)
        if member.is_leader:
            for peer in self._peers.values():
                peer.round, peer.sent_at, peer.is_live, peer.repeated_round = 0, member.now, False, 0
            self._is_due = True

    def tick(self) -> None:
        member = self._member
        if not member.is_leader:
            return
        self._expire_confirmations()
        if member.now - self._quorum_value("sent_at", member.now) > member.config.leak_ms:
            member.become(Role.CANDIDATE, None)
        elif member.now >= self._next_at:
            self._is_due = True

    def pump(self) -> None:
        """Send a round of heartbeats if one is due."""
        member = self._member
        if not self._is_due or not member.is_leader:
            return
        self._is_due = False
        self._round += 1
        self._next_at = member.now + member.config.heart_beat_time_interval_ms
        for peer in self._peers.values():
            if not self._is_taking_leadership(peer.peer_id):
                self._send(peer)

    def _is_taking_leadership(self, peer_id: str) -> bool:
        """Whether leadership is being transferred to that peer: after a heartbeat a Java member would follow again."""
        member = self._member
        if peer_id != member.transferee:
            return False
        return member.now - member.transfer_at < member.config.heart_beat_time_interval_ms

    def _send(self, peer: _PeerHeartbeat) -> None:
        member = self._member
        request = HeartBeatRequest(
            group=member.group,
            remote_id=peer.peer_id,
            local_id=member.self_id,
            leader_id=member.self_id,
            term=member.term,
            cluster_id=self._cluster_id.sent_to(peer.peer_id),
        )
        sent = _SentHeartbeat(peer, member.leadership_epoch, self._round, member.now)
        member.send(peer.peer_id, request, self._on_response, sent)

    def _on_response(self, sent: _SentHeartbeat, response: Response | None) -> None:
        member, peer = self._member, sent.peer
        if not member.is_leader or sent.leadership_epoch != member.leadership_epoch:
            return
        peer.is_live = response is not None and response.code != ResponseCode.NETWORK_ERROR
        if response is None:
            return
        if response.code == ResponseCode.SUCCESS:
            peer.round, peer.sent_at = max(peer.round, sent.round), max(peer.sent_at, sent.sent_at)
            self._release_confirmations()
            if isinstance(response, HeartBeatResponse):
                self._cluster_id.responded(peer.peer_id, response.cluster_id)
        elif response.code == ResponseCode.TERM_NOT_READY and self._may_repeat(peer, response.term):
            peer.repeated_round, peer.repeated_term = self._round, response.term
            self._send(peer)
        elif response.code == ResponseCode.INCONSISTENT_LEADER:
            member.report_problem(
                f"{peer.peer_id} follows another leader in term {member.term}: two members lead one term"
            )

    def _may_repeat(self, peer: _PeerHeartbeat, term: int) -> bool:
        """The peer has adopted a term. One repetition per round, or while its term rises: two members cannot loop."""
        return peer.repeated_round != self._round or peer.repeated_term < term < self._member.term

    def _quorum_value(self, name: str, own: int) -> int:
        """The highest value that a quorum has reached; this member has `own`."""
        member = self._member
        values = [getattr(peer, name) for peer in self._peers.values() if peer.peer_id in member.voters]
        if member.is_voter:
            values.append(own)
        values.sort(reverse=True)
        return int(values[member.quorum - 1])

    # Reads

    def confirm_leadership(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True when a quorum has accepted a later heartbeat, with False after a timeout."""
        member = self._member
        if member.has_lone_vote:
            done(True)
            return
        deadline = member.now + member.config.max_wait_ack_time_ms
        self._is_due = True
        self._confirmations.append(_PendingConfirmation(self._round + 1, deadline, done))

    def _release_confirmations(self) -> None:
        if not self._confirmations:
            return
        reached = self._quorum_value("round", self._round)
        while self._confirmations and self._confirmations[0].round <= reached:
            self._confirmations.popleft().done(True)

    def _expire_confirmations(self) -> None:
        while self._confirmations and self._confirmations[0].deadline <= self._member.now:
            self._confirmations.popleft().done(False)
