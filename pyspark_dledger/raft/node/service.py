"""What drives a core: hands it what comes from connections, clock and disk, and does what it says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from pyspark_dledger.common.log_records import ProblemLog, record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.raft.core import Committed, Core, Effect, Reply, RoleChanged, Send
from pyspark_dledger.raft.messages import PushRequest, ReadRequest, Request, Response, Role
from pyspark_dledger.raft.node.channel import Channel
from pyspark_dledger.raft.node.committed_reads import Tails
from pyspark_dledger.raft.node.inbound import Caller, OwnCaller
from pyspark_dledger.raft.node.link import Link

_TICK_SECONDS = 0.01
# Every so many ticks the rest is looked after.
_LOOK_TICKS = 10


class Service:
    """Everything of it runs in the loop's thread, but `flushed_in_thread`.

    A core that raises is not to be trusted any more, and a store that failed would leave the group with a member, or a
    leader, that can do nothing: `failed` is told once, and nothing is done from then on.
    """

    def __init__(
        self, core: Core, tails: Tails, store_failure: Callable[[], str | None], failed: Callable[[Exception], None]
    ) -> None:
        self._core = core
        self._tails = tails
        self._store_failure = store_failure
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._links: Mapping[str, Link] = {}
        self._dirty: set[Channel] = set()
        self._is_woken = False
        self._is_stopped = False
        self._has_led = False
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._persisted = -1
        self._problem = ProblemLog()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def start(self, links: Mapping[str, Link]) -> None:
        self._links = links
        self._tick()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    # What comes.

    def handle(self, request: Request, caller: Caller | OwnCaller) -> bool:
        """Whether it was taken up; False for an append that is refused."""
        if self._is_stopped:
            return True
        if isinstance(request, ReadRequest):
            self._tails.read(request, caller)
            return True
        if self._has_led and isinstance(request, PushRequest):
            self._drop_views(request.term)
        self._wake()
        try:
            return self._core.handle(request, caller, self._now()) is not False
        except Exception as error:  # noqa: BLE001  # whatever it is, the core's state is unknown then
            self._fail(error)
            return True

    def answered(self, token: int, response: Response | None) -> None:
        """A peer answered, or will not."""
        self._do(lambda: self._core.handle_response(token, response, self._now()))

    def peer_is_binary(self, peer_id: str, is_ours: bool) -> None:
        self._do(lambda: self._core.set_peer_binary(peer_id, is_ours))

    def flushed_in_thread(self, index: int) -> None:
        """Everything up to that index is durable; called by the flush thread."""
        self._persisted = index
        try:
            self._loop.call_soon_threadsafe(self._flushed)
        except RuntimeError:
            # The loop is closed: the node has stopped.
            return

    def dirty(self, channel: Channel) -> None:
        self._dirty.add(channel)
        self._wake()

    def _flushed(self) -> None:
        self._do(lambda: self._core.persisted(self._persisted, self._now()))

    def _tick(self) -> None:
        if self._is_stopped:
            return
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        now = self._now()
        self._ticks += 1
        if self._ticks % _LOOK_TICKS == 0:
            self._look_round(now)
        self._do(lambda: self._core.tick(now))

    def _look_round(self, now: int) -> None:
        for link in self._links.values():
            link.expire(now)
        if failure := self._store_failure():
            self._fail(StoreError(f"expected a store that works, found {failure}"))
        problems = self._core.problems
        while problems:
            self._problem(logging.ERROR, "problem", problems.popleft())

    def _do(self, work: Callable[[], None]) -> None:
        if self._is_stopped:
            return
        self._wake()
        try:
            work()
        except Exception as error:  # noqa: BLE001  # whatever it is, the core's state is unknown then
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._is_stopped:
            self.stop()
            self._failed(error)

    def _now(self) -> int:
        return int(self._loop.time() * 1000)

    def _drop_views(self, term: int) -> None:
        """A log that was led may be cut by a push of a new leader: no bytes of it may wait to be sent by then."""
        if self._core.role is not Role.LEADER or term > self._core.term:
            self._has_led = False
            for link in self._links.values():
                link.drop_unsent()

    # What the core says.

    def _wake(self) -> None:
        """Do it after all that is at hand came in: many small requests then are one push."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_woken = False
        if self._is_stopped:
            return
        try:
            self._do_all(self._core.drain())
        except Exception as error:  # noqa: BLE001  # whatever it is, the core's state is unknown then
            self._fail(error)
            return
        self._flush()

    def _do_all(self, effects: Sequence[Effect]) -> None:
        now = self._now()
        for effect in effects:
            if isinstance(effect, Send):
                self._links[effect.peer_id].send(effect.token, effect.request, now)
            elif isinstance(effect, Reply):
                caller = effect.token
                assert isinstance(caller, (Caller, OwnCaller))
                caller.response(effect.response)
            elif isinstance(effect, Committed):
                self._tails.committed(effect.index)
            elif isinstance(effect, RoleChanged):
                self._role_changed(effect)

    def _flush(self) -> None:
        for link in self._links.values():
            link.flush()
        dirty, self._dirty = self._dirty, set()
        for channel in dirty:
            channel.flush()

    def _role_changed(self, effect: RoleChanged) -> None:
        self._has_led = self._has_led or effect.role is Role.LEADER
        record(logging.INFO, "role", role=effect.role.value, term=effect.term, leader=effect.leader_id)
