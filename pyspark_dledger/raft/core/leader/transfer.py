"""Leadership transfer (``DLedgerServer.handleLeadershipTransfer``, ``checkPreferredLeader``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.raft.core.election import Election
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.replication import Replication
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import Response, Role, TransferRequest, TransferResponse

# Java waits this long for the transferee.
_TRANSFER_TIMEOUT_MS = 10_000
_PREFERRED_INTERVAL_MS = 1000
# After a preferred leader failed to take over: appends are rejected during each attempt.
_PREFERRED_PAUSE_MS = 10_000
# A leader makes at most so many transfers for clients in the time of so many lost leaders: each stops appends shortly.
_MAX_ASKED = 3
_ASKED_LEAKS = 10


class _SentTransfer(NamedTuple):
    """A transfer from this leader; ``request`` is None for one to a preferred leader."""

    leadership_epoch: int
    request: TransferRequest | None
    token: object


@dataclass(slots=True)
class _TakeOver:
    """A transfer to this member; ``term`` is the term of its campaign, -1 until it has all entries."""

    request: TransferRequest
    token: object
    deadline: int
    term: int = -1


class Transfer:
    """Transfers leadership to another member, and takes it over from one."""

    def __init__(self, member: Member, election: Election, heartbeats: Heartbeats, replication: Replication) -> None:
        self._member = member
        self._election = election
        self._heartbeats = heartbeats
        self._replication = replication
        self._take_over: _TakeOver | None = None
        self._preferred_at = member.now + _PREFERRED_INTERVAL_MS
        # When leadership may be handed over next, and the members that did not take it since.
        self._hand_over_at = member.now
        self._asked: set[str] = set()
        # When this leader last began transfers for clients.
        self._for_clients: deque[int] = deque(maxlen=_MAX_ASKED)
        self._led_at = member.now

    def handle(self, request: TransferRequest, token: object) -> None:
        member = self._member
        if request.transfer_id == member.self_id:
            if (code := self._error_code(request)) is not None:
                raise RejectedError(code)
            self._for_clients.append(member.now)
            self._transfer(request.transferee_id or "", request, token)
        elif request.transferee_id == member.self_id:
            self._take(request, token)
        else:
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT)

    def _respond(self, token: object, code: int) -> None:
        member = self._member
        response = TransferResponse(group=member.group, code=code, leader_id=member.leader_id, term=member.term)
        member.reply(token, response)

    # From this leader

    def _error_code(self, request: TransferRequest) -> ResponseCode | None:
        member, transferee = self._member, request.transferee_id
        if transferee is None or transferee not in (*member.voters, member.self_id):
            return ResponseCode.UNKNOWN_MEMBER
        if request.term != member.term:
            return ResponseCode.INCONSISTENT_TERM
        if not member.is_leader:
            return ResponseCode.NOT_LEADER
        if transferee == member.self_id:
            return ResponseCode.UNEXPECTED_ARGUMENT
        if self._lag(transferee) >= member.config.max_leadership_transfer_wait_index:
            return ResponseCode.FALL_BEHIND_TOO_MUCH
        if not self._heartbeats.is_live(transferee) and member.now - self._led_at > member.config.leak_ms:
            return ResponseCode.NETWORK_ERROR
        return ResponseCode.LEADER_TRANSFERRING if member.transferee is not None or self._is_asked_often else None

    @property
    def _is_asked_often(self) -> bool:
        """Whether clients would keep others from being acknowledged, by one transfer after the other."""
        asked, limit = self._for_clients, _ASKED_LEAKS * self._member.config.leak_ms
        return len(asked) == _MAX_ASKED and self._member.now - asked[0] < limit

    def _lag(self, peer_id: str) -> int:
        return self._member.store.ledger_end_index - self._replication.match_index(peer_id)

    def _is_compared(self, peer_id: str) -> bool:
        return self._member.store.ledger_end_index < 0 or self._replication.match_index(peer_id) >= 0

    def _transfer(self, transferee: str, request: TransferRequest | None, token: object) -> None:
        member = self._member
        member.transferee, member.transfer_at = transferee, member.now
        command = TransferRequest(
            group=member.group,
            remote_id=transferee,
            local_id=member.self_id,
            leader_id=member.self_id,
            term=member.term,
            transfer_id=member.self_id,
            transferee_id=transferee,
            take_leadership_ledger_index=member.store.ledger_end_index,
        )
        member.send(
            transferee, command, self._on_transfer_response, _SentTransfer(member.leadership_epoch, request, token)
        )

    def _on_transfer_response(self, sent: _SentTransfer, response: Response | None) -> None:
        """The transfer succeeded or failed. If it failed, this member continues to lead."""
        member = self._member
        code: int = ResponseCode.NETWORK_ERROR if response is None else response.code
        if member.is_leader and member.leadership_epoch == sent.leadership_epoch:
            member.transferee = None
            self._preferred_at = member.now + _PREFERRED_PAUSE_MS
        if sent.request is not None:
            self._respond(sent.token, code)

    def _check_transferee(self) -> None:
        member = self._member
        if member.transferee is not None and member.now >= member.transfer_at + _TRANSFER_TIMEOUT_MS:
            member.transferee = None

    def _check_preferred(self) -> None:
        member, config = self._member, self._member.config
        if member.now < self._preferred_at:
            return
        self._preferred_at = member.now + _PREFERRED_INTERVAL_MS
        preferred = config.preferred_leader_ids
        if member.self_id in preferred or member.transferee is not None:
            return
        peer = self._nearest([peer for peer in member.others if peer in preferred])
        if peer is not None:
            self._transfer(peer, None, None)

    def _nearest(self, peers: Collection[str]) -> str | None:
        """The live peer that lacks the fewest entries, if it may become leader."""
        # A peer whose log was not compared yet may lack more than its length tells, and could not win an election.
        found = [peer for peer in peers if peer in self._member.voters and self._heartbeats.is_live(peer)]
        lags = [(self._lag(peer), peer) for peer in found if self._is_compared(peer)]
        lag, peer = min(lags, default=(0, None))
        return peer if lag < self._member.config.max_leadership_transfer_wait_index else None

    # From a leader that cannot write

    def _check_disk(self) -> None:
        """Hand leadership over if this member cannot write: one peer is asked at a time."""
        member = self._member
        problem = member.disk.problem(member.now)
        if not problem or member.transferee is not None or member.now < self._hand_over_at:
            return
        peer = self._nearest([peer for peer in member.others if peer not in self._asked])
        if peer is None:
            self._asked.clear()
            self._hand_over_at = member.now + _PREFERRED_PAUSE_MS
            return
        self._asked.add(peer)
        self._hand_over_at = member.now + _PREFERRED_INTERVAL_MS
        member.report_problem(f"{problem}: leadership is handed over to {peer}", "hand over")
        self._transfer(peer, None, None)

    # To this member

    @property
    def is_taking_over(self) -> bool:
        return self._take_over is not None

    def _take(self, request: TransferRequest, token: object) -> None:
        """Campaign as soon as this member has all entries."""
        member = self._member
        if member.role is not Role.FOLLOWER or request.transfer_id != member.leader_id:
            raise RejectedError(ResponseCode.INCONSISTENT_LEADER)
        if request.term != member.term:
            raise RejectedError(ResponseCode.INCONSISTENT_TERM)
        if not member.can_campaign:
            raise RejectedError(ResponseCode.FALL_BEHIND_TOO_MUCH)
        if member.disk.problem(member.now):
            raise RejectedError(ResponseCode.DISK_FULL)
        self._finish_take_over(ResponseCode.TAKE_LEADERSHIP_FAILED)
        deadline = member.now + member.config.leadership_transfer_wait_timeout_ms
        self._take_over = _TakeOver(request, token, deadline)
        self._check_take_over()

    def _check_take_over(self) -> None:
        member, take_over = self._member, self._take_over
        if take_over is None:
            return
        if take_over.term < 0 and member.store.ledger_end_index >= take_over.request.take_leadership_ledger_index:
            take_over.term, take_over.deadline = member.term + 1, member.now + _TRANSFER_TIMEOUT_MS
            if not self._election.take_leadership():
                self._finish_take_over(ResponseCode.DISK_ERROR)
        elif member.now >= take_over.deadline:
            self._finish_take_over(ResponseCode.TAKE_LEADERSHIP_FAILED)

    def _finish_take_over(self, code: ResponseCode) -> None:
        take_over, self._take_over = self._take_over, None
        if take_over is not None:
            self._respond(take_over.token, code)

    def role_changed(self) -> None:
        """Finish a transfer to this member if its campaign is over (``TakeLeadershipTask``)."""
        member, take_over = self._member, self._take_over
        self._asked.clear()
        self._led_at = member.now
        if take_over is None:
            return
        if member.term == take_over.term:
            if member.role is not Role.CANDIDATE:
                is_done = member.role is Role.LEADER
                self._finish_take_over(ResponseCode.SUCCESS if is_done else ResponseCode.TAKE_LEADERSHIP_FAILED)
        else:
            self._finish_take_over(ResponseCode.EXPIRED_TERM)

    def tick(self) -> None:
        self._check_take_over()
        if self._member.is_leader:
            self._check_transferee()
            self._check_disk()
            self._check_preferred()
