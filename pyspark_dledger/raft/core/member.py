"""What the parts of a member share: its role, term and vote, its store, the time, and what is to be sent."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import StoreError
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.raft.core.effects import Committed, Effect, Reply, RoleChanged, Send
from pyspark_dledger.raft.messages import Request, Response, Role
from pyspark_dledger.store.dledger_store import DLedgerStore

# What a store raises where a disk fails.
DISK_FAILURES = (StoreError, OSError)
# Terms stay far from where counting on would leave a Java long.
MOST_TERM = 2**62
# Whoever drives the core answers within a few seconds; what was never answered is forgotten after this.
_FORGET_AFTER_MS = 30_000
_MOST_PROBLEMS = 100
# The same problem is told again no sooner than this, and counts as solved when it was not met for the other.
_TELL_AGAIN_MS = 10_000
_SOLVED_AFTER_MS = 60_000

# Takes what was given when the request was sent, and the answer, or None where none came.
Answered = Callable[[Any, Response | None], None]
RoleListener = Callable[[], None]
CommitListener = Callable[[int], None]


class _Problem(NamedTuple):
    """What an operator should see, and when it was met last."""

    text: str
    kind: str
    met_at: int


_NO_PROBLEM = _Problem("", "", 0)


class Member:
    """The state of one member of a group (``MemberState``), and the way out for all that its parts want done."""

    def __init__(self, config: CoreConfig, store: DLedgerStore, randomness: random.Random, now: int) -> None:
        self.config = config
        self.store = store
        self.random = randomness
        self.now = now
        self.group = config.group
        self.self_id = config.self_id
        self.others = config.others
        self.peers = frozenset(config.peers)
        self.quorum = config.quorum
        self.is_sync = config.is_sync
        self.role = Role.CANDIDATE
        self.is_leader = False
        self.leader_id: str | None = None
        self.transferee: str | None = None
        self.transfer_at = 0
        self.was_transferring = False
        self.term = store.curr_term
        self.vote = store.vote_leader
        self.stint = 0
        self.ours: set[str] = set()
        self.effects: list[Effect] = []
        self.problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self.problem_count = 0
        self._told: dict[str, int] = {}
        self._latest = _NO_PROBLEM
        self.role_listeners: list[RoleListener] = []
        self.commit_listeners: list[CommitListener] = []
        self._persisted = store.flushed_index
        self._lost_end = -1, -1
        self._last_token = 0
        self._sent: dict[int, tuple[Answered, Any, int]] = {}

    # Problems

    def problem(self, text: str, kind: str = "", again_ms: int = _TELL_AGAIN_MS) -> None:
        """Something an operator should see: which rule was broken, or what failed.

        Problems of one kind, or with the same text where no kind is given, are told once in ``again_ms``.
        """
        self.problem_count += 1
        self._latest = _Problem(text, kind or text, self.now)
        self.tell(text, kind or text, again_ms)

    def tell(self, text: str, kind: str, again_ms: int = _TELL_AGAIN_MS) -> None:
        """Something for the log that is no problem of this member, told once in ``again_ms`` for each kind."""
        now = self.now
        if now - self._told.get(kind, now - again_ms) < again_ms:
            return
        if len(self._told) >= _MOST_PROBLEMS:
            self._told.clear()
        self._told[kind] = now
        self.problems.append(text)

    def solved(self, kind: str) -> None:
        """Problems of that kind are over: what they kept from going on went on."""
        if self._latest.kind == kind:
            self._latest = _NO_PROBLEM

    @property
    def latest_problem(self) -> str:
        """The problem that was met last, "" where it is solved, or was not met for a while."""
        return self._latest.text if self.now - self._latest.met_at < _SOLVED_AFTER_MS else ""

    # Sending and answering

    def send(self, peer_id: str, request: Request, answered: Answered, given: object) -> int:
        """Send a request; `answered` gets `given` and what comes back. The token."""
        self._last_token = token = self._last_token + 1
        self._sent[token] = (answered, given, self.now)
        self.effects.append(Send(peer_id, token, request))
        return token

    def answered(self, token: int, answer: Response | None) -> None:
        sent = self._sent.pop(token, None)
        if sent is None:
            return
        # Whatever was asked: who answers with a larger term ends this one.
        if answer is not None and self.term < answer.term <= MOST_TERM and not self.adopt(answer.term):
            answer = None
        sent[0](sent[1], answer)

    def forget_unanswered(self) -> None:
        """Drop requests whose outcome nobody told for long."""
        limit = self.now - _FORGET_AFTER_MS
        while self._sent:
            token = next(iter(self._sent))
            if self._sent[token][2] > limit:
                return
            self.answered(token, None)

    def reply(self, token: object, answer: Response) -> None:
        self.effects.append(Reply(token, answer))

    def refuse(self, token: object, request: Request, answer: Response, code: ResponseCode) -> None:
        """Answer with a code; the rest is the request's, as Java's servers do (``copyBaseInfo``)."""
        answer.group, answer.term = request.group, request.term
        answer.local_id, answer.remote_id = request.local_id, request.remote_id
        answer.code, answer.leader_id = code, self.leader_id
        self.effects.append(Reply(token, answer))

    # Term, vote and role

    def save_term(self, term: int, vote: str | None) -> bool:
        """Make term and vote durable, then this member's own; False, and nothing changed, where the disk fails."""
        try:
            self.store.save_term(term, vote)
        except DISK_FAILURES as error:
            self.problem(f"term {term} cannot be saved ({error}): this member neither votes nor follows until it can")
            return False
        self.term, self.vote = term, vote
        return True

    def adopt(self, term: int) -> bool:
        """Go over to a larger term as a candidate without a vote; False where it cannot be saved."""
        if not self.save_term(term, None):
            return False
        self.become(Role.CANDIDATE, None)
        return True

    def refusal_of(self, leader: str | None, term: int) -> ResponseCode | None:
        """Why a node that says to lead that term is not listened to; None where it may be."""
        if leader is None or leader not in self.peers:
            return ResponseCode.UNKNOWN_MEMBER
        if leader == self.self_id or term > MOST_TERM:
            return ResponseCode.UNEXPECTED_MEMBER
        return ResponseCode.EXPIRED_TERM if term < self.term else None

    def become(self, role: Role, leader_id: str | None) -> None:
        """Take a role in the present term, and tell every part."""
        self.was_transferring = self.transferee is not None
        self.role, self.leader_id, self.transferee = role, leader_id, None
        self.is_leader = role is Role.LEADER
        if self.is_leader:
            self.stint += 1
        self.effects.append(RoleChanged(role, self.term, leader_id))
        for listener in self.role_listeners:
            listener()

    # The log

    @property
    def durable_index(self) -> int:
        """Up to where this member's log counts as stored: to its end, or under ``is_sync`` as far as it is flushed."""
        if not self.is_sync:
            return self.store.ledger_end_index
        return min(self._persisted, self.store.flushed_index)

    def persisted(self, index: int) -> None:
        self._persisted = max(self._persisted, index)

    @property
    def log_end(self) -> tuple[int, int]:
        """Term and index of the last entry, by which candidates are judged.

        While the log is empty after a reset, it is that before it: this member may have helped to commit what it held.
        """
        store = self.store
        end = store.ledger_end_index
        return (store.ledger_end_term, end) if end >= 0 else self._lost_end

    @property
    def may_stand(self) -> bool:
        """Whether this member holds what it says to hold: not while the log is empty after a reset."""
        return self.store.ledger_end_index >= 0 or self._lost_end == (-1, -1)

    def cut(self, index: int) -> None:
        """Remove the entry of that index and all behind it. Raises StoreError where the disk fails."""
        self.store.truncate(index)
        # Only now: where the disk failed, nothing was cut, and nobody would say again what is durable.
        self._persisted = min(self._persisted, index - 1)

    def reset(self, index: int, pos: int) -> None:
        """Remove every entry; the next one stands there. Raises StoreError where the disk fails."""
        if self.store.ledger_end_index >= 0:
            self._lost_end = self.store.ledger_end_term, self.store.ledger_end_index
        self.store.reset(index, pos)
        self._persisted = -1

    def commit(self, index: int) -> bool:
        """Raise the committed index; whether it rose."""
        before = self.store.committed_index
        if index <= before:
            return False
        self.store.update_committed_index(self.term, index)
        after = self.store.committed_index
        if after <= before:
            return False
        self.effects.append(Committed(after))
        for listener in self.commit_listeners:
            listener(after)
        return True
