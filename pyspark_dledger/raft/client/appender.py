"""The appends of one client, in order, on their way to whoever leads; several requests are under way at a time.

What holds. Requests go out in the order of the calls, and a leader of ours appends them in that order: once it has
refused one it refuses all that follow on the connection, until this side has heard of all of them and begins anew with
the first that was refused (``is_restart``). Java's leader knows no such rule and handles requests side by side.

Only what is certainly not appended is sent again: what a leader refused, and what was never handed to a connection.
All else, an append without an answer above all, ends with UnknownOutcomeError. It can still come into the log behind
an append that was made after it. Messages that carry identities are sent again whatever became of them: a leader that
serves messages appends none twice. Other leaders get no messages.

What bounds it. A request waits ``timeout`` for its answer from when all before it have theirs, then the connection is
given up. Looking for a leader takes as long at most. Both count as an attempt, of which a request has
``1 + max_retries``; a refusal counts only if nothing was acknowledged since the last one, and waits longer each time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import cast

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.client.member_connection import MemberConnection
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.outcomes import (
    LEADER_MOVED,
    STRANGERS,
    AnyResponse,
    Outcome,
    code_name,
    leader_named,
    no_messages,
    outcome_of,
    refused,
    serves_no_messages,
    unknown,
)
from pyspark_dledger.raft.client.request_units import UNIT_BYTES, RequestUnit, SingleAppends
from pyspark_dledger.raft.client.results import Appended
from pyspark_dledger.raft.loops import backoff, cancel
from pyspark_dledger.raft.messages import AppendResponse, PutResponse
from pyspark_dledger.raft.wire import EncodeError

log = logging.getLogger(__name__)

Single = tuple[bytes, "Future[Appended]"]

# Under way at a time, to a leader of ours and to one of Java, which gets one body in each request.
_WINDOW_BYTES = 8 * 1024 * 1024
_MIN_WINDOW = 64 * 1024
_OUR_REQUESTS, _JAVA_REQUESTS = 32, 512
# Single appends that travel together.
_MAX_TOGETHER = 4096
# Single appends that wait, from which on ``submit`` waits too. Each takes about so much beside its body.
_MAX_WAITING = 64 * 1024 * 1024
_SINGLE_COST = 512
# Into so many parts the time is divided that a request waits for its answer.
_TICKS = 5
# Seconds. The first is doubled each time.
_FIRST_PAUSE, _MAX_PAUSE = 0.01, 1.0
_CLOSING_PAUSE = 0.005


class Appender:
    """What many threads append, one request behind the other. Made in the thread of the event loop."""

    def __init__(self, members: Members, max_retries: int) -> None:
        self._members = members
        self._max_attempts = 1 + max_retries
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # What came and is not yet taken, by any thread.
        self._added: deque[Single | RequestUnit] = deque()
        self._room = threading.Condition()
        self._waiting_bytes = 0
        self._is_woken = False
        self._closed: str | None = None
        # What follows belongs to the loop's thread.
        self._work = asyncio.Event()
        self._refused: deque[RequestUnit] = deque()
        self._round: _Round | None = None
        self._window = _WINDOW_BYTES
        self._failures = 0
        self._running = asyncio.ensure_future(self._run())
        self._running.add_done_callback(self._ended)

    # Called by any thread.

    def submit(self, body: bytes, future: Future[Appended]) -> None:
        """A single append. Waits while too many wait already, except in the loop's own thread (in a callback)."""
        with self._room:
            if self._waiting_bytes > _MAX_WAITING and threading.get_ident() != self._thread:
                self._room.wait_for(lambda: self._waiting_bytes <= _MAX_WAITING or self._closed is not None)
            self._check_open()
            self._waiting_bytes += len(body) + _SINGLE_COST
            self._added.append((body, future))
        self._wake()

    def add(self, unit: RequestUnit) -> None:
        """Bodies that travel together. Who adds many waits for results between them."""
        with self._room:
            self._check_open()
            self._added.append(unit)
        self._wake()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._not_sent(self._closed)

    def _wake(self) -> None:
        # The loop clears the flag before it looks for what was added, so nothing is left lying.
        if not self._is_woken:
            self._is_woken = True
            # A loop that has ended meanwhile has failed what was added.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken)

    # Called by the loop's thread.

    async def close(self, timeout: float) -> None:
        """Takes no more, and gives what it has so many seconds; what is left then fails."""
        with self._room:
            self._closed = "the client was closed"
            self._room.notify_all()
        ends = self._loop.time() + timeout
        while not self._is_idle and self._loop.time() < ends and not self._running.done():
            await asyncio.sleep(_CLOSING_PAUSE)
        await cancel([self._running])

    @property
    def _is_idle(self) -> bool:
        return not (self._added or self._refused or (self._round is not None and self._round.is_busy))

    def _woken(self) -> None:
        self._is_woken = False
        self._work.set()
        if self._round is not None:
            self._round.pump()

    async def _run(self) -> None:
        while True:
            if not (self._added or self._refused):
                self._work.clear()
                await self._work.wait()
                continue
            begun = self._loop.time()
            try:
                connection = await self._members.leader()
            except GroupError as error:
                self._without_leader(error, begun)
                await self._pause(has_progress=False)
                continue
            self._round = _Round(self._members, connection, self._take, self._window)
            try:
                await self._round.over
                self._judge(self._round)
                has_progress = self._round.has_progress
            finally:
                # Nothing is left in a round that was judged.
                self._refused.extendleft(reversed(self._round.give_up(self._closed or "the client failed")))
                self._round = None
            await self._pause(has_progress)

    async def _pause(self, has_progress: bool) -> None:
        """Longer each time that nothing goes on."""
        self._failures = 0 if has_progress else self._failures + 1
        await asyncio.sleep(backoff(self._failures, _FIRST_PAUSE, _MAX_PAUSE))

    def _take(self, is_alone: bool = False) -> RequestUnit | None:
        """What goes next; each body for itself if it is to be alone."""
        while (unit := self._refused.popleft() if self._refused else self._take_added(is_alone)) is not None:
            if unit.owner.is_over:
                unit.failed(self._not_sent("an append before it failed"))
            elif is_alone and unit.count > 1 and not unit.are_messages:
                self._refused.extendleft(reversed(unit.split()))
            else:
                return unit
        return None

    def _take_added(self, is_alone: bool = False) -> RequestUnit | None:
        """What was added first; single appends that stand one behind the other go together."""
        bodies: list[bytes] = []
        futures: list[Future[Appended]] = []
        size = taken = 0
        most = 1 if is_alone else _MAX_TOGETHER
        while self._added and len(bodies) < most:
            first = self._added[0]
            if isinstance(first, RequestUnit):
                if not taken:
                    return cast(RequestUnit, self._added.popleft())
                break
            body, future = first
            if bodies and size + len(body) > UNIT_BYTES:
                break
            self._added.popleft()
            taken += len(body) + _SINGLE_COST
            if future.set_running_or_notify_cancel():
                size += len(body) + ENTRY_HEADER_SIZE
                bodies.append(body)
                futures.append(future)
        if taken:
            with self._room:
                self._waiting_bytes -= taken
                self._room.notify_all()
        if not bodies:
            # All of them were cancelled, or there is nothing.
            return self._take_added(is_alone) if taken else None
        return RequestUnit(SingleAppends(bodies, futures), 0, get_engine().pack_bodies(bodies))

    def _judge(self, ended: _Round) -> None:
        """What of a round is to be tried again, and what is not."""
        self._window = ended.window
        if ended.leader_is_lost:
            self._members.not_leader(ended.member_id)
        again: list[RequestUnit] = []
        for number, (unit, response) in enumerate(ended.take_refused()):
            is_lasting = outcome_of(response) is Outcome.LASTING
            # Behind an append that was refused all others are, whatever is right with them.
            if is_lasting and number and ended.is_ours:
                again.append(unit)
                continue
            unit.attempts += not ended.has_progress
            if is_lasting or unit.attempts >= self._max_attempts:
                unit.failed(self._final(unit, ended.member_id, response))
            else:
                again.append(unit)
        self._refused.extendleft(reversed(again))

    def _final(
        self, unit: RequestUnit, member_id: str, response: AnyResponse | None
    ) -> GroupError | UnknownOutcomeError:
        """The error for what is tried no more after that answer."""
        group = self._members.group
        if unit.doubt is not None and (response is None or outcome_of(response) is Outcome.UNKNOWN):
            return unit.doubt
        assert response is not None
        if unit.are_messages and serves_no_messages(response):
            return no_messages(group, member_id, f"to serve none ({code_name(response)})")
        what = "messages" if unit.are_messages else "an append"
        return refused(group, what, member_id, response, unit.attempts)

    def _without_leader(self, error: GroupError, begun: float) -> None:
        """An attempt of everything that waits has failed, which began then by the loop's clock."""
        waiting = list(self._refused)
        self._refused.clear()
        while (unit := self._take_added()) is not None:
            waiting.append(unit)
        for unit in waiting:
            unit.attempts += 1
            if unit.leaderless_since is None:
                unit.leaderless_since = begun
            if unit.attempts >= self._max_attempts or error.code in STRANGERS:
                unit.failed(self._members.in_all(error, self._loop.time() - unit.leaderless_since))
            else:
                self._refused.append(unit)

    def _not_sent(self, reason: str) -> GroupError:
        text = f"group {self._members.group}: an append was not sent, for {reason}: nothing was appended"
        return GroupError(text, ResponseCode.NETWORK_ERROR)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody is left waiting, whatever ended the work."""
        with self._room:
            self._closed = self._closed or "the client failed"
            self._room.notify_all()
        error = self._not_sent(self._closed)
        while (unit := self._take()) is not None:
            unit.failed(error)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("the client of group %s failed", self._members.group, exc_info=failure)


class _Round:
    """Appends on one connection up to the first that is not acknowledged, and until all that were sent are answered."""

    def __init__(
        self, members: Members, connection: MemberConnection, take: Callable[[bool], RequestUnit | None], window: int
    ) -> None:
        self._members = members
        self._connection = connection
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, RequestUnit] = {}
        self._sent_bytes = 0
        self._number = 0
        self._refused: dict[int, tuple[RequestUnit, AnyResponse | None]] = {}
        self._is_ending = False
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reason = "the connection was lost before the answer came"
        self.is_ours = connection.is_binary
        self._max_requests = _OUR_REQUESTS if self.is_ours else _JAVA_REQUESTS
        self.window = window
        self.has_progress = False
        self.leader_is_lost = False
        self.over: asyncio.Future[None] = self._loop.create_future()
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
        """Whether something was sent that has no answer, or was refused and not yet judged."""
        return bool(self._sent or self._refused)

    def take_refused(self) -> list[tuple[RequestUnit, AnyResponse | None]]:
        """The units that may be sent again, in the order in which they were sent, and what was answered."""
        refused = [self._refused[number] for number in sorted(self._refused)]
        self._refused.clear()
        return refused

    def pump(self) -> None:
        """Sends what there is, as far as there is room."""
        while (
            not self._is_ending
            and self._connection.can_write
            and len(self._sent) < self._max_requests
            and (self._sent_bytes < self.window or not self._sent)
            and (unit := self._take(not self.is_ours)) is not None
        ):
            self._send(unit)

    def _send(self, unit: RequestUnit) -> None:
        number, group = self._number, self._members.group
        if unit.are_messages and not self.is_ours:
            unit.failed(no_messages(group, self.member_id, "to be a node of Java, which takes raw entries only"))
            return
        try:
            request = unit.request(group, self.member_id, is_restart=number == 0)
            self._connection.send(request, partial(self._answered, number))
        except EncodeError as error:
            unit.failed(GroupError(f"group {group}: {error}", ResponseCode.UNEXPECTED_ARGUMENT))
            return
        self._number += 1
        if not self._sent:
            self._ticks = 0
        self._sent[number] = unit
        self._sent_bytes += unit.size
        if self._timer is None:
            self._timer = self._loop.call_later(self._members.timeout / _TICKS, self._check_time)

    def _answered(self, number: int, response: AnyResponse | None) -> None:
        if number not in self._sent:
            return  # given up
        if next(iter(self._sent)) == number:
            self._ticks = 0
        unit = self._sent.pop(number)
        self._sent_bytes -= unit.size
        outcome = outcome_of(response)
        if outcome is Outcome.ACKNOWLEDGED and unit.matches(response):
            self.has_progress = True
            self.window = min(self.window + unit.size // 8, _WINDOW_BYTES)
            assert isinstance(response, (AppendResponse, PutResponse))
            unit.owner.acknowledged(unit, response)
        elif outcome in (Outcome.PASSING, Outcome.LASTING) and response is not None:
            self._refuse(number, unit, response)
        else:
            self._is_ending = True
            self._doubt(number, unit, response)
        if not self._is_ending:
            self.pump()
        elif not self._sent:
            self._end()

    def _refuse(self, number: int, unit: RequestUnit, response: AnyResponse) -> None:
        if response.code in LEADER_MOVED:
            self.leader_is_lost = True
        elif response.code == ResponseCode.LEADER_PENDING_FULL and not self._is_ending:
            self.window = max(self.window // 2, _MIN_WINDOW)
        self._is_ending = True
        self._refused[number] = (unit, response)

    def _doubt(self, number: int, unit: RequestUnit, response: AnyResponse | None) -> None:
        """The outcome is unknown: the end of it, unless a leader can tell that it was done already."""
        unit.doubt = self._unknown(unit, response)
        if unit.repeats:
            self._refused[number] = (unit, response)
        else:
            unit.failed(unit.doubt)

    def _unknown(self, unit: RequestUnit, response: AnyResponse | None) -> UnknownOutcomeError:
        make = partial(unknown, self._members.group, self.member_id, are_messages=unit.are_messages)
        if response is None:
            return make(self._reason, ResponseCode.NETWORK_ERROR)
        reason = code_name(response)
        if outcome_of(response) is Outcome.ACKNOWLEDGED:
            reason = "an answer for another number of entries"
        elif response.code == ResponseCode.TERM_CHANGED:
            self.leader_is_lost = True
        return make(reason, int(response.code), leader_named(response))

    def _check_time(self) -> None:
        """Gives the connection up when the oldest request has waited for too long.

        Ticks are counted, not the time: between two of them the loop has looked for answers, so those that came while
        this process stood still are seen before it is said that there are none.
        """
        self._timer = None
        if not self._sent:
            return
        self._ticks += 1
        if self._ticks <= _TICKS:
            self._timer = self._loop.call_later(self._members.timeout / _TICKS, self._check_time)
            return
        self._reason = f"no answer in {self._members.timeout * 1000:.0f} ms"
        self._connection.abort()

    def _lost(self) -> None:
        self.leader_is_lost = True
        self._is_ending = True
        if not self._sent:
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.on_writable = self._connection.on_lost = None
        if not self.over.done():
            self.over.set_result(None)

    def give_up(self, reason: str) -> list[RequestUnit]:
        """Ends it at once: of what has no answer, the outcome stays unknown. What was refused and not judged."""
        self._is_ending = True
        self._reason = reason
        sent, self._sent = self._sent, {}
        for unit in sent.values():
            unit.failed(self._unknown(unit, None))
        self._end()
        return [unit for unit, _ in self.take_refused()]
