"""A leader's heartbeats: who answers them, whether a quorum still does, and reads that wait for a quorum."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import HeartBeatRequest, Response, Role


@dataclass(slots=True)
class _Beat:
    """A peer: the latest heartbeat that it answered well, by number and by when it was sent."""

    peer_id: str
    round: int = 0
    sent_at: int = 0
    is_live: bool = False
    repeated: int = 0


class _Sent(NamedTuple):
    beat: _Beat
    stint: int
    round: int
    sent_at: int


class _Barrier(NamedTuple):
    """Something that waits until a quorum has answered a heartbeat of that round or a later one."""

    round: int
    deadline: int
    done: Callable[[bool], None]


class Heartbeats:
    """Keeps a leader in office, or ends its time."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._beats = {peer: _Beat(peer) for peer in member.others}
        self._round = 0
        self._next_at = 0
        self._barriers: deque[_Barrier] = deque()
        self._is_wanted = False
        member.role_listeners.append(self._role_changed)

    def is_live(self, peer_id: str) -> bool:
        """Whether that peer answered the last heartbeat that something is known of."""
        return self._beats[peer_id].is_live

    def _role_changed(self) -> None:
        member = self._member
        barriers, self._barriers = self._barriers, deque()
        for barrier in barriers:
            barrier.done(False)
        if member.is_leader:
            for beat in self._beats.values():
                beat.round, beat.sent_at, beat.is_live, beat.repeated = 0, member.now, False, 0
            self._is_wanted = True

    def tick(self) -> None:
        member = self._member
        if not member.is_leader:
            return
        self._expire_barriers()
        if member.now - self._quorum_of("sent_at", member.now) > member.config.leak_ms:
            member.become(Role.CANDIDATE, None)
        elif member.now >= self._next_at:
            self._is_wanted = True

    def pump(self) -> None:
        """Send a round where one is due or wanted."""
        member = self._member
        if not self._is_wanted or not member.is_leader:
            return
        self._is_wanted = False
        self._round += 1
        self._next_at = member.now + member.config.heart_beat_time_interval_ms
        for beat in self._beats.values():
            if not self._is_taking_over(beat.peer_id):
                self._send(beat)

    def _is_taking_over(self, peer_id: str) -> bool:
        """Whether that peer was just told to lead: a heartbeat would make a Java member follow again instead."""
        member = self._member
        if peer_id != member.transferee:
            return False
        return member.now - member.transfer_at < member.config.heart_beat_time_interval_ms

    def _send(self, beat: _Beat) -> None:
        member = self._member
        request = HeartBeatRequest(
            group=member.group,
            remote_id=beat.peer_id,
            local_id=member.self_id,
            leader_id=member.self_id,
            term=member.term,
        )
        member.send(beat.peer_id, request, self._answered, _Sent(beat, member.stint, self._round, member.now))

    def _answered(self, sent: _Sent, answer: Response | None) -> None:
        member, beat = self._member, sent.beat
        if not member.is_leader or sent.stint != member.stint:
            return
        beat.is_live = answer is not None and answer.code != ResponseCode.NETWORK_ERROR
        if answer is None:
            return
        if answer.code == ResponseCode.SUCCESS:
            beat.round, beat.sent_at = max(beat.round, sent.round), max(beat.sent_at, sent.sent_at)
            self._release_barriers()
        elif answer.code == ResponseCode.TERM_NOT_READY and beat.repeated != self._round:
            # It knows the term now; one repetition a round, so that no two members answer each other for ever.
            beat.repeated = self._round
            self._send(beat)
        elif answer.code == ResponseCode.INCONSISTENT_LEADER:
            member.problem(f"{beat.peer_id} follows another leader in term {member.term}: two members lead one term")

    def _quorum_of(self, name: str, own: int) -> int:
        """The highest value that a quorum has reached, this member with `own`."""
        values = sorted((own, *(getattr(beat, name) for beat in self._beats.values())), reverse=True)
        return int(values[self._member.quorum - 1])

    # Reads

    def when_confirmed(self, done: Callable[[bool], None]) -> None:
        """Call `done` with True once a quorum has answered a heartbeat sent from now on, with False if it does not."""
        member = self._member
        if not self._beats:
            done(True)
            return
        deadline = member.now + member.config.max_wait_ack_time_ms
        self._is_wanted = True
        self._barriers.append(_Barrier(self._round + 1, deadline, done))

    def _release_barriers(self) -> None:
        if not self._barriers:
            return
        reached = self._quorum_of("round", self._round)
        while self._barriers and self._barriers[0].round <= reached:
            self._barriers.popleft().done(True)

    def _expire_barriers(self) -> None:
        while self._barriers and self._barriers[0].deadline <= self._member.now:
            self._barriers.popleft().done(False)
