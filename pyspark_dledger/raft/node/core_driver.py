"""Drives a core: passes requests, responses, time and flushes to it, and executes its effects."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from pyspark_dledger.common.histogram import Histogram
from pyspark_dledger.common.log_records import RateLimitedLog, record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import NOOP
from pyspark_dledger.format.encode.encoded import DiskNeededError
from pyspark_dledger.raft.channel import Channel
from pyspark_dledger.raft.core import Committed, Core, Effect, Load, MembersChanged, Reply, RoleChanged, Send
from pyspark_dledger.raft.hello import MemberHello
from pyspark_dledger.raft.messages import PushRequest, ReadRequest, Request, Response, Role
from pyspark_dledger.raft.node.callers import Caller, LocalCaller
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.raft.node.limits import Turns
from pyspark_dledger.raft.node.peer_link import PeerLink
from pyspark_dledger.store.dledger_store import EntryRange

_TICK_SECONDS = 0.01
# Timeouts, store failures and problems are checked every so many ticks.
_CHECK_TICKS = 10


class CoreDriver:
    """Runs in the thread of the event loop, except `flushed_in_thread`.

    Inputs that may wait for a disk are handled in another thread. Those that come in the meantime wait.
    If the core raises or the store fails, the driver stops for good and calls `on_failure` once: a member, or a leader,
    that can do nothing would harm the group.
    """

    def __init__(
        self,
        core: Core,
        reads: CommittedReads,
        threads: DiskThreads,
        store_failure: Callable[[], str | None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._core = core
        self._reads = reads
        self.threads = threads
        # What waits until another thread does not use the core any more.
        self._inputs: deque[Callable[[], object]] = deque()
        self._store_failure = store_failure
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._links: Mapping[str, PeerLink] = {}
        self._on_members: Callable[[], None] = lambda: None
        self._unflushed: set[Channel] = set()
        self._is_drain_due = False
        self._is_stopped = False
        self._has_led = False
        self._ticks = 0
        self._is_tick_waiting = False
        self.turns = Turns()
        # How late the event loop was.
        self.delays = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        self._persisted = -1
        self.leader_changes = 0
        self._latest_leadership: tuple[str, int] | None = None
        self._problem_log = RateLimitedLog()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def start(self, links: Mapping[str, PeerLink], on_members: Callable[[], None]) -> None:
        """``links`` may change in ``on_members``: there are other members, or they are known to be the present ones."""
        self._links, self._on_members = links, on_members
        self._tick()

    def stop(self) -> None:
        self._is_stopped = True
        self.turns.tick_due = math.inf
        if self._timer is not None:
            self._timer.cancel()

    # Inputs

    def handle(self, request: Request, caller: Caller | LocalCaller) -> bool:
        """Handle a request. Returns False for an append that was rejected."""
        if self._is_stopped:
            return True
        if self.threads.is_busy:
            self._inputs.append(lambda: self.handle(request, caller))
            return True
        if isinstance(request, ReadRequest):
            self._reads.read(request, caller)
            return True
        if self._has_led and isinstance(request, PushRequest):
            self._drop_views(request.term)
        if self._core.disk_waits.in_request(request):
            self._handle_aside(request, caller)
            return True
        self._drain_later()
        try:
            return self._core.handle(request, caller, self._now(), may_wait=False) is not False
        except DiskNeededError:
            self._handle_aside(request, caller)
            return True
        except Exception as error:  # noqa: BLE001  # after any exception the core's state is unknown
            self._fail(error)
            return True

    def _handle_aside(self, request: Request, caller: Caller | LocalCaller) -> None:
        accepted = True

        def work() -> None:
            nonlocal accepted
            accepted = self._core.handle(request, caller, self._now()) is not False

        def done(error: BaseException | None) -> None:
            if not accepted:
                caller.reject_next()
            self._changed(error)

        self.threads.change(work, done)

    def handle_response(self, token: int, response: Response | None) -> None:
        """The outcome of a request to a peer; None without a response."""
        self._run(
            lambda: self._core.handle_response(token, response, self._now()),
            lambda: self._core.disk_waits.in_response(response),
        )

    def peer_connected(self, peer_id: str, is_binary: bool, hello: MemberHello | None) -> None:
        takes_controls = hello is not None and hello.controls >= NOOP
        self._run(lambda: self._core.set_peer_binary(peer_id, is_binary, takes_controls), lambda: True)
        if hello is not None:
            self.heard(hello)

    def heard(self, hello: MemberHello, *, is_rejection: bool = False) -> None:
        """Another member said hello, or rejected this one, which it may have removed."""
        self._run(lambda: self._core.heard(hello.id, hello.members, self._now(), is_rejection=is_rejection))

    def rejected(self, hello: MemberHello) -> None:
        """A peer rejects this member, which it may have removed."""
        self.heard(hello, is_rejection=True)

    def flushed_in_thread(self, index: int) -> None:
        """The log is durable up to that index; called by the flush thread."""
        self._persisted = index
        try:
            self._loop.call_soon_threadsafe(self._flushed)
        except RuntimeError:
            # The loop is closed: the node has stopped.
            return

    def damaged_in_thread(self, damaged: Mapping[int, str]) -> None:
        """Entries are damaged; called by the scrub thread."""
        with suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._run, lambda: self._core.found_damage(damaged, self._now()))

    def flush_later(self, channel: Channel) -> None:
        """Flush `channel` after all inputs at hand were handled."""
        self._unflushed.add(channel)
        self._drain_later()

    def _flushed(self) -> None:
        self._run(
            lambda: self._core.persisted(self._persisted, self._now()), lambda: self._core.members.commit_may_wait
        )

    def _tick(self) -> None:
        if self._is_stopped:
            return
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        now, time = self._now(), self._loop.time()
        self.delays.observe(max(0.0, time - self.turns.tick_due))
        self.turns.tick_due = time + _TICK_SECONDS
        self._ticks += 1
        if self._ticks % _CHECK_TICKS == 0:
            self._check(now)
        if not self.threads.is_busy:
            self._tick_core()
        elif not self._is_tick_waiting:
            self._is_tick_waiting = True
            self._inputs.append(self._tick_core)

    def _tick_core(self) -> None:
        self._is_tick_waiting = False
        # Not the time from before the checks: the core takes an earlier time for a clock that went back.
        self._run(lambda: self._core.tick(self._now()), lambda: self._core.disk_waits.in_tick(self._now()))

    def _check(self, now: int) -> None:
        for link in list(self._links.values()):
            link.expire(now)
        if failure := self._store_failure():
            self._fail(StoreError(f"the store has failed: {failure}"))
        problems = self._core.problems
        while problems:
            self._problem_log(logging.ERROR, "problem", found=problems.popleft())

    def _run(self, work: Callable[[], None], may_wait: Callable[[], bool] | None = None) -> None:
        if self._is_stopped:
            return
        if self.threads.is_busy:
            self._inputs.append(lambda: self._run(work, may_wait))
            return
        if may_wait is not None and may_wait():
            self._change(work)
            return
        self._drain_later()
        try:
            work()
        except Exception as error:  # noqa: BLE001  # after any exception the core's state is unknown
            self._fail(error)

    def _change(self, work: Callable[[], object]) -> None:
        """Handle an input in another thread."""
        self.threads.change(work, self._changed)

    def _changed(self, error: BaseException | None) -> None:
        if self._is_stopped:
            return
        if error is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        # Responses and heartbeats go before the requests that wait: changes can follow each other without a pause.
        self._drain()
        while self._inputs and not self.threads.is_busy:
            self._inputs.popleft()()
        if not self.threads.is_busy:
            self._loop.call_soon(self.threads.wake)

    def _fail(self, error: Exception) -> None:
        if not self._is_stopped:
            self.stop()
            self._on_failure(error)

    def _now(self) -> int:
        return int(self._loop.time() * 1000)

    def _drop_views(self, term: int) -> None:
        """A new leader's push may truncate the log of an earlier leader: drop its unsent bytes before."""
        if self._core.role is not Role.LEADER or term > self._core.term:
            self._has_led = False
            for link in self._links.values():
                link.drop_unsent()

    # Effects

    def _drain_later(self) -> None:
        """Execute the effects after all inputs at hand: many small requests then become one push."""
        if not self._is_drain_due:
            self._is_drain_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_drain_due = False
        if self._is_stopped:
            return
        if self.threads.is_busy:
            self._flush()
            return
        if self._core.disk_waits.in_drain:
            self._change(self._core.finish_undo)
            return
        try:
            self._execute(self._core.drain())
        except Exception as error:  # noqa: BLE001  # after any exception the core's state is unknown
            self._fail(error)
            return
        self._flush()

    def _execute(self, effects: Sequence[Effect]) -> None:
        now = self._now()
        for effect in effects:
            if isinstance(effect, Send):
                link = self._links.get(effect.peer_id)
                if link is not None:
                    link.send(effect.token, effect.request, now)
                else:
                    # It was removed in the meantime.
                    self._loop.call_soon(self.handle_response, effect.token, None)
            elif isinstance(effect, Load):
                self.threads.read(effect.first_index, effect.max_bytes, partial(self._loaded, effect))
            elif isinstance(effect, Reply):
                caller = effect.token
                assert isinstance(caller, (Caller, LocalCaller))
                caller.respond(effect.response)
            elif isinstance(effect, Committed):
                self._reads.committed(effect.index)
            elif isinstance(effect, RoleChanged):
                self._role_changed(effect)
            elif isinstance(effect, MembersChanged):
                record(logging.INFO, "members", members=",".join(sorted(effect.addresses)))
                self._on_members()

    def _loaded(self, effect: Load, result: EntryRange | Exception) -> None:
        self._run(lambda: self._core.loaded(effect, result, self._now()))

    def _flush(self) -> None:
        for link in self._links.values():
            link.flush()
        unflushed, self._unflushed = self._unflushed, set()
        for channel in unflushed:
            channel.flush()

    def _role_changed(self, effect: RoleChanged) -> None:
        self._on_members()
        self._has_led = self._has_led or effect.role is Role.LEADER
        if effect.leader_id is not None and self._latest_leadership != (effect.leader_id, effect.term):
            self._latest_leadership = effect.leader_id, effect.term
            self.leader_changes += 1
        record(logging.INFO, "role", role=effect.role.value, term=effect.term, leader=effect.leader_id)
