"""What keeps a member from voting: it says so, and asks its leader for the entry that ends it."""

from __future__ import annotations

from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import ENTRY, MembersRequest

_INTERVAL_MS = 1000
_REPORT_MS = 60_000
_JOINING, _REMOVED, _RESTORED = "joining", "removed", "restored"


class Standing:
    """Reports that this member joins, was restored or was removed, until that is over."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._next_at = member.now
        self.tick()

    def tick(self) -> None:
        member, members = self._member, self._member.members
        is_due = member.now >= self._next_at
        if is_due:
            self._next_at = member.now + _INTERVAL_MS
            self._ask_for_entry()
        if (found := members.removed_by) is None:
            member.resolve_problem(_REMOVED)
        elif is_due:
            text = f"the group removed this member, by entry {found.index}: stop it"
            member.report_problem(text, _REMOVED, _REPORT_MS)
        if members.is_joining and is_due:
            text = "this member joins with an empty disk: it does not vote before an entry of its leader is committed"
            member.report_problem(text, _JOINING, _REPORT_MS)
        if not member.is_behind_restore:
            member.resolve_problem(_RESTORED)
        elif is_due:
            member.report_problem(
                "this member was restored from a backup, so it neither votes nor leads before it has an entry of term "
                f"{member.store.restored_term} or later: it asks the leader to append one",
                _RESTORED,
            )

    def _ask_for_entry(self) -> None:
        """A restored or new member asks its leader for an entry: without one it cannot vote (`Member.can_vote`)."""
        member, leader = self._member, self._member.leader_id
        if not member.can_vote and leader in member.others and member.members.takes_controls(leader):
            request = MembersRequest(group=member.group, remote_id=leader, local_id=member.self_id, action=ENTRY)
            member.send(leader, request, lambda *_: None, None)
