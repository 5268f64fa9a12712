"""Appends on one connection: sent up to the first failure, then drained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.client.member_connection import MemberConnection
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.outcomes import (
    JAVA_LEADER,
    LEADER_MOVED,
    AnyResponse,
    Outcome,
    code_name,
    leader_named,
    no_messages_error,
    outcome_of,
    unknown_error,
)
from pyspark_dledger.raft.client.request_units import RequestUnit
from pyspark_dledger.raft.messages import AppendResponse, PutResponse
from pyspark_dledger.raft.wire import EncodeError

# The limits of outstanding bytes, and of outstanding requests to a binary leader and to a Java leader. The latter gets
# one body per request.
MAX_WINDOW = 8 * 1024 * 1024
_MIN_WINDOW = 64 * 1024
_BINARY_REQUESTS, _JAVA_REQUESTS = 32, 512
# A timeout consists of this many ticks.
_TICKS = 5


class AppendPipeline:
    """Sends units until one is not acknowledged, then waits for all responses; ``done`` is set then."""

    def __init__(
        self,
        members: Members,
        connection: MemberConnection,
        next_unit: Callable[[bool], RequestUnit | None],
        window: int,
    ) -> None:
        self._members = members
        self._connection = connection
        self._next_unit = next_unit
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, RequestUnit] = {}
        self._sent_bytes = 0
        self._number = 0
        self._rejected: dict[int, tuple[RequestUnit, AnyResponse | None]] = {}
        self._is_draining = False
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lost_reason = "the connection was lost before the response"
        self.is_binary = connection.is_binary
        self._max_requests = _BINARY_REQUESTS if self.is_binary else _JAVA_REQUESTS
        self.window = window
        self.has_progress = False
        self.has_lost_leader = False
        self.done: asyncio.Future[None] = self._loop.create_future()
        connection.on_writable = self.pump
        connection.on_lost = self._lost
        if connection.is_lost:
            self._lost()
        self.pump()

    @property
    def member_id(self) -> str:
        return self._connection.member_id

    @property
    def is_busy(self) -> bool:
        """Whether it has units without a response, or rejected ones that were not taken."""
        return bool(self._sent or self._rejected)

    def take_rejected(self) -> list[tuple[RequestUnit, AnyResponse | None]]:
        """The units that may be sent again, in their order, with their responses."""
        rejected = [self._rejected[number] for number in sorted(self._rejected)]
        self._rejected.clear()
        return rejected

    def pump(self) -> None:
        """Send units, up to the limits."""
        while (
            not self._is_draining
            and not self._connection.is_full
            and len(self._sent) < self._max_requests
            and (self._sent_bytes < self.window or not self._sent)
            and (unit := self._next_unit(not self.is_binary)) is not None
        ):
            self._send(unit)

    def _send(self, unit: RequestUnit) -> None:
        number, group = self._number, self._members.group
        if unit.are_messages and not self.is_binary:
            unit.failed(no_messages_error(group, self.member_id, JAVA_LEADER))
            return
        try:
            request = unit.request(group, self.member_id, is_restart=number == 0)
            self._connection.send(request, partial(self._on_response, number))
        except EncodeError as error:
            unit.failed(GroupError(f"group {group}: {error}", ResponseCode.UNEXPECTED_ARGUMENT))
            return
        self._number += 1
        if not self._sent:
            self._ticks = 0
        self._sent[number] = unit
        self._sent_bytes += unit.size
        if self._timer is None:
            self._timer = self._loop.call_later(self._members.timeout / _TICKS, self._tick)

    def _on_response(self, number: int, response: AnyResponse | None) -> None:
        if number not in self._sent:
            return  # given up
        if next(iter(self._sent)) == number:
            self._ticks = 0
        unit = self._sent.pop(number)
        self._sent_bytes -= unit.size
        outcome = outcome_of(response)
        if outcome is Outcome.ACKNOWLEDGED and unit.matches(response):
            self.has_progress = True
            self.window = min(self.window + unit.size // 8, MAX_WINDOW)
            assert isinstance(response, (AppendResponse, PutResponse))
            unit.owner.acknowledged(unit, response)
        elif outcome in (Outcome.TEMPORARY, Outcome.PERMANENT) and response is not None:
            self._reject(number, unit, response)
        else:
            self._is_draining = True
            self._unknown(number, unit, response)
        if not self._is_draining:
            self.pump()
        elif not self._sent:
            self._end()

    def _reject(self, number: int, unit: RequestUnit, response: AnyResponse) -> None:
        if response.code in LEADER_MOVED:
            self.has_lost_leader = True
        elif response.code == ResponseCode.LEADER_PENDING_FULL and not self._is_draining:
            self.window = max(self.window // 2, _MIN_WINDOW)
        self._is_draining = True
        self._rejected[number] = (unit, response)

    def _unknown(self, number: int, unit: RequestUnit, response: AnyResponse | None) -> None:
        """The outcome is unknown. The unit fails unless a leader can detect duplicates."""
        unit.unknown_outcome = self._unknown_error(unit, response)
        if unit.is_idempotent:
            self._rejected[number] = (unit, response)
        else:
            unit.failed(unit.unknown_outcome)

    def _unknown_error(self, unit: RequestUnit, response: AnyResponse | None) -> UnknownOutcomeError:
        make = partial(unknown_error, self._members.group, self.member_id, are_messages=unit.are_messages)
        if response is None:
            return make(self._lost_reason, ResponseCode.NETWORK_ERROR)
        reason = code_name(response)
        if outcome_of(response) is Outcome.ACKNOWLEDGED:
            reason = "a response without an index, or for another number of entries"
        elif response.code == ResponseCode.TERM_CHANGED:
            self.has_lost_leader = True
        return make(reason, int(response.code), leader_named(response))

    def _tick(self) -> None:
        """Abort the connection if the oldest request has timed out.

        Ticks are counted instead of time. The loop reads responses between two ticks, so responses that arrived while
        this process was stopped are seen before the timeout.
        """
        self._timer = None
        if not self._sent:
            return
        self._ticks += 1
        if self._ticks <= _TICKS:
            self._timer = self._loop.call_later(self._members.timeout / _TICKS, self._tick)
            return
        self._lost_reason = f"no response in {self._members.timeout * 1000:.0f} ms"
        self._connection.abort()

    def _lost(self) -> None:
        self.has_lost_leader = True
        self._is_draining = True
        if not self._sent:
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.on_writable = self._connection.on_lost = None
        if not self.done.done():
            self.done.set_result(None)

    def give_up(self, reason: str) -> list[RequestUnit]:
        """End at once: units without a response fail as unknown. Returns the rejected units that were not taken."""
        self._is_draining = True
        self._lost_reason = reason
        sent, self._sent = self._sent, {}
        for unit in sent.values():
            unit.failed(self._unknown_error(unit, None))
        self._end()
        return [unit for unit, _ in self.take_rejected()]
