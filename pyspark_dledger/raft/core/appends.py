"""Entries that a leader was asked to append: written at once, acknowledged when committed."""

from __future__ import annotations

from collections import deque

from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import AppendAnswer, AppendRequest, ResponseCode
from pyspark_dledger.store.base import Appended


class _Pending:
    """An append that is not committed yet. It counts until it is, even after its sender was told to wait no longer."""

    __slots__ = ("appended", "deadline", "is_answered", "size", "token")

    def __init__(self, token: object, appended: Appended, size: int, deadline: int) -> None:
        self.token = token
        self.appended = appended
        self.size = size
        self.deadline = deadline
        self.is_answered = False


class Appends:
    """What a leader has appended and not yet committed, in the order of the log."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._pending: deque[_Pending] = deque()
        self._waiting: deque[_Pending] = deque()
        self._bytes = 0
        member.role_listeners.append(self._role_changed)

    @property
    def count(self) -> int:
        """How many appends are not committed."""
        return len(self._pending)

    def handle(self, request: AppendRequest, token: object) -> bool:
        """Append, or refuse; whether entries were appended."""
        code = self._refusal(request)
        if code is None:
            code = self._append(request, token)
        if code is not None:
            self._member.refuse(token, request, AppendAnswer(), code)
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
        member = self._member
        try:
            appended = member.store.append_as_leader(request.bodies, member.term)
        except DiskFullError:
            return ResponseCode.DISK_FULL
        except DISK_FAILURES as error:
            member.problem(f"entries cannot be appended: {error}")
            return ResponseCode.DISK_ERROR
        except ValueError:
            return ResponseCode.UNEXPECTED_ARGUMENT
        size = len(request.bodies.block)
        pending = _Pending(token, appended, size, member.now + member.config.max_wait_ack_time_ms)
        self._pending.append(pending)
        self._waiting.append(pending)
        self._bytes += size
        return None

    def committed(self, index: int) -> None:
        """Acknowledge what that index covers."""
        pending = self._pending
        while pending and pending[0].appended.last_index <= index:
            done = pending.popleft()
            self._bytes -= done.size
            if not done.is_answered:
                self._answer(done, ResponseCode.SUCCESS)

    def tick(self) -> None:
        """Tell whose time is over that their outcome is unknown."""
        waiting, now = self._waiting, self._member.now
        while waiting and (waiting[0].is_answered or waiting[0].deadline <= now):
            pending = waiting.popleft()
            if not pending.is_answered:
                self._answer(pending, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

    def _answer(self, pending: _Pending, code: ResponseCode) -> None:
        """Acknowledge an append, or tell that nobody knows what comes of it."""
        member, appended = self._member, pending.appended
        pending.is_answered = True
        answer = AppendAnswer(
            group=member.group,
            code=code,
            leader_id=member.leader_id,
            term=appended.term,
            index=appended.first_index,
            pos=appended.pos,
            count=appended.last_index - appended.first_index + 1,
            runs=appended.runs if code is ResponseCode.SUCCESS else (),
        )
        member.reply(pending.token, answer)

    def _role_changed(self) -> None:
        """A leadership has ended or begun: what was not committed in the last one may be committed or lost."""
        for pending in self._pending:
            if not pending.is_answered:
                self._answer(pending, ResponseCode.TERM_CHANGED)
        self._pending.clear()
        self._waiting.clear()
        self._bytes = 0
