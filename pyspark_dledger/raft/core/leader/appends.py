"""A leader's appends and puts: written at once, acknowledged when committed."""

from __future__ import annotations

from bisect import insort_right
from collections import deque
from operator import attrgetter

from pyspark_dledger.common.histogram import Histogram
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.format.encode.encoded import Admitted, Bodies, RejectedError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import AppendRequest, AppendResponse, PutRequest, PutResponse
from pyspark_dledger.store.dledger_store import AppendedEntries


class _PendingAppend:
    """An append that is not committed. It is kept until then, even after it got a timeout as response.

    ``response`` is sent when ``until`` is committed. ``is_appended``: it has new entries.
    """

    __slots__ = ("begun", "has_response", "is_appended", "response", "size", "token", "until")

    def __init__(
        self,
        token: object,
        response: AppendResponse | PutResponse,
        until: int,
        size: int,
        begun: int,
        is_appended: bool = True,
    ) -> None:
        self.token = token
        self.response = response
        self.until = until
        self.size = size
        self.begun = begun
        self.is_appended = is_appended
        self.has_response = False


_UNTIL = attrgetter("until")

# Bytes that one request may make: small bodies take a multiple of their bytes.
_MAX_APPEND_BYTES = 64 * 1024 * 1024


class Appends:
    """Appends, and keeps uncommitted appends in the order of the log."""

    def __init__(self, member: Member, application: ApplicationCaller) -> None:
        self._member = member
        self._application = application
        self._pending: deque[_PendingAppend] = deque()
        self._waiting: deque[_PendingAppend] = deque()
        self._bytes = 0
        # From append to commit.
        self.latencies = Histogram()

    @property
    def count(self) -> int:
        """The number of uncommitted appends."""
        return len(self._pending)

    def handle(self, request: AppendRequest, token: object) -> None:
        """Append. Raises RejectedError."""
        if (code := self._error_code(request)) is not None:
            raise RejectedError(code)
        if isinstance(request, PutRequest):
            self._put(request, token)
        else:
            self._append(request, token)

    def _error_code(self, request: AppendRequest) -> ResponseCode | None:
        member, config = self._member, self._member.config
        if not member.is_leader:
            return ResponseCode.NOT_LEADER
        if member.transferee is not None:
            return ResponseCode.LEADER_TRANSFERRING
        if isinstance(request, PutRequest) and request.term not in (-1, member.term):
            return ResponseCode.EXPIRED_TERM
        if len(self._pending) >= config.max_pending_requests_num or self._bytes > config.max_pending_bytes:
            return ResponseCode.LEADER_PENDING_FULL
        if not request.bodies.count:
            return ResponseCode.REQUEST_WITH_EMPTY_BODYS
        return ResponseCode.UNEXPECTED_ARGUMENT if _size_of(request) > _MAX_APPEND_BYTES else None

    def _append(self, request: AppendRequest, token: object) -> None:
        checked = self._application.check_entries(request.bodies)
        appended = self._store(request.bodies)
        self._application.entries_appended(checked)
        response = AppendResponse(
            term=appended.term,
            index=appended.first_index,
            pos=appended.pos,
            count=appended.last_index - appended.first_index + 1,
            runs=appended.runs,
        )
        self._wait(_PendingAppend(token, response, appended.last_index, _size_of(request), self._member.now))

    def _store(self, bodies: Bodies) -> AppendedEntries:
        """Append bodies in this leader's term. Raises RejectedError if that fails."""
        member = self._member
        try:
            return member.store.append_as_leader(bodies, member.term)
        except DiskFullError:
            member.disk.had_no_room(member.now)
            raise RejectedError(ResponseCode.DISK_FULL) from None
        except DISK_FAILURES as error:
            member.report_problem(f"entries cannot be appended: {error}")
            raise RejectedError(ResponseCode.DISK_ERROR) from None
        except ValueError:
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT) from None

    # Puts

    def _put(self, request: PutRequest, token: object) -> None:
        """Append the new messages of a put. It is acknowledged when all its messages are committed."""
        admitted = self._application.admit(request)
        appended = None if admitted.bodies is None else self._store(admitted.bodies)
        pending = self._pending_put(token, request.bodies.count, admitted, appended)
        if pending.until <= self._member.store.committed_index:
            self._respond(pending, ResponseCode.SUCCESS)
        else:
            self._wait(pending)

    def _pending_put(
        self, token: object, count: int, admitted: Admitted, appended: AppendedEntries | None
    ) -> _PendingAppend:
        """A put of `count` messages that this member has appended."""
        member = self._member
        positions = self._application.appended(admitted, appended, count)
        response = PutResponse(term=member.term, count=count, positions=positions)
        if appended is None or admitted.bodies is None:
            return _PendingAppend(
                token, response, admitted.min_commit_index, len(positions), member.now, is_appended=False
            )
        response.index, response.pos = appended.first_index, appended.pos
        until = max(admitted.min_commit_index, appended.last_index)
        return _PendingAppend(token, response, until, len(admitted.bodies.block), member.now)

    def has_old_put(self, begun: int) -> bool:
        """Whether a put of that time or before, without new entries, waits for entries of earlier terms."""
        return any(not pending.is_appended and pending.begun <= begun for pending in self._pending)

    # Waiting

    def _wait(self, pending: _PendingAppend) -> None:
        if self._pending and pending.until < self._pending[-1].until:
            insort_right(self._pending, pending, key=_UNTIL)
        else:
            self._pending.append(pending)
        self._waiting.append(pending)
        self._bytes += pending.size

    def committed(self, index: int) -> None:
        """Acknowledge the appends up to that index."""
        pending, begun, count = self._pending, 0, 0
        while pending and pending[0].until <= index:
            done = pending.popleft()
            self._bytes -= done.size
            if done.begun != begun:
                self._observe(begun, count)
                begun, count = done.begun, 0
            count += 1
            if not done.has_response:
                self._respond(done, ResponseCode.SUCCESS)
        self._observe(begun, count)

    def _observe(self, begun: int, count: int) -> None:
        """Count committed appends that began at the same time: counting each would slow appends."""
        if count:
            self.latencies.observe((self._member.now - begun) / 1000, count)

    def tick(self) -> None:
        """Respond to expired appends that their outcome is unknown."""
        waiting, late = self._waiting, self._member.now - self._member.config.max_wait_ack_time_ms
        while waiting and (waiting[0].has_response or waiting[0].begun <= late):
            pending = waiting.popleft()
            if not pending.has_response:
                self._respond(pending, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

    def _respond(self, pending: _PendingAppend, code: ResponseCode) -> None:
        """Acknowledge an append, or respond that its outcome is unknown."""
        member, response = self._member, pending.response
        pending.has_response = True
        response.group, response.code, response.leader_id = member.group, code, member.leader_id
        if code is not ResponseCode.SUCCESS:
            if isinstance(response, PutResponse):
                response.positions = b""
            else:
                response.runs = ()
        member.reply(pending.token, response)

    def role_changed(self) -> None:
        """A leadership ended or began. Uncommitted appends of the last one may be committed or lost."""
        for pending in self._pending:
            if not pending.has_response:
                self._respond(pending, ResponseCode.TERM_CHANGED)
        self._pending.clear()
        self._waiting.clear()
        self._bytes = 0


def _size_of(request: AppendRequest) -> int:
    """The bytes of the entries and index units of a request, or more."""
    message = MIN_MESSAGE_SIZE if isinstance(request, PutRequest) else 0
    each = ENTRY_HEADER_SIZE + INDEX_UNIT_SIZE + message
    return len(request.bodies.block) + request.bodies.count * each
