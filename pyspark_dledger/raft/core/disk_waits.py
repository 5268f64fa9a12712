"""Which inputs of a core may wait for a disk: they save a term, truncate, repair, or read entries to compare them.

The driver handles these inputs in another thread, in which the core is used by nobody else. So term, vote and log are
durable before a response, as in one thread. A leader sends no heartbeats meanwhile: it could acknowledge nothing, so if
its disk hangs for longer than an election timeout, the others elect another leader.
"""

from __future__ import annotations

from pyspark_dledger.raft.core.cluster_id import ClusterId
from pyspark_dledger.raft.core.election import Election
from pyspark_dledger.raft.core.leader.membership_changes import MembershipChanges
from pyspark_dledger.raft.core.leader.transfer import Transfer
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import (
    AppendRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    PushRequest,
    PushResponse,
    PushType,
    ReadResponse,
    Request,
    Response,
    SummaryResponse,
)

# The first confirms a reset, ReadResponse has a copy for a repair.
_SAVING_RESPONSES = (GetResponse, ReadResponse, SummaryResponse)


class DiskWaits:
    """Judges inputs before they are handled."""

    def __init__(
        self,
        member: Member,
        election: Election,
        transfer: Transfer,
        cluster_id: ClusterId,
        changes: MembershipChanges,
    ) -> None:
        self._member = member
        self._election = election
        self._transfer = transfer
        self._cluster_id = cluster_id
        self._changes = changes

    def in_request(self, request: Request) -> bool:
        store = self._member.store
        if isinstance(request, PushRequest):
            if self._member.members.commit_may_wait:
                return True
            if request.type is PushType.APPEND:
                return store.append_may_wait or request.first_index != store.ledger_end_index + 1
            return request.type is not PushType.COMMIT
        if isinstance(request, AppendRequest):
            return store.append_may_wait
        if isinstance(request, HeartBeatRequest):
            is_saving = self._saves_cluster_id(request) or self._member.members.may_be_new
            return request.term > self._member.term or is_saving
        return request.saves

    def in_response(self, response: Response | None) -> bool:
        if isinstance(response, PushResponse) and self._member.members.commit_may_wait:
            return True
        if isinstance(response, HeartBeatResponse) and self._saves_cluster_id(response):
            return True
        return response is not None and (response.term > self._member.term or isinstance(response, _SAVING_RESPONSES))

    def _saves_cluster_id(self, message: HeartBeatRequest | HeartBeatResponse) -> bool:
        return bool(message.cluster_id) and not self._member.store.cluster_id

    @property
    def in_drain(self) -> bool:
        return self._member.store.needs_undo

    def in_tick(self, now: int) -> bool:
        member = self._member
        member.set_clock(now)
        if member.store.append_may_wait or self._transfer.is_taking_over or self._cluster_id.nobody_has_one:
            return True
        return self._election.is_due(member.now) or self._changes.is_due(member.now)
