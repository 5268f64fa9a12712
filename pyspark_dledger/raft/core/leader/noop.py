"""A new leader's NOOP: it commits entries of earlier terms that no other entry of the leader's term commits.

A member that lost its disk needs an entry of the leader's term, too (`Member.can_vote`).
"""

from __future__ import annotations

from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.format.codec import NOOP
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member

_EMPTY = Bodies.of([b""])
_RETRY_MS = 1000


class Noop:
    """Appends it if all members take control entries.

    An election with a committed log needs none, so idle groups do not grow by elections.
    """

    def __init__(self, member: Member, application: ApplicationCaller, commit_index: CommitIndex) -> None:
        self._member = member
        self._application = application
        self._commit_index = commit_index
        self._retry_at = 0

    def tick(self) -> None:
        member, store = self._member, self._member.store
        if not member.is_leader or (store.committed_index == store.ledger_end_index and not member.owes_entry):
            return
        has_others = member.others or member.members.is_by_log
        if has_others and not member.members.not_taking_controls:
            self.append()

    def append(self) -> None:
        """Append it, unless the log ends with an entry of this term."""
        member, store = self._member, self._member.store
        if store.ledger_end_term == member.term or member.transferee is not None or member.now < self._retry_at:
            return
        self._retry_at = member.now + _RETRY_MS
        bodies = self._application.filler() if self._application.serves_messages else _EMPTY
        try:
            store.append_as_leader(bodies, member.term, NOOP)
        except DiskFullError:
            return
        except DISK_FAILURES as error:
            member.report_problem(f"entries of earlier terms are not committed: no NOOP appended ({error})")
            return
        # A majority without others has it already.
        self._commit_index.advance()
