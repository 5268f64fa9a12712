"""Who sent a request, and who handles it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pyspark_dledger.raft.messages import Request, Response
from pyspark_dledger.raft.node.channel import Channel
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.raft.wire import ReceivedRequest


class Responder(Protocol):
    """The connection of a request (`Inbound`)."""

    def respond(self, caller: Caller, response: Response) -> None:
        """Send the response to one of its requests."""

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        """Call `work`, which responds at once, when there is memory for a response of `size` bytes."""


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


class RequestHandler(Protocol):
    """Handles requests (`CoreDriver`), except while its `threads` are busy."""

    threads: DiskThreads

    def handle(self, request: Request, caller: Caller | LocalCaller) -> bool:
        """Handle a request. Returns False for an append that was rejected."""

    def flush_later(self, channel: Channel) -> None:
        """Flush `channel` after all requests at hand were handled."""
