"""A new leader's NOOP: it commits entries of earlier terms that no other entry of the leader's term commits.

A member that lost its disk needs an entry of the leader's term, too (`Member.can_vote`). In a group with Java members
it is a message that applications do not get, because they know no control entries; without messages there is none.
"""

from __future__ import annotations

from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.format.codec import NOOP
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.leader.appends import Appends
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member

_EMPTY = Bodies.of([b""])
_RETRY_MS = 100
_NO_CONTROL = 0


class Noop:
    """Appends it where entries of earlier terms need it.

    An election with a committed log needs none, so idle groups do not grow by elections.
    """

    def __init__(
        self, member: Member, application: ApplicationCaller, appends: Appends, commit_index: CommitIndex
    ) -> None:
        self._member = member
        self._application = application
        self._appends = appends
        self._commit_index = commit_index
        self._retry_at = 0
        # If all members are up, entries of earlier terms are committed without it. Half of a put's timeout is left for
        # that where it is a message.
        self._patience_ms = member.config.max_wait_ack_time_ms // 2

    def tick(self) -> None:
        member, store = self._member, self._member.store
        if not member.is_leader or (store.committed_index == store.ledger_end_index and not member.owes_entry):
            return
        if member.members.not_taking_controls:
            is_needed = self._appends.has_old_put(member.now - self._patience_ms)
        else:
            is_needed = bool(member.others) or member.members.is_by_log
        if is_needed:
            self.append()

    def append(self) -> None:
        """Append it, unless the log ends with an entry of this term."""
        member, store = self._member, self._member.store
        if store.ledger_end_term == member.term or member.transferee is not None or member.now < self._retry_at:
            return
        is_control = not member.members.not_taking_controls
        if not is_control and not self._application.serves_messages:
            return
        self._retry_at = member.now + _RETRY_MS
        bodies = self._application.filler() if self._application.serves_messages else _EMPTY
        try:
            store.append_as_leader(bodies, member.term, NOOP if is_control else _NO_CONTROL)
        except DiskFullError:
            return
        except DISK_FAILURES as error:
            member.report_problem(f"entries of earlier terms are not committed: no NOOP appended ({error})")
            return
        # A majority without others has it already.
        self._commit_index.advance()
