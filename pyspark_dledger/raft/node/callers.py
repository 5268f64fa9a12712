"""Who sent a request, and who handles it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.channel import Channel
from pyspark_dledger.raft.messages import AppendRequest, Request, Response
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.raft.node.limits import Turns
from pyspark_dledger.raft.wire import ReceivedRequest

# After these codes an append may still be in the log, so later ones are not rejected.
_UNKNOWN_OUTCOMES = (ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)


class Responder(Protocol):
    """The connection of a request (`Inbound`)."""

    def respond(self, caller: Caller, response: Response) -> None:
        """Send the response to one of its requests."""

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        """Call `work`, which responds at once, when there is memory for a response of `size` bytes."""

    def reject_next(self) -> None:
        """An append was rejected: reject those after it in its pipeline."""


class Caller(NamedTuple):
    """The sender of a request: its token in the core. ``reserved`` bytes of memory wait for the response."""

    inbound: Responder
    received: ReceivedRequest
    reserved: int = 0

    def respond(self, response: Response) -> None:
        self.inbound.respond(self, response)

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        """Call `work`, which responds at once, when there is memory for a response of `size` bytes."""
        self.inbound.when_room(size, work)

    def reject_next(self) -> None:
        """An append was rejected: reject those after it in its pipeline."""
        self.inbound.reject_next()


class LocalCaller:
    """The token in the core of a request of this process."""

    inbound = None

    def __init__(self, future: asyncio.Future[Response]) -> None:
        self._future = future

    def respond(self, response: Response) -> None:
        if not self._future.done():
            self._future.set_result(response)

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        """Call `work` at once."""
        work()

    def reject_next(self) -> None:
        """Nothing: it has no pipeline."""


class RequestHandler(Protocol):
    """Handles requests (`CoreDriver`), except while its `threads` are busy; those of clients in their `turns`."""

    threads: DiskThreads
    turns: Turns

    def handle(self, request: Request, caller: Caller | LocalCaller) -> bool:
        """Handle a request. Returns False for an append that was rejected."""

    def flush_later(self, channel: Channel) -> None:
        """Flush `channel` after all requests at hand were handled."""


def is_rejection(received: ReceivedRequest, response: Response) -> bool:
    """Whether it is the response to an append that is certainly not in the log."""
    is_append = isinstance(received.request, AppendRequest)
    return is_append and response.code != ResponseCode.SUCCESS and response.code not in _UNKNOWN_OUTCOMES
