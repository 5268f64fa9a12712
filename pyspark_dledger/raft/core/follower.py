"""A leader's pushes as a follower takes them (``EntryHandler``).

Stricter than Java: a follower keeps how far its log is known to equal its leader's, appends only from there on, commits
only up to there, cuts only above it, and never cuts what is committed. What it says to have is durable under
``is_sync``.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError, InconsistentError
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.core.pushed_entries import PushedEntry, only_entry, same, split
from pyspark_dledger.raft.messages import PushRequest, PushResponse, PushType, Role

# What keeps this member from taking its leader's entries.
_BLOCKED = "follower"


class _Waiting(NamedTuple):
    """An answer that may go out once this member's log is durable up to an index."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    token: object
    answer: PushResponse


class _Refused(Exception):
    """A push that cannot be done; the code says why."""

    def __init__(self, code: ResponseCode = ResponseCode.INCONSISTENT_STATE) -> None:
        super().__init__(code)
        self.code = code


class Follower:
    """Takes what the leader of the present term pushes."""

    def __init__(self, member: Member) -> None:
        self._member = member
        # One leader writes one term, in one order: whoever has an entry of its term has all before it.
        has_own = member.store.ledger_end_term == member.term
        self._matched = member.store.ledger_end_index if has_own else -1
        self._matched_term = member.term
        self._waiting: deque[_Waiting] = deque()
        # The log's end when a push could last not be taken.
        self._blocked_at: int | None = None
        self._actions = {
            PushType.APPEND: self._append,
            PushType.COMPARE: self._compare,
            PushType.TRUNCATE: self._truncate,
            PushType.COMMIT: self._commit_only,
        }
        member.role_listeners.append(self._role_changed)

    def _role_changed(self) -> None:
        member = self._member
        if member.term == self._matched_term:
            return
        for waiting in self._waiting:
            waiting.answer.code, waiting.answer.term = ResponseCode.EXPIRED_TERM, member.term
            member.reply(waiting.token, waiting.answer)
        self._waiting.clear()
        self._matched, self._matched_term = -1, member.term

    # Requests

    def handle(self, request: PushRequest, token: object) -> None:
        code = self._refusal(request)
        if code is not None:
            if code is not ResponseCode.UNKNOWN:
                self._member.reply(token, self._answer(request, code))
            return
        try:
            needed = self._actions[request.type](request)
            self._commit(request.commit_index)
        except _Refused as refused:
            self._member.reply(token, self._answer(request, refused.code))
        except (InconsistentError, ValueError) as error:
            self._blocked(f"{request.type.name} of leader {request.leader_id} cannot be taken: {error}")
            # Leaders of 0.4.0 send no entries in the way of 0.3; Java tells them so too.
            code = ResponseCode.INCONSISTENT_STATE if request.count else ResponseCode.UNEXPECTED_ARGUMENT
            self._member.reply(token, self._answer(request, code))
        except DISK_FAILURES as error:
            self._member.reply(token, self._answer(request, self._failure(error)))
        else:
            self._unblock()
            self._reply(needed, token, self._answer(request, ResponseCode.SUCCESS))

    def _blocked(self, text: str) -> None:
        """A push could not be taken, and most likely the next cannot either."""
        self._blocked_at = self._member.store.ledger_end_index
        self._member.problem(text, _BLOCKED)

    def _unblock(self) -> None:
        """A push was taken: the problem is over if the log is longer than when it was met."""
        if self._blocked_at is not None and self._member.store.ledger_end_index > self._blocked_at:
            self._blocked_at = None
            self._member.solved(_BLOCKED)

    def _refusal(self, request: PushRequest) -> ResponseCode | None:
        """Why whoever pushes is not followed, or None; UNKNOWN for no answer, where its term cannot be saved."""
        member, leader = self._member, request.leader_id
        if leader == member.leader_id and request.term == member.term and member.role is Role.FOLLOWER:
            return None
        code = member.refusal_of(leader, request.term)
        if code is not None:
            return code
        if request.term > member.term and not member.adopt(request.term):
            return ResponseCode.UNKNOWN
        if member.leader_id is not None:
            return ResponseCode.INCONSISTENT_LEADER
        # Only who was elected pushes: its heartbeat is on the way.
        member.become(Role.FOLLOWER, leader)
        return None

    def _failure(self, error: Exception) -> ResponseCode:
        """What to answer where the disk fails; Java leaders come back to a follower for INCONSISTENT_STATE only."""
        member = self._member
        is_full = isinstance(error, DiskFullError)
        if not is_full:
            self._blocked(f"entries of leader {member.leader_id} cannot be taken: {error}")
        if member.leader_id not in member.ours:
            return ResponseCode.INCONSISTENT_STATE
        return ResponseCode.DISK_FULL if is_full else ResponseCode.DISK_ERROR

    # Answers

    def _answer(self, request: PushRequest, code: ResponseCode) -> PushResponse:
        member, store = self._member, self._member.store
        is_commit = request.type is PushType.COMMIT
        return PushResponse(
            group=request.group,
            code=code,
            term=member.term,
            index=None if is_commit else request.first_index,
            count=0 if is_commit else request.count,
            begin_index=store.ledger_begin_index,
            end_index=store.ledger_end_index,
        )

    def _reply(self, needed: int, token: object, answer: PushResponse) -> None:
        """Answer once the log is durable up to the index that the answer speaks of, in order."""
        member = self._member
        if not member.is_sync or (not self._waiting and needed <= member.durable_index):
            member.reply(token, answer)
        else:
            self._waiting.append(_Waiting(needed, token, answer))

    def persisted(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        durable = self._member.durable_index
        while waiting and waiting[0].index <= durable:
            done = waiting.popleft()
            self._member.reply(done.token, done.answer)

    def _commit(self, index: int) -> None:
        self._member.commit(min(index, self._matched, self._member.store.ledger_end_index))

    def _commit_only(self, request: PushRequest) -> int:
        """COMMIT: the index that has to be durable for it, none. Refused where the leader should compare first."""
        if request.commit_index > self._matched:
            self._commit(request.commit_index)
            raise _Refused
        return -1

    # COMPARE

    def _compare(self, request: PushRequest) -> int:
        """Whether an entry is here too. Returns the index that has to be durable; raises _Refused if it is not."""
        entry = only_entry(request.data)
        if not self._has(entry, request.data):
            self._check_unmatched(entry.index)
            raise _Refused
        self._matched = max(self._matched, entry.index)
        return entry.index

    def _has(self, entry: PushedEntry, data: Buffer) -> bool:
        store = self._member.store
        if not 0 <= store.ledger_begin_index <= entry.index <= store.ledger_end_index:
            return False
        return same(memoryview(data)[entry.start : entry.stop], store.read(entry.index, 1).data)

    def _check_unmatched(self, index: int) -> None:
        """Raises _Refused, and says so loudly, for a leader that contradicts what it pushed, or what is committed."""
        member, store = self._member, self._member.store
        sure = max(self._matched, store.committed_index)
        if store.ledger_begin_index <= index <= min(sure, store.ledger_end_index):
            member.problem(
                f"expected entry {index} of leader {member.leader_id} in term {member.term} as it is here, where the "
                f"log is committed up to {store.committed_index}, found another: nothing was cut, compare both stores "
                "with 'dledger diff'"
            )
            raise _Refused

    # TRUNCATE

    def _truncate(self, request: PushRequest) -> int:
        """Cut what stands behind a common entry, or make that entry the log's last."""
        entry = only_entry(request.data)
        member, store = self._member, self._member.store
        if self._has(entry, request.data):
            keep = max(entry.index, self._matched, store.committed_index)
            if keep < store.ledger_end_index:
                member.cut(keep + 1)
        else:
            self._check_unmatched(entry.index)
            if entry.index <= max(self._matched, store.committed_index):
                raise _Refused
            self._put(entry, request)
        self._matched = max(self._matched, entry.index)
        return entry.index

    def _put(self, entry: PushedEntry, request: PushRequest) -> None:
        """Append an entry in place of what stands there, or as the first of a new log where nothing before is sure."""
        member, store = self._member, self._member.store
        if self._is_next(entry):
            if entry.index <= store.ledger_end_index:
                member.cut(entry.index)
        else:
            text = self._reset_text(entry.index)
            member.reset(entry.index, entry.pos)
            self._matched = -1
            if text:
                member.problem(text)
        store.append_as_follower(request.data, request.term)

    def _reset_text(self, index: int) -> str:
        """Which entries this member never gets where the log begins anew at that index; "" where there are none."""
        _, end = self._member.log_end
        if index <= end + 1:
            return ""
        return (
            f"entries {end + 1} to {index - 1} are gone at the leader (expired), this log begins anew at {index}: "
            f"the leader is {self._member.leader_id}"
        )

    def _is_next(self, entry: PushedEntry) -> bool:
        """Whether all that stands here before the entry is the leader's too."""
        store = self._member.store
        begin, before = store.ledger_begin_index, entry.index - 1
        if begin < 0 or not begin <= before <= store.ledger_end_index:
            return False
        # Entries of one term were written by one leader in one order.
        return before <= max(self._matched, store.committed_index) or store.term_at(before) == entry.term

    # APPEND

    def _append(self, request: PushRequest) -> int:
        store = self._member.store
        first = request.first_index
        if first > self._matched + 1:
            raise _Refused
        if first == store.ledger_end_index + 1:
            last = self._write(request.data, request.term)
        else:
            last = self._overlap(request)
        self._matched = max(self._matched, last)
        if last != request.last_index:
            raise _Refused(ResponseCode.UNEXPECTED_ARGUMENT)
        return last

    def _write(self, data: Buffer, term: int) -> int:
        """Append entries; those that a Java leader pushes together may stand in more than one file."""
        store = self._member.store
        try:
            return store.append_as_follower(data, term)
        except InconsistentError:
            starts = _files(split(data))
            if len(starts) == 1:
                raise
        view = memoryview(data)
        for start, stop in zip(starts, (*starts[1:], len(view)), strict=True):
            self._matched = store.append_as_follower(view[start:stop], term)
        return self._matched

    def _overlap(self, request: PushRequest) -> int:
        """Append what is not here yet, and replace what differs. Returns the last index."""
        store = self._member.store
        pieces = split(request.data)
        begin, end = store.ledger_begin_index, store.ledger_end_index
        if pieces[0].index != request.first_index or begin < 0 or begin > self._matched + 1:
            raise _Refused
        view = memoryview(request.data)
        common = self._common(pieces, view)
        if common < len(pieces):
            piece = pieces[common]
            self._check_unmatched(piece.index)
            if piece.index <= end:
                self._member.cut(piece.index)
            self._write(view[piece.start :], request.term)
        return pieces[-1].index

    def _common(self, pieces: list[PushedEntry], view: memoryview) -> int:
        """How many entries from the first on are here already; those before this log's begin count."""
        store = self._member.store
        at = max(store.ledger_begin_index - pieces[0].index, 0)
        while at < len(pieces) and pieces[at].index <= store.ledger_end_index:
            start = pieces[at].start
            held = store.read(pieces[at].index, len(view) - start)
            count = min(held.last_index - held.first_index + 1, len(pieces) - at)
            # Most often all are: one comparison instead of one for each.
            if bytes(held.data) != bytes(view[start : pieces[at + count - 1].stop]):
                for piece in pieces[at : at + count]:
                    if not self._has(piece, view):
                        return piece.index - pieces[0].index
            at += count
        return min(at, len(pieces))


def _files(pieces: list[PushedEntry]) -> list[int]:
    """Where in the data each file's entries begin: where an entry does not stand right behind the one before."""
    starts = [0]
    for before, piece in pairwise(pieces):
        if piece.pos != before.pos + before.stop - before.start:
            starts.append(piece.start)
    return starts
