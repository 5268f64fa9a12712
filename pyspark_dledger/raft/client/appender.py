"""The appends of one client, in order, sent to the leader in a pipeline.

Guarantees: requests are sent in the order of the calls. A leader of this package appends them in that order. After it
rejected one, it rejects all later ones on the connection until the client restarts the pipeline (``is_restart``). The
client restarts it with the first rejected request after it has all responses. Java's leader has no such rule and
handles requests concurrently.

Only requests that are certainly not appended are sent again: rejected ones, and those never written to a connection.
All others, such as appends without a response, end with UnknownOutcomeError: they may still be appended, even after
later appends. Messages with identities are always sent again, because a leader that serves messages detects duplicates.
Other leaders get no messages.

Limits: a request waits ``timeout`` for its response after all earlier ones have theirs; then the connection is aborted.
Finding a leader takes the same time at most. Each counts as an attempt; a request has ``1 + max_retries`` attempts. A
rejection counts only if nothing was acknowledged since the last one. Pauses between rejections grow.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress
from typing import cast

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.client.append_future import AppendFuture
from pyspark_dledger.raft.client.append_pipeline import MAX_WINDOW, AppendPipeline
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.outcomes import (
    WRONG_MEMBER,
    AnyResponse,
    Outcome,
    code_name,
    no_messages_error,
    outcome_of,
    rejected_error,
    serves_no_messages,
)
from pyspark_dledger.raft.client.request_units import UNIT_BYTES, RequestUnit, SingleAppends
from pyspark_dledger.raft.loops import backoff, cancel

log = logging.getLogger(__name__)

Single = tuple[bytes, AppendFuture]

# The maximum of single appends in one request.
_MAX_TOGETHER = 4096
# ``submit`` blocks while more bytes of single appends are queued. Each append counts as its body and this overhead.
_MAX_QUEUED = 64 * 1024 * 1024
_SINGLE_OVERHEAD = 512
# Seconds; doubled each time.
_MIN_PAUSE, _MAX_PAUSE = 0.01, 1.0
_CLOSING_PAUSE = 0.005


class Appender:
    """Sends the appends of many threads, one request after another. Constructed in the thread of the event loop."""

    def __init__(self, members: Members, max_retries: int) -> None:
        self._members = members
        self._max_attempts = 1 + max_retries
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Filled by any thread.
        self._queue: deque[Single | RequestUnit] = deque()
        self._lock = threading.RLock()
        self._space = threading.Condition(self._lock)
        self._queued_bytes = 0
        self._is_woken = False
        self._closed: str | None = None
        # Used only by the loop's thread.
        self._work = asyncio.Event()
        self._rejected: deque[RequestUnit] = deque()
        self._pipeline: AppendPipeline | None = None
        self._window = MAX_WINDOW
        self._failures = 0
        self._running = asyncio.ensure_future(self._run())
        self._running.add_done_callback(self._run_ended)

    # Called by any thread

    def submit(self, body: bytes) -> AppendFuture:
        """Queue a single append. Blocks while the queue is full, except in the loop's own thread (in a callback)."""
        future = AppendFuture(self._lock)
        with self._lock:
            if self._queued_bytes > _MAX_QUEUED and threading.get_ident() != self._thread:
                self._space.wait_for(lambda: self._queued_bytes <= _MAX_QUEUED or self._closed is not None)
            if self._closed is not None:
                raise self._not_sent_error(self._closed)
            self._queued_bytes += len(body) + _SINGLE_OVERHEAD
            self._queue.append((body, future))
        if not self._is_woken:
            self._wake()
        return future

    def add(self, unit: RequestUnit) -> None:
        """Queue bodies of one request. The caller limits the number of outstanding units."""
        with self._lock:
            if self._closed is not None:
                raise self._not_sent_error(self._closed)
            self._queue.append(unit)
        if not self._is_woken:
            self._wake()

    def _wake(self) -> None:
        # The loop clears the flag before it looks into the queue, so no unit is missed.
        self._is_woken = True
        # A loop that has ended has failed all queued units.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken)

    # Called by the loop's thread

    async def close(self, timeout: float) -> None:
        """Accept no more appends, and finish the queued ones within `timeout` seconds; the others fail."""
        with self._space:
            self._closed = "the client was closed"
            self._space.notify_all()
        deadline = self._loop.time() + timeout
        while not self._is_idle and self._loop.time() < deadline and not self._running.done():
            await asyncio.sleep(_CLOSING_PAUSE)
        await cancel([self._running])

    @property
    def _is_idle(self) -> bool:
        return not (self._queue or self._rejected or (self._pipeline is not None and self._pipeline.is_busy))

    def _woken(self) -> None:
        self._is_woken = False
        self._work.set()
        if self._pipeline is not None:
            self._pipeline.pump()

    async def _run(self) -> None:
        while True:
            if not (self._queue or self._rejected):
                self._work.clear()
                await self._work.wait()
                continue
            begun = self._loop.time()
            try:
                connection = await self._members.leader()
            except GroupError as error:
                self._leader_not_found(error, begun)
                await self._pause(has_progress=False)
                continue
            self._pipeline = AppendPipeline(self._members, connection, self._next_unit, self._window)
            try:
                await self._pipeline.done
                self._handle_rejected(self._pipeline)
                has_progress = self._pipeline.has_progress
            finally:
                # After `_handle_rejected` the pipeline is empty.
                self._rejected.extendleft(reversed(self._pipeline.give_up(self._closed or "the client failed")))
                self._pipeline = None
            await self._pause(has_progress)

    async def _pause(self, has_progress: bool) -> None:
        self._failures = 0 if has_progress else self._failures + 1
        await asyncio.sleep(backoff(self._failures, _MIN_PAUSE, _MAX_PAUSE))

    def _next_unit(self, is_single: bool = False) -> RequestUnit | None:
        """The next unit to send; with `is_single` one body only."""
        while (unit := self._rejected.popleft() if self._rejected else self._next_queued(is_single)) is not None:
            if unit.owner.is_finished:
                unit.failed(self._not_sent_error("an earlier append failed"))
            elif is_single and unit.count > 1 and not unit.are_messages:
                self._rejected.extendleft(reversed(unit.split()))
            else:
                return unit
        return None

    def _next_queued(self, is_single: bool = False) -> RequestUnit | None:
        """The first queued unit; consecutive single appends are combined."""
        bodies: list[bytes] = []
        futures: list[AppendFuture] = []
        size = taken = 0
        maximum = 1 if is_single else _MAX_TOGETHER
        while self._queue and len(bodies) < maximum:
            first = self._queue[0]
            if isinstance(first, RequestUnit):
                if not taken:
                    return cast("RequestUnit", self._queue.popleft())
                break
            body, future = first
            if bodies and size + len(body) > UNIT_BYTES:
                break
            self._queue.popleft()
            taken += len(body) + _SINGLE_OVERHEAD
            if future.set_running_or_notify_cancel():
                size += len(body) + ENTRY_HEADER_SIZE
                bodies.append(body)
                futures.append(future)
        if taken:
            with self._space:
                self._queued_bytes -= taken
                self._space.notify_all()
        if not bodies:
            # The queue is empty, or all these appends were cancelled.
            return self._next_queued(is_single) if taken else None
        return RequestUnit(SingleAppends(bodies, futures), 0, get_engine().pack_bodies(bodies))

    def _handle_rejected(self, pipeline: AppendPipeline) -> None:
        """Decide which rejected units are sent again."""
        self._window = pipeline.window
        if pipeline.has_lost_leader:
            self._members.forget_leader(pipeline.member_id)
        retried: list[RequestUnit] = []
        for number, (unit, response) in enumerate(pipeline.take_rejected()):
            is_permanent = outcome_of(response) is Outcome.PERMANENT
            # After a rejected append all later ones are rejected with the same code.
            if is_permanent and number and pipeline.is_binary:
                retried.append(unit)
                continue
            unit.attempts += not pipeline.has_progress
            if is_permanent or unit.attempts >= self._max_attempts:
                unit.failed(self._final_error(unit, pipeline.member_id, response))
            else:
                retried.append(unit)
        self._rejected.extendleft(reversed(retried))

    def _final_error(
        self, unit: RequestUnit, member_id: str, response: AnyResponse | None
    ) -> GroupError | UnknownOutcomeError:
        """The error of a unit that is not sent again after this response."""
        group = self._members.group
        if unit.unknown_outcome is not None and (response is None or outcome_of(response) is Outcome.UNKNOWN):
            return unit.unknown_outcome
        assert response is not None
        if unit.are_messages and serves_no_messages(response):
            return no_messages_error(group, member_id, f"to serve none ({code_name(response)})")
        what = "messages" if unit.are_messages else "an append"
        return rejected_error(group, what, member_id, response, unit.attempts)

    def _leader_not_found(self, error: GroupError, begun: float) -> None:
        """Count a failed attempt of all units, which began at that time of the loop."""
        waiting = list(self._rejected)
        self._rejected.clear()
        while (unit := self._next_queued()) is not None:
            waiting.append(unit)
        for unit in waiting:
            unit.attempts += 1
            if unit.leaderless_since is None:
                unit.leaderless_since = begun
            is_last = unit.attempts >= self._max_attempts or self._members.is_unreachable(unit.attempts)
            if is_last or error.code in WRONG_MEMBER:
                unit.failed(self._members.with_total_time(error, self._loop.time() - unit.leaderless_since))
            else:
                self._rejected.append(unit)

    def _not_sent_error(self, reason: str) -> GroupError:
        text = f"group {self._members.group}: an append was not sent because {reason}: nothing was appended"
        return GroupError(text, ResponseCode.NETWORK_ERROR)

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        """Fail all queued units."""
        with self._space:
            self._closed = self._closed or "the client failed"
            self._space.notify_all()
        error = self._not_sent_error(self._closed)
        while (unit := self._next_unit()) is not None:
            unit.failed(error)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("the client of group %s failed", self._members.group, exc_info=failure)
