"""What a member learns of others: the list of members, and an entry that it needs to vote.

Hellos have the list. It is also asked for after a reset of the log, which then lacks the entries before its first one,
and while no leader is known. A member that was down may know no member that leads by now, or may have been removed:
others refuse the hello of a removed one.
"""

from __future__ import annotations

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.member_list import read_told
from pyspark_dledger.raft.messages import ENTRY, MembersRequest, MembersResponse, Response, Role

_ASK_EVERY_MS = 1000
_JOINING = "joining"
_REMOVED = "removed"
_LACKING = "lacks members"
_LACKING_TEXT = (
    "this member lacks the list of members before its log, so it does not lead: no other one has sent it. If none has "
    "it, restart all with --change-members"
)
_REPORT_MS = 60_000


class ListCopy:
    """Asks the members of this package, one after the other."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._turn = 0
        self._ask_at = member.now + _ASK_EVERY_MS
        self._was_candidate = member.role is Role.CANDIDATE
        self._was_complete = True
        member.role_listeners.append(self._role_changed)
        self._report_joining()

    def _role_changed(self) -> None:
        """Wait with questions, but not for a candidate that goes from term to term, nor if the list is incomplete."""
        is_candidate = self._member.role is Role.CANDIDATE
        if not (is_candidate and self._was_candidate) and self._member.members.is_complete:
            self._ask_at = max(self._ask_at, self._member.now + _ASK_EVERY_MS)
        self._was_candidate = is_candidate

    def tick(self) -> None:
        member = self._member
        is_complete = member.members.is_complete
        if is_complete != self._was_complete:
            # Ask at once after a reset of the log: the leader that sent it knows the list.
            self._was_complete = is_complete
            member.resolve_problem(_LACKING)
        elif member.now < self._ask_at:
            return
        elif not is_complete:
            member.report_problem(_LACKING_TEXT, _LACKING, _REPORT_MS)
        self._ask_at = member.now + _ASK_EVERY_MS
        self._report_joining()
        self._report_removed()
        if is_complete and member.role is not Role.CANDIDATE:
            self._ask_for_entry()
            return
        peers = [peer_id for peer_id in member.others if member.members.takes_controls(peer_id)]
        if not peers:
            return
        peer_id = member.leader_id if member.leader_id in peers else peers[self._turn % len(peers)]
        self._turn += 1
        request = MembersRequest(group=member.group, remote_id=peer_id, local_id=member.self_id)
        member.send(peer_id, request, self._on_response, None)

    def _ask_for_entry(self) -> None:
        """A restored or new member asks its leader for an entry: without one it cannot vote (`Member.can_vote`)."""
        member, leader = self._member, self._member.leader_id
        if not member.can_vote and leader in member.others and member.members.takes_controls(leader):
            request = MembersRequest(group=member.group, remote_id=leader, local_id=member.self_id, action=ENTRY)
            member.send(leader, request, lambda *_: None, None)

    def _report_joining(self) -> None:
        if self._member.members.is_joining:
            self._member.report_problem(
                "this member joins: it does not vote until an entry of the leader's term is committed",
                _JOINING,
                _REPORT_MS,
            )

    def _on_response(self, _: object, response: Response | None) -> None:
        if not isinstance(response, MembersResponse) or response.code != ResponseCode.SUCCESS:
            return
        self._heard(response.members)

    def _report_removed(self) -> None:
        member = self._member
        if member.members.is_removed:
            found = member.members.current
            text = f"the group removed this member, by entry {found.index}: stop it"
            member.report_problem(text, _REMOVED, _REPORT_MS)
        else:
            member.resolve_problem(_REMOVED)

    def heard_hello(self, text: str, is_refusal: bool) -> None:
        """The list of another member's hello. One that refuses this member can only say that it was removed."""
        if is_refusal or not self._member.is_leader:
            self._heard(text, not is_refusal)

    def _heard(self, text: str | None, is_listed: bool | None = None) -> None:
        """Another member's latest committed list. ``is_listed``: it counts only if it has this member, or lacks it."""
        try:
            found, committed = read_told(text)
        except ValueError as error:
            self._member.report_problem(f"a member sent a list of members that cannot be used: {error}", "list")
            return
        if is_listed in (None, self._member.self_id in found.addresses):
            self._member.members.heard(found, committed)
