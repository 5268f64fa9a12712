"""Entries that a leader was asked to append: written at once, acknowledged when committed."""

from __future__ import annotations

from bisect import insort_right
from collections import deque
from operator import attrgetter

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.core.application import Admitted, Refused
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.core.serving import Serving
from pyspark_dledger.raft.messages import AppendRequest, AppendResponse, PutRequest, PutResponse
from pyspark_dledger.store.dledger_store import AppendedEntries


class _Pending:
    """An append that is not committed yet. It counts until it is, even after its sender was told to wait no longer.

    ``answer`` is what it gets when everything up to ``until`` is committed. ``is_appended``: it has entries of its own.
    """

    __slots__ = ("answer", "begun", "is_answered", "is_appended", "size", "token", "until")

    def __init__(
        self,
        token: object,
        answer: AppendResponse | PutResponse,
        until: int,
        size: int,
        begun: int,
        is_appended: bool = True,
    ) -> None:
        self.token = token
        self.answer = answer
        self.until = until
        self.size = size
        self.begun = begun
        self.is_appended = is_appended
        self.is_answered = False


_UNTIL = attrgetter("until")


class Appends:
    """What a leader has appended and not yet committed, in the order of the log."""

    def __init__(self, member: Member, serving: Serving) -> None:
        self._member = member
        self._serving = serving
        self._pending: deque[_Pending] = deque()
        self._waiting: deque[_Pending] = deque()
        self._bytes = 0
        # Half of the time that a put has is left for entries of former terms to be committed without help, as they are
        # where all members live.
        self._patience = member.config.max_wait_ack_time_ms // 2
        self._filled_at = member.now - self._patience
        member.role_listeners.append(self._role_changed)

    @property
    def count(self) -> int:
        """How many appends are not committed."""
        return len(self._pending)

    def handle(self, request: AppendRequest, token: object) -> bool:
        """Append, or refuse; whether it was taken."""
        code = self._refusal(request)
        if code is None:
            if isinstance(request, PutRequest):
                return self._put(request, token)
            code = self._append(request, token)
        if code is not None:
            answer = PutResponse() if isinstance(request, PutRequest) else AppendResponse()
            self._member.refuse(token, request, answer, code)
        return code is None

    def _refusal(self, request: AppendRequest) -> ResponseCode | None:
        member, config = self._member, self._member.config
        if not member.is_leader:
            return ResponseCode.NOT_LEADER
        if member.transferee is not None:
            return ResponseCode.LEADER_TRANSFERRING
        if len(self._pending) >= config.max_pending_requests_num or self._bytes > config.max_pending_bytes:
            return ResponseCode.LEADER_PENDING_FULL
        if not request.bodies.count:
            return ResponseCode.REQUEST_WITH_EMPTY_BODYS
        return None

    def _append(self, request: AppendRequest, token: object) -> ResponseCode | None:
        appended = self._store(request.bodies)
        if not isinstance(appended, AppendedEntries):
            return appended
        answer = AppendResponse(
            term=appended.term,
            index=appended.first_index,
            pos=appended.pos,
            count=appended.last_index - appended.first_index + 1,
            runs=appended.runs,
        )
        size = len(request.bodies.block)
        self._wait(_Pending(token, answer, appended.last_index, size, self._member.now))
        return None

    def _store(self, bodies: Bodies) -> AppendedEntries | ResponseCode:
        """Append bodies in this leader's term, or the code that says why not."""
        member = self._member
        try:
            return member.store.append_as_leader(bodies, member.term)
        except DiskFullError:
            return ResponseCode.DISK_FULL
        except DISK_FAILURES as error:
            member.problem(f"entries cannot be appended: {error}")
            return ResponseCode.DISK_ERROR
        except ValueError:
            return ResponseCode.UNEXPECTED_ARGUMENT

    # Puts

    def _put(self, request: PutRequest, token: object) -> bool:
        """Append what of a put is not there yet; it is acknowledged when all of it is committed."""
        member, serving = self._member, self._serving
        admitted = serving.admit(request)
        if isinstance(admitted, Refused):
            serving.refuse(request, token, PutResponse(), admitted)
            return False
        appended = None if admitted.bodies is None else self._store(admitted.bodies)
        if isinstance(appended, ResponseCode):
            member.refuse(token, request, PutResponse(), appended)
            return False
        pending = self._pending_put(token, request.bodies.count, admitted, appended)
        if pending.until <= member.store.committed_index:
            self._answer(pending, ResponseCode.SUCCESS)
        else:
            self._wait(pending)
        return True

    def _pending_put(self, token: object, count: int, admitted: Admitted, appended: AppendedEntries | None) -> _Pending:
        """A put of so many messages that is done as far as this member goes."""
        member = self._member
        places = self._serving.appended(admitted, appended, count)
        answer = PutResponse(term=member.term, count=count, places=places)
        if appended is None or admitted.bodies is None:
            return _Pending(token, answer, admitted.least_commit, len(places), member.now, is_appended=False)
        answer.index, answer.pos = appended.first_index, appended.pos
        until = max(admitted.least_commit, appended.last_index)
        return _Pending(token, answer, until, len(admitted.bodies.block), member.now)

    def _fill(self) -> None:
        """See that puts that have appended nothing do not wait for ever for entries of former terms.

        Those are committed by an entry of this term, or by every member: where one is down, and nobody appends, never.
        """
        member = self._member
        if member.store.ledger_end_term == member.term or member.transferee is not None:
            return
        late = member.now - self._patience
        if self._filled_at <= late and any(
            not pending.is_appended and pending.begun <= late for pending in self._pending
        ):
            self._filled_at = member.now
            filled = self._store(self._serving.filler())
            if isinstance(filled, ResponseCode):
                member.problem(f"entries of former terms are not committed: a filler was refused ({filled.name})")

    # Waiting

    def _wait(self, pending: _Pending) -> None:
        if self._pending and pending.until < self._pending[-1].until:
            insort_right(self._pending, pending, key=_UNTIL)
        else:
            self._pending.append(pending)
        self._waiting.append(pending)
        self._bytes += pending.size

    def committed(self, index: int) -> None:
        """Acknowledge what that index covers."""
        pending = self._pending
        while pending and pending[0].until <= index:
            done = pending.popleft()
            self._bytes -= done.size
            if not done.is_answered:
                self._answer(done, ResponseCode.SUCCESS)

    def tick(self) -> None:
        """Tell whose time is over that their outcome is unknown."""
        waiting, late = self._waiting, self._member.now - self._member.config.max_wait_ack_time_ms
        while waiting and (waiting[0].is_answered or waiting[0].begun <= late):
            pending = waiting.popleft()
            if not pending.is_answered:
                self._answer(pending, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        if self._pending:
            self._fill()

    def _answer(self, pending: _Pending, code: ResponseCode) -> None:
        """Acknowledge an append, or tell that nobody knows what comes of it."""
        member, answer = self._member, pending.answer
        pending.is_answered = True
        answer.group, answer.code, answer.leader_id = member.group, code, member.leader_id
        if code is not ResponseCode.SUCCESS:
            if isinstance(answer, PutResponse):
                answer.places = b""
            else:
                answer.runs = ()
        member.reply(pending.token, answer)

    def _role_changed(self) -> None:
        """A leadership has ended or begun: what was not committed in the last one may be committed or lost."""
        for pending in self._pending:
            if not pending.is_answered:
                self._answer(pending, ResponseCode.TERM_CHANGED)
        self._pending.clear()
        self._waiting.clear()
        self._bytes = 0
        self._filled_at = self._member.now - self._patience
