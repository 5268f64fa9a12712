"""A client's connection to one member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pyspark_dledger.raft.channel import Channel
from pyspark_dledger.raft.client.outcomes import AnyResponse
from pyspark_dledger.raft.messages import Request
from pyspark_dledger.raft.wire import MAX_FRAME_SIZE, ReceivedRequest, ReceivedResponse

log = logging.getLogger(__name__)

# Called with the response, or with None if the connection was lost.
OnResponse = Callable[[AnyResponse | None], None]

_LAST_CHECK_SECONDS = 0.01
# An idle connection is closed after this time, before a node closes it: no request then meets the end of a connection.
_IDLE_SECONDS = 60.0


class LostError(Exception):
    """The connection was lost, or could not be established."""


class MemberConnection(Channel):
    """Used only by the thread of its event loop.

    While it `is_full`, no requests are passed to it: if it is lost, those were certainly not sent.
    """

    def __init__(self, member_id: str, secret: str | None = None) -> None:
        super().__init__(MAX_FRAME_SIZE, secret)
        self.member_id = member_id
        self.is_lost = False
        self.received_at = 0.0
        self.on_writable: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._waiting: dict[int, OnResponse] = {}
        self._loop = asyncio.get_running_loop()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._sent_at = 0.0

    @property
    def is_binary(self) -> bool:
        """Whether the member uses the binary dialect; known after its METADATA response."""
        return self.wire.is_binary

    def send(self, request: Request, on_response: OnResponse) -> int:
        """Send a request. Returns its number for `forget`. Raises EncodeError; nothing is sent then."""
        opaque, frames = self.wire.request(request)
        self._waiting[opaque] = on_response
        if not self._out:
            self._sent_at = self._loop.time()
            self._loop.call_soon(self.flush)
        self.write(frames)
        return opaque

    def flush(self) -> None:
        """Send all requests with one call: after the first, a second one can fail, which drops unread responses."""
        parts, self._out, self._out_size = self._out, [], 0
        if parts and self._transport is not None:
            self._transport.writelines(parts)

    def forget(self, opaque: int) -> None:
        """Ignore the response to that request."""
        self._waiting.pop(opaque, None)
        self.wire.forget(opaque)

    async def request(self, request: Request, timeout: float) -> AnyResponse:
        """Send a request and wait for its response. Raises LostError, and TimeoutError after `timeout` seconds."""
        if self.is_lost:
            raise LostError("the connection was lost")
        future: asyncio.Future[AnyResponse | None] = self._loop.create_future()
        sent_at = self._loop.time()
        opaque = self.send(request, lambda response: None if future.done() else future.set_result(response))
        try:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                # This process may have been stopped: read responses that arrived in the meantime.
                await asyncio.sleep(_LAST_CHECK_SECONDS)
        finally:
            self.forget(opaque)
        if not future.done():
            if self.received_at <= sent_at:
                # Nothing was received since: other requests would wait in vain too.
                self.abort()
            raise TimeoutError(f"no response in {timeout * 1000:.0f} ms")
        response = future.result()
        if response is None:
            raise LostError("the connection was lost before the response")
        return response

    def abort(self) -> None:
        """Close the connection at once."""
        super().abort()
        self.lost()

    def close(self) -> None:
        """Close the connection after sending all requests."""
        super().close()
        self.lost()

    # Callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.received_at = self._loop.time()
        self._close_when_idle()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = self._loop.time()
        super().buffer_updated(nbytes)

    def received(self, message: ReceivedRequest | ReceivedResponse) -> None:
        if isinstance(message, ReceivedRequest):
            self.malformed("a request to a client")
            self.abort()
        elif (on_response := self._waiting.pop(message.opaque, None)) is not None:
            on_response(message.response)

    def malformed(self, error: str) -> None:
        log.warning("%s sent unreadable bytes, its connection is closed: %s", self.member_id, error)

    def resumed(self) -> None:
        super().resumed()
        if not self.is_full and self.on_writable is not None:
            self.on_writable()

    def _close_when_idle(self) -> None:
        idle = self._loop.time() - max(self._sent_at, self.received_at)
        if not self._waiting and idle >= _IDLE_SECONDS:
            self.close()
        elif not self.is_lost:
            wait = _IDLE_SECONDS if self._waiting else _IDLE_SECONDS - idle
            self._idle_timer = self._loop.call_later(wait, self._close_when_idle)

    def lost(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for on_response in waiting.values():
            on_response(None)
        if self.on_lost is not None:
            self.on_lost()
