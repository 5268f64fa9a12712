"""The cluster id: made once, and the same at all members, so that two groups with one name cannot mix.

A leader's heartbeats have its id, and the responses that of the follower. A leader without an id takes the first one
that it hears; only if no other member has one, it makes one. Its list of members must be committed: another leader can
have made an id, and a list that ends can lack it. A member responds only to its leader of the present term, and keeps
its first id. So a later leader finds the id that an earlier one has given to any member, and after that no member takes
one of the earlier leader. Java members have none: in a group with them an id that our members have is passed on, but
none is made.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark_dledger.raft.core.member import DISK_FAILURES, Member

_ID_BITS = 128
_MAX_LENGTH = 64


class ClusterId:
    """Agrees on the id."""

    def __init__(self, member: Member) -> None:
        self._member = member
        # The id of each member that has answered in this leadership, "" if it has none.
        self._found: dict[str, str] = {}

    def role_changed(self) -> None:
        self._found.clear()

    def connected(self, peer_id: str) -> None:
        """A peer was connected: it may have another store."""
        self._found.pop(peer_id, None)

    # A leader

    def sent_to(self, peer_id: str) -> str | None:
        """The id that a heartbeat to a peer has."""
        return self._member.store.cluster_id if peer_id in self._member.binary_peers else None

    def is_known_by(self, voters: Collection[str]) -> bool:
        """Whether most of these voters have this leader's id, if it has one: an id must not leave with a member."""
        own, self_id = self._member.store.cluster_id, self._member.self_id
        having = [each for each in voters if each == self_id or self._found.get(each) == own]
        return not own or len(having) > len(voters) // 2

    @property
    def nobody_has_one(self) -> bool:
        """Whether the leader has to make one."""
        member = self._member
        if not member.is_leader or member.store.cluster_id or not member.members.is_committed:
            return False
        return all(self._found.get(peer_id) == "" for peer_id in member.others)

    def tick(self) -> None:
        if self.nobody_has_one:
            self._save(f"{self._member.random.getrandbits(_ID_BITS):032x}")

    def responded(self, peer_id: str, found: str | None) -> None:
        """A follower has responded with its id."""
        if found is not None and peer_id in self._member.binary_peers:
            self._found[peer_id] = found
            self._take(peer_id, found)

    # A follower

    def received(self, leader_id: str, found: str | None) -> str | None:
        """The leader of this term has sent its id. Returns the id for the response."""
        if found is None:
            return None
        self._take(leader_id, found[:_MAX_LENGTH])
        return self._member.store.cluster_id

    def _take(self, peer_id: str, found: str) -> None:
        member, own = self._member, self._member.store.cluster_id
        if found and not own:
            self._save(found)
        elif found not in ("", own):
            member.report_problem(
                f"{peer_id} is of cluster {found}, this member of {own}: two groups have the name {member.group}, "
                "correct peers"
            )

    def _save(self, cluster_id: str) -> None:
        try:
            self._member.store.save_cluster_id(cluster_id)
        except DISK_FAILURES as error:
            self._member.report_problem(f"the cluster id cannot be saved: {error}")
