"""A leader's commit index."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_dledger.errors import StoreError
from pyspark_dledger.raft.core.leader.appends import Appends
from pyspark_dledger.raft.core.leader.peer_progress import PeerProgress
from pyspark_dledger.raft.core.member import Member


class CommitIndex:
    """Commits the entries that a quorum has."""

    def __init__(self, member: Member, appends: Appends, peers: Sequence[PeerProgress]) -> None:
        self._member = member
        self._appends = appends
        self._peers = peers
        # The first entry of this leader's own term.
        self._own_from = 0

    def role_changed(self) -> None:
        member = self._member
        if member.is_leader:
            store = member.store
            end = store.ledger_end_index
            self._own_from = end if end >= 0 and store.ledger_end_term == member.term else end + 1
            if member.has_lone_vote:
                self.advance()

    @property
    def is_known(self) -> bool:
        """Whether all entries that earlier leaders committed are known to be committed.

        So it is when an entry of the own term is committed, or the whole log.
        """
        store = self._member.store
        committed = store.committed_index
        return committed >= self._own_from or committed == store.ledger_end_index

    def has_own(self, committed: int | None = None) -> bool:
        """Whether an entry of this leader's own term is committed, or a peer with that committed index knows one."""
        return self._own_from <= (self._member.store.committed_index if committed is None else committed)

    def advance(self) -> None:
        """Commit the entries of the own term that a quorum has, and all entries that every member has.

        The latter only if no entry of the log made the list of members: a removed member may still be elected, with
        another entry in place of one of an older term.
        """
        member = self._member
        if not member.is_leader:
            return
        voters = member.voters
        matches = [progress.match_index for progress in self._peers if progress.peer_id in voters]
        if member.is_voter:
            matches.append(member.durable_index)
        matches.sort(reverse=True)
        committed = member.store.committed_index
        index = matches[member.quorum - 1]
        if index <= committed:
            return
        if not self._is_own(index):
            index = matches[-1]
            if index <= committed or member.members.is_by_log:
                return
        if member.commit(index):
            self._appends.committed(member.store.committed_index)

    def _is_own(self, index: int) -> bool:
        """Whether an entry is of this leader's term. A damaged one tells nothing."""
        if index >= self._own_from:
            return True
        try:
            return self._member.store.term_at(index) == self._member.term
        except StoreError as error:
            self._member.on_damage({index: str(error)})
            return False
