"""The state that all parts of a core share: role, term, vote, store, time, and pending effects."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.encode.encoded import DiskNeededError, RejectedError
from pyspark_dledger.format.state_files import MAX_TERM
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.raft.core.disk_health import DiskHealth
from pyspark_dledger.raft.core.effects import Committed, Effect, Load, MembersChanged, Reply, RoleChanged, Send
from pyspark_dledger.raft.core.membership import Membership
from pyspark_dledger.raft.member_list import MemberList
from pyspark_dledger.raft.messages import Request, Response, Role
from pyspark_dledger.store.dledger_store import DLedgerStore, EntryRange

# The exceptions of a store whose disk fails.
DISK_FAILURES = (StoreError, OSError)
# A message raises a term by at most this, so a member would have to save 2**42 terms to reach `MAX_TERM`. A group of
# correct members needs one more term for each election.
MAX_TERM_RISE = 2**20
# The driver reports every outcome within a few seconds; after this time a request is treated as lost.
_REQUEST_EXPIRES_MS = 30_000
_MAX_PROBLEMS = 100
# A problem is reported again after the first time, and counts as resolved if it did not recur within the second.
_REPORT_AGAIN_MS = 10_000
_RESOLVED_AFTER_MS = 60_000

# Called with the request's context, and its response or None.
OnResponse = Callable[[Any, Response | None], None]
# Called with the context, and the entries or the exception of the store.
OnLoaded = Callable[[Any, EntryRange | Exception], None]


class _Problem(NamedTuple):
    text: str
    kind: str
    seen_at: int


_NO_PROBLEM = _Problem("", "", 0)


class Member:
    """The state of one member of a group (``MemberState``). Its parts add effects for the driver."""

    def __init__(
        self, config: CoreConfig, store: DLedgerStore, randomness: random.Random, now: int, members: Membership
    ) -> None:
        self.config = config
        self.store = store
        self.members = members
        self.random = randomness
        self.now = self._clock = now
        # How far its clock has gone back so far.
        self._went_back = 0
        self.group = config.group
        self.self_id = config.self_id
        self.role = Role.CANDIDATE
        self.is_leader = False
        self.leader_id: str | None = None
        self.transferee: str | None = None
        self.transfer_at = 0
        self.was_transferring = False
        self.term = store.curr_term
        self.vote = store.vote_leader
        # The number of times that this member became leader.
        self.leadership_epoch = 0
        self.disk = DiskHealth(config, store, now)
        self.binary_peers: set[str] = set()
        # Whether the present input may wait for the disk.
        self.may_wait = True
        self.effects: list[Effect] = []
        self.problems: deque[str] = deque(maxlen=_MAX_PROBLEMS)
        self.problem_count = 0
        # Rounds of vote requests that this member began; entries that were found damaged, and that were repaired.
        self.elections = self.found_damaged = self.repaired = 0
        # Messages whose term was more than `MAX_TERM_RISE` above the present one.
        self.limited_terms = 0
        # Whether a member that lost its disk elected this leader: it waits for an entry of this term.
        self.owes_entry = False
        self._reported: dict[str, int] = {}
        self._latest = _NO_PROBLEM
        # Called after a change of the role or the members, and when more is committed.
        self.on_role: Callable[[], None] = lambda: None
        self.on_members: Callable[[], None] = lambda: None
        self.on_commit: Callable[[int], None] = lambda _: None
        # Takes damaged entries: what is wrong with them by index.
        self.on_damage: Callable[[Mapping[int, str]], None] = lambda _: None
        # Whether the application lacks state that the log does not tell.
        self.needs_summary: Callable[[], bool] = lambda: False
        self._persisted = store.flushed_index
        self._end_before_reset = -1, -1
        self._last_token = 0
        self._sent: dict[int, tuple[OnResponse, Any, int]] = {}
        # The reads of other threads: what to call, its context, and the store's removals at the begin.
        self._loading: dict[int, tuple[OnLoaded, Any, int]] = {}
        self._take_members()
        members.on_change = self._members_changed
        store.members_hook = self._appending_members

    # Time

    def set_clock(self, clock: int) -> None:
        """Take over the driver's time. When the clock goes back, this member's time stands still: no timer waits."""
        if clock < self._clock:
            self._went_back += self._clock - clock
        self._clock = clock
        self.now = clock + self._went_back

    # Members

    def _take_members(self) -> None:
        found = self.members.current
        self.others = self.members.others
        self.peers = frozenset(found.addresses)
        self.is_voter = self.self_id in found.voters
        # The other members whose votes and copies count.
        self.voters = frozenset(found.voters) - {self.self_id}
        self.quorum = found.quorum
        # Others do not have what the only voter acknowledges.
        self.is_sync = self.config.is_sync or (self.config.is_sync_alone and self.has_lone_vote)

    def _members_changed(self) -> None:
        self._take_members()
        self.effects.append(MembersChanged(self.members.current.addresses))
        self.on_members()

    def _appending_members(self, index: int, term: int, body: bytes) -> None:
        """A leader's list is appended next. Raises DiskNeededError, see `Core.handle`, and StoreError."""
        if not self.may_wait:
            raise DiskNeededError
        self.members.appending(index, term, body)

    @property
    def knows_members(self) -> bool:
        """Whether its list is the group's present one: it leads, or a member of the list leads it.

        A list that the log brought can be of the past, so nobody is rejected by it.
        """
        return self.is_leader or self.leader_id in self.peers

    @property
    def has_lone_vote(self) -> bool:
        """Whether this member is a majority."""
        return self.is_voter and not self.voters

    # Problems

    def report_problem(self, text: str, kind: str = "", again_ms: int = _REPORT_AGAIN_MS) -> None:
        """Report a problem of this member for operators: a violated rule or a failure.

        Problems of one kind (by default: of one text) are reported once in ``again_ms``.
        """
        self.problem_count += 1
        self._latest = _Problem(text, kind or text, self.now)
        self.report(text, kind or text, again_ms)

    def report(self, text: str, kind: str, again_ms: int = _REPORT_AGAIN_MS) -> None:
        """Report an event that is no problem of this member, once in ``again_ms`` for each kind."""
        now = self.now
        if now - self._reported.get(kind, now - again_ms) < again_ms:
            return
        if len(self._reported) >= _MAX_PROBLEMS:
            self._reported.clear()
        self._reported[kind] = now
        self.problems.append(text)

    def report_repair(self, index: int, peer_id: str | None) -> None:
        """Report that a damaged entry was replaced."""
        self.repaired += 1
        self.report(f"entry {index} was damaged and has been repaired with the copy of {peer_id}", f"repaired {index}")

    def resolve_problem(self, kind: str) -> None:
        """Problems of that kind are over."""
        if self._latest.kind == kind:
            self._latest = _NO_PROBLEM

    @property
    def latest_problem(self) -> str:
        """The text of the latest problem, "" if it is resolved or did not recur for a while."""
        return self._latest.text if self.now - self._latest.seen_at < _RESOLVED_AFTER_MS else ""

    # Requests and responses

    def send(self, peer_id: str, request: Request, on_response: OnResponse, context: object) -> int:
        """Send a request. `on_response` gets `context` and the response. Returns the token."""
        self._last_token = token = self._last_token + 1
        self._sent[token] = (on_response, context, self.now)
        self.effects.append(Send(peer_id, token, request))
        return token

    def handle_response(self, token: int, response: Response | None) -> None:
        sent = self._sent.pop(token, None)
        if sent is None:
            return
        # A larger term in any response ends this term.
        if response is not None and self.term < response.term <= MAX_TERM and not self.adopt(response.term):
            response = None
        sent[0](sent[1], response)

    def expire_requests(self) -> None:
        """Treat old requests without a reported outcome as lost."""
        limit = self.now - _REQUEST_EXPIRES_MS
        while self._sent:
            token = next(iter(self._sent))
            if self._sent[token][2] > limit:
                return
            self.handle_response(token, None)

    def reply(self, token: object, response: Response) -> None:
        self.effects.append(Reply(token, response))

    def reject(self, token: object, request: Request, rejected: RejectedError) -> None:
        """Respond with a code and the request's ids, as Java does (``copyBaseInfo``)."""
        response, reason = request.response(), str(rejected)
        if reason and hasattr(response, "reason"):
            response.reason = reason
        response.group, response.term = request.group, request.term
        response.local_id, response.remote_id = request.local_id, request.remote_id
        response.code, response.leader_id = rejected.code, self.leader_id
        self.effects.append(Reply(token, response))

    # Reading old entries

    def load(self, index: int, max_bytes: int, on_loaded: OnLoaded, context: object) -> None:
        """Read entries that may only be on disk, in another thread. `on_loaded` gets `context` and the result."""
        self._last_token = token = self._last_token + 1
        self._loading[token] = on_loaded, context, self.store.removals
        self.effects.append(Load(token, index, max_bytes))

    def loaded(self, request: Load, result: EntryRange | Exception) -> None:
        on_loaded, context, removals = self._loading.pop(request.token)
        if removals == self.store.removals:
            on_loaded(context, result)
        else:
            self.load(request.first_index, request.max_bytes, on_loaded, context)

    # Term, vote and role

    def save_term(self, term: int, vote: str | None) -> bool:
        """Save term and vote durably, then take them over. Returns False, without a change, if the disk fails."""
        try:
            self.store.save_term(term, vote)
        except DISK_FAILURES as error:
            self.report_problem(
                f"term {term} cannot be saved ({error}): this member neither votes nor follows until it can"
            )
            return False
        self.term, self.vote = term, vote
        return True

    def adopt(self, term: int) -> bool:
        """Become a candidate without a vote in a larger term, at most `MAX_TERM_RISE` above the present one.

        Returns False if it cannot be saved.
        """
        if term > self.term + MAX_TERM_RISE:
            self.limited_terms += 1
            self.report(f"a message has term {term}, and this member {self.term}: it rises by {MAX_TERM_RISE}", "rise")
            term = self.term + MAX_TERM_RISE
        if not self.save_term(term, None):
            return False
        self.become(Role.CANDIDATE, None)
        return True

    def leader_error(self, leader: str | None, term: int) -> ResponseCode | None:
        """Why a node cannot be the leader of that term; None if it can."""
        if leader is None or not self.members.may_lead(leader):
            return ResponseCode.UNKNOWN_MEMBER
        if leader == self.self_id or term > MAX_TERM:
            return ResponseCode.UNEXPECTED_MEMBER
        return ResponseCode.EXPIRED_TERM if term < self.term else None

    def become(self, role: Role, leader_id: str | None) -> None:
        """Change the role in the current term, and notify all parts."""
        self.was_transferring = self.transferee is not None
        self.role, self.leader_id, self.transferee = role, leader_id, None
        self.is_leader = role is Role.LEADER
        if self.is_leader:
            self.leadership_epoch += 1
        if leader_id is not None:
            self.members.following(leader_id, self.term)
        self.effects.append(RoleChanged(role, self.term, leader_id))
        self.on_role()

    # The log

    @property
    def durable_index(self) -> int:
        """The last index that counts as stored: the end of the log, or under ``is_sync`` the last flushed index."""
        if not self.is_sync:
            return self.store.ledger_end_index
        return min(self._persisted, self.store.flushed_index)

    def persisted(self, index: int) -> None:
        self._persisted = max(self._persisted, index)

    @property
    def log_end(self) -> tuple[int, int]:
        """Term and index of the last entry, which a candidate's log is compared with.

        While the log is empty after a reset, these are the values before the reset, because this member may have helped
        to commit those entries.
        """
        store = self.store
        end = store.ledger_end_index
        return (store.ledger_end_term, end) if end >= 0 else self._end_before_reset

    @property
    def is_behind_restore(self) -> bool:
        """Whether a restored member lacks an entry of ``restored_term`` or a later one."""
        return self.store.ledger_end_term < self.store.restored_term

    @property
    def can_vote(self) -> bool:
        """Whether this member has every entry that it helped to commit; false for a while after a restore.

        A leader of ``restored_term`` or a later one was elected by others that kept their disks, so its log has all
        committed entries. They precede its own entries, of which this member needs one. The same with a new disk.
        """
        return not self.is_behind_restore and not self.members.is_joining

    @property
    def needs_no_other_log(self) -> bool:
        """Whether this member has all committed entries, and was asked for each vote: it is one of two voters.

        Only a list that is committed and final shows that: no list with a third voter follows without this member.
        """
        members = self.members
        is_pair = self.is_voter and len(self.voters) == 1 and members.current.is_final
        return is_pair and members.is_committed and self.can_vote

    @property
    def can_campaign(self) -> bool:
        """Whether this member has the entries that it claims, and the application's state of earlier ones.

        The log lacks entries while it is empty after a reset.
        """
        if not self.can_vote:
            return False
        has_entries = self.store.ledger_end_index >= 0 or self._end_before_reset == (-1, -1)
        is_member = (self.is_voter or self.members.is_leaving) and self.members.removed_by is None
        return has_entries and is_member and not self.needs_summary()

    def truncate(self, index: int) -> None:
        """Remove this entry and all later ones. Raises StoreError if the disk fails."""
        self.members.truncated()
        self.store.truncate(index)
        # After the truncation: if it failed, nothing was removed, and no flush would report the index again.
        self._persisted = min(self._persisted, index - 1)

    def reset(self, index: int, pos: int, before: MemberList | None = None) -> None:
        """Remove all entries; the next one has this index and position, and ``before`` is the list before it.

        Raises StoreError if the disk fails.
        """
        if self.store.ledger_end_index >= 0:
            self._end_before_reset = self.store.ledger_end_term, self.store.ledger_end_index
        self.members.resetting(index, before)
        self.store.reset(index, pos)
        self._persisted = -1

    def commit(self, index: int) -> bool:
        """Raise the committed index. Returns whether it rose."""
        before = self.store.committed_index
        if index <= before:
            return False
        self.store.update_committed_index(self.term, index)
        after = self.store.committed_index
        if after <= before:
            return False
        self.effects.append(Committed(after))
        self.members.advanced()
        self.on_commit(after)
        return True
