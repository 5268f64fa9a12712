"""Leadership that goes to a chosen member (``DLedgerServer.handleLeadershipTransfer``, ``checkPreferredLeader``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.election import Election
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.replication import Replication
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import Response, Role, TransferRequest, TransferResponse

# Java waits this long for the transferee.
_TRANSFER_TIME_OUT_MS = 10_000
_PREFERRED_EVERY_MS = 1000
# After a preferred leader failed to take over; appends are refused while it tries.
_PREFERRED_PAUSE_MS = 10_000


class _Asked(NamedTuple):
    """A transfer that this leader asked for; nobody waits for the outcome of one to a preferred leader."""

    stint: int
    request: TransferRequest | None
    token: object


@dataclass(slots=True)
class _Taking:
    """A transfer to this member: ``term`` is the one it stands in once it has all entries, -1 before."""

    request: TransferRequest
    token: object
    deadline: int
    term: int = -1


class Transfer:
    """Hands leadership over, and takes it."""

    def __init__(self, member: Member, election: Election, heartbeats: Heartbeats, replication: Replication) -> None:
        self._member = member
        self._election = election
        self._heartbeats = heartbeats
        self._replication = replication
        self._taking: _Taking | None = None
        self._preferred_at = member.now + _PREFERRED_EVERY_MS
        member.role_listeners.append(self._role_changed)

    def handle(self, request: TransferRequest, token: object) -> None:
        member = self._member
        if request.transfer_id == member.self_id:
            code = self._refusal(request)
            if code is None:
                self._transfer(request.transferee_id or "", request, token)
                return
        elif request.transferee_id == member.self_id:
            code = self._take(request, token)
        else:
            code = ResponseCode.UNEXPECTED_ARGUMENT
        if code is not None:
            self._refuse(request, token, code)

    def _refuse(self, request: TransferRequest, token: object, code: ResponseCode) -> None:
        self._member.refuse(token, request, TransferResponse(), code)

    def _answer(self, token: object, code: int) -> None:
        member = self._member
        answer = TransferResponse(group=member.group, code=code, leader_id=member.leader_id, term=member.term)
        member.reply(token, answer)

    # From this leader

    def _refusal(self, request: TransferRequest) -> ResponseCode | None:
        member, transferee = self._member, request.transferee_id
        if transferee is None or transferee not in member.peers:
            return ResponseCode.UNKNOWN_MEMBER
        if request.term != member.term:
            return ResponseCode.INCONSISTENT_TERM
        if not member.is_leader:
            return ResponseCode.NOT_LEADER
        if transferee == member.self_id:
            return ResponseCode.UNEXPECTED_ARGUMENT
        if self._lag(transferee) >= member.config.max_leadership_transfer_wait_index:
            return ResponseCode.FALL_BEHIND_TOO_MUCH
        return None if member.transferee is None else ResponseCode.LEADER_TRANSFERRING

    def _lag(self, peer_id: str) -> int:
        return self._member.store.ledger_end_index - self._replication.match_index(peer_id)

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
        member.send(transferee, command, self._transferred, _Asked(member.stint, request, token))

    def _transferred(self, asked: _Asked, answer: Response | None) -> None:
        """The transferee leads, or does not: then this member goes on, where it still leads."""
        member = self._member
        code: int = ResponseCode.NETWORK_ERROR if answer is None else answer.code
        if member.is_leader and member.stint == asked.stint:
            member.transferee = None
            self._preferred_at = member.now + _PREFERRED_PAUSE_MS
        if asked.request is not None:
            self._answer(asked.token, code)

    def _check_transferee(self) -> None:
        member = self._member
        if member.transferee is not None and member.now >= member.transfer_at + _TRANSFER_TIME_OUT_MS:
            member.transferee = None

    def _check_preferred(self) -> None:
        member, config = self._member, self._member.config
        if member.now < self._preferred_at:
            return
        self._preferred_at = member.now + _PREFERRED_EVERY_MS
        preferred = config.preferred_leader_ids
        if member.self_id in preferred or member.transferee is not None:
            return
        lags = [
            (self._lag(peer), peer) for peer in member.others if peer in preferred and self._heartbeats.is_live(peer)
        ]
        if lags and min(lags)[0] < config.max_leadership_transfer_wait_index:
            self._transfer(min(lags)[1], None, None)

    # To this member

    def _take(self, request: TransferRequest, token: object) -> ResponseCode | None:
        """Stand as soon as all entries are here; a code where that is refused."""
        member = self._member
        if member.role is not Role.FOLLOWER or request.transfer_id != member.leader_id:
            return ResponseCode.INCONSISTENT_LEADER
        if request.term != member.term:
            return ResponseCode.INCONSISTENT_TERM
        self._finish_taking(ResponseCode.TAKE_LEADERSHIP_FAILED)
        deadline = member.now + member.config.leadership_transfer_wait_timeout_ms
        self._taking = _Taking(request, token, deadline)
        self._check_taking()
        return None

    def _check_taking(self) -> None:
        member, taking = self._member, self._taking
        if taking is None:
            return
        if taking.term < 0 and member.store.ledger_end_index >= taking.request.take_leadership_ledger_index:
            taking.term, taking.deadline = member.term + 1, member.now + _TRANSFER_TIME_OUT_MS
            if not self._election.take_leadership():
                self._finish_taking(ResponseCode.DISK_ERROR)
        elif member.now >= taking.deadline:
            self._finish_taking(ResponseCode.TAKE_LEADERSHIP_FAILED)

    def _finish_taking(self, code: ResponseCode) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            self._answer(taking.token, code)

    def _role_changed(self) -> None:
        """Whether a take-over has come to its end (``TakeLeadershipTask``)."""
        member, taking = self._member, self._taking
        if taking is None:
            return
        if member.term == taking.term:
            if member.role is not Role.CANDIDATE:
                is_done = member.role is Role.LEADER
                self._finish_taking(ResponseCode.SUCCESS if is_done else ResponseCode.TAKE_LEADERSHIP_FAILED)
        else:
            self._finish_taking(ResponseCode.EXPIRED_TERM)

    def tick(self) -> None:
        self._check_taking()
        if self._member.is_leader:
            self._check_transferee()
            self._check_preferred()
