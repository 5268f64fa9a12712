"""One connection to one member: requests out, answers to whoever asked, and what becomes of them when it is lost."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.client.outcomes import AnyResponse
from pyspark_dledger.raft.messages import Request
from pyspark_dledger.raft.wire import ReceivedRequest, WireConnection, WireError

log = logging.getLogger(__name__)

# Told what came, or None if the connection was lost before it came.
OnResponse = Callable[[AnyResponse | None], None]

_SOCKET_BUFFER = 4 * 1024 * 1024
# Seconds.
_LAST_LOOK = 0.01
# Bytes that wait to be sent, from which on nothing more is handed over: what is lost before that was never sent.
_MAX_UNSENT = 1024 * 1024


class LostError(Exception):
    """The connection was lost, or could not be made."""


class MemberConnection(asyncio.BufferedProtocol):
    """To be used by the thread of its event loop only."""

    def __init__(self, member_id: str, secret: str | None = None) -> None:
        self.member_id = member_id
        self.is_lost = False
        self.can_write = True
        self.received_at = 0.0
        self.on_writable: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._wire = WireConnection(secret=secret)
        self._waiting: dict[int, OnResponse] = {}
        self._unsent: list[Buffer] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_binary(self) -> bool:
        """Whether the member is one of ours; known once it answered a METADATA request."""
        return self._wire.is_binary

    def send(self, request: Request, on_response: OnResponse) -> int:
        """Sends a request; the number by which `forget` knows it. Raises EncodeError: then nothing was sent."""
        opaque, frames = self._wire.request(request)
        self._waiting[opaque] = on_response
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent += frames
        return opaque

    def forget(self, opaque: int) -> None:
        """Nobody waits for that answer any longer."""
        self._waiting.pop(opaque, None)
        self._wire.forget(opaque)

    async def ask(self, request: Request, timeout: float) -> AnyResponse:
        """Sends a request and waits for its answer. Raises LostError, and TimeoutError after so many seconds."""
        if self.is_lost:
            raise LostError("the connection was lost")
        future: asyncio.Future[AnyResponse | None] = self._loop.create_future()
        asked_at = self._loop.time()
        opaque = self.send(request, lambda response: None if future.done() else future.set_result(response))
        try:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                # This process may have stood still: what came meanwhile is looked at first.
                await asyncio.sleep(_LAST_LOOK)
        finally:
            self.forget(opaque)
        if not future.done():
            if self.received_at <= asked_at:
                # Nothing at all came since: what else is on its way would wait in vain as well.
                self.abort()
            raise TimeoutError(f"no answer in {timeout * 1000:.0f} ms")
        response = future.result()
        if response is None:
            raise LostError("the connection was lost before the answer came")
        return response

    def abort(self) -> None:
        """Gives the connection up at once."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def close(self) -> None:
        """Closes the connection, after what was handed over is sent."""
        if self._transport is not None:
            self._write()
            self._transport.close()
        self._lose()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_MAX_UNSENT)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        self.received_at = self._loop.time()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = self._loop.time()
        try:
            arrived = self._wire.buffer_updated(nbytes)
        except WireError as error:
            log.warning("%s sent what cannot be read, its connection is closed: %s", self.member_id, error)
            self.abort()
            return
        for each in arrived:
            if isinstance(each, ReceivedRequest):
                log.warning("%s sent a request to a client, its connection is closed", self.member_id)
                self.abort()
                return
            on_response = self._waiting.pop(each.opaque, None)
            if on_response is not None:
                on_response(each.response)

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        self.can_write = True
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose()

    def _write(self) -> None:
        """Everything that came up in one turn of the loop, at once."""
        frames, self._unsent = self._unsent, []
        if frames and self._transport is not None:
            self._transport.writelines(frames)

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        waiting, self._waiting = self._waiting, {}
        for on_response in waiting.values():
            on_response(None)
        if self.on_lost is not None:
            self.on_lost()
