"""The cluster id: made once, and the same at all members, so that two groups with one name cannot mix.

A leader without an id asks all others for theirs. If one has an id, the leader takes it; only if none has, it makes
one. Its list of members must be committed: another leader can have made an id, and a list that ends can lack it. A
member responds only to its leader of the present term, and keeps its first id. So a later leader finds the id
that an earlier one has given to any member, and after that no member takes one of the earlier leader. Java members have
none: in a group with them an id that our members have is passed on, but none is made.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import IdentityRequest, IdentityResponse, Response, Role

_INTERVAL_MS = 1000
_ID_BITS = 128
_MAX_LENGTH = 64


class _SentRequest(NamedTuple):
    peer_id: str
    leadership_epoch: int


class ClusterId:
    """Agrees on the id while this member leads, and answers a leader."""

    def __init__(self, member: Member) -> None:
        self._member = member
        # The id of each member that has answered in this leadership, "" if it has none.
        self._found: dict[str, str] = {}
        self._next_at = member.now
        member.role_listeners.append(self._role_changed)

    def _role_changed(self) -> None:
        self._found.clear()
        self._next_at = self._member.now

    def connected(self, peer_id: str) -> None:
        """A peer was connected: it may have another store."""
        self._found.pop(peer_id, None)

    # A leader

    def is_known_by(self, voters: Collection[str]) -> bool:
        """Whether most of these voters have this leader's id, if it has one: an id must not leave with a member."""
        own, self_id = self._member.store.cluster_id, self._member.self_id
        having = [each for each in voters if each == self_id or self._found.get(each) == own]
        return not own or len(having) > len(voters) // 2

    def is_due(self, now: int) -> bool:
        """Whether `tick` may save the id."""
        member = self._member
        return member.is_leader and now >= self._next_at and not member.store.cluster_id

    def tick(self) -> None:
        member = self._member
        if not member.is_leader or member.now < self._next_at:
            return
        self._next_at = member.now + _INTERVAL_MS
        self._make_if_nobody_has_one()
        own = member.store.cluster_id
        for peer_id in member.others:
            if peer_id in member.binary_peers and (not own or self._found.get(peer_id, "") == ""):
                request = IdentityRequest(
                    group=member.group,
                    remote_id=peer_id,
                    local_id=member.self_id,
                    leader_id=member.self_id,
                    term=member.term,
                    cluster_id=own,
                )
                member.send(peer_id, request, self._on_response, _SentRequest(peer_id, member.leadership_epoch))

    def _on_response(self, sent: _SentRequest, response: Response | None) -> None:
        member = self._member
        is_late = not member.is_leader or sent.leadership_epoch != member.leadership_epoch
        if is_late or not isinstance(response, IdentityResponse) or response.code != ResponseCode.SUCCESS:
            return
        found = self._found[sent.peer_id] = response.cluster_id or ""
        if found and not member.store.cluster_id:
            self._save(found)
            self._next_at = member.now
        elif found and found != member.store.cluster_id:
            self._report(sent.peer_id, found)
        self._make_if_nobody_has_one()

    def _make_if_nobody_has_one(self) -> None:
        member = self._member
        is_known = member.members.is_committed and all(self._found.get(peer_id) == "" for peer_id in member.others)
        if is_known and not member.store.cluster_id:
            self._save(f"{member.random.getrandbits(_ID_BITS):032x}")
            self._next_at = member.now

    # A follower

    def handle(self, request: IdentityRequest, token: object) -> None:
        member, own = self._member, self._member.store.cluster_id
        response = IdentityResponse(
            group=member.group, leader_id=member.leader_id, term=member.term, code=ResponseCode.INCONSISTENT_LEADER
        )
        is_of_leader = member.role is Role.FOLLOWER and request.leader_id == member.leader_id
        if is_of_leader and request.term == member.term:
            wanted = (request.cluster_id or "")[:_MAX_LENGTH]
            if wanted and not own:
                self._save(wanted)
            elif wanted not in ("", own):
                self._report(request.leader_id or "", wanted)
            response.code, response.cluster_id = ResponseCode.SUCCESS, member.store.cluster_id
        member.reply(token, response)

    def _save(self, cluster_id: str) -> None:
        try:
            self._member.store.save_cluster_id(cluster_id)
        except DISK_FAILURES as error:
            self._member.report_problem(f"the cluster id cannot be saved: {error}")

    def _report(self, peer_id: str, found: str) -> None:
        member = self._member
        member.report_problem(
            f"{peer_id} is of cluster {found}, this member of {member.store.cluster_id}: two groups have the name "
            f"{member.group}, correct peers"
        )
