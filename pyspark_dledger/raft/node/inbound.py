"""A connection from a client or peer: passes its requests to the core driver, within limits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple, Protocol

from pyspark_dledger.common.log_records import RateLimitedLog
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    PushRequest,
    PutRequest,
    PutResponse,
    ReadRequest,
    Request,
    Response,
)
from pyspark_dledger.raft.node.channel import Channel
from pyspark_dledger.raft.secret import is_same
from pyspark_dledger.raft.wire import (
    NO_PERMISSION,
    SYSTEM_ERROR,
    EncodeError,
    ReceivedRequest,
    ReceivedResponse,
    Refusal,
)

# The maximum of outstanding requests of one connection, and of those whose responses have entries.
_MAX_OUTSTANDING = 16384
_MAX_READS = 16
# Every connection may use this much memory, independent of all others, in bytes.
_UNCOUNTED_BYTES = 256 * 1024
# The limits of the hello while a secret is required: size of a frame in bytes, and time in seconds.
_HELLO_BYTES = 64 * 1024
_HELLO_SECONDS = 10.0
# After these codes an append may still be in the log, so later ones are not rejected.
_UNKNOWN_OUTCOMES = (ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

# Outstanding requests are kept without their data.
_WITHOUT_DATA: dict[type[Request], Request] = {
    AppendRequest: AppendRequest(bodies=Bodies(0, b"")),
    PushRequest: PushRequest(),
    PutRequest: PutRequest(),
}


class Caller(NamedTuple):
    """The sender of a request: its token in the core."""

    inbound: Inbound
    received: ReceivedRequest

    def respond(self, response: Response) -> None:
        self.inbound.respond(self.received, response)


class LocalCaller:
    """The token in the core of a request of this process."""

    inbound = None

    def __init__(self, future: asyncio.Future[Response]) -> None:
        self._future = future

    def respond(self, response: Response) -> None:
        if not self._future.done():
            self._future.set_result(response)


class RequestHandler(Protocol):
    """Handles requests (`CoreDriver`)."""

    def handle(self, request: Request, caller: Caller | LocalCaller) -> bool:
        """Handle a request. Returns False for an append that was rejected."""

    def flush_later(self, channel: Channel) -> None:
        """Flush `channel` after all requests at hand were handled."""


class FrameMemory:
    """The memory for incomplete frames of all connections, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def add(self, size: int) -> bool:
        """Add bytes, or remove them if negative. Returns False if bytes were added and the limit is exceeded."""
        self.used += size
        return size <= 0 or self.used <= self.limit


class Inbound(Channel):
    """The requests of one client or peer. Reads no more requests while the other side does not read responses.

    A connection that exceeds the `FrameMemory` is closed. With a ``secret``, the first request must have it, in a small
    frame and soon; otherwise the connection is closed. ``on_open`` returns whether the connection is admitted;
    ``on_close`` is called when it is lost.
    """

    def __init__(
        self,
        handler: RequestHandler,
        max_frame_bytes: int,
        memory: FrameMemory,
        log: RateLimitedLog,
        on_open: Callable[[Inbound], bool],
        on_close: Callable[[Inbound], None],
        secret: str | None = None,
    ) -> None:
        super().__init__(max_frame_bytes if secret is None else min(max_frame_bytes, _HELLO_BYTES))
        self._max_frame_bytes = max_frame_bytes
        self._handler = handler
        self._memory = memory
        self._memory_used = 0
        self._log = log
        self._on_open = on_open
        self._on_close = on_close
        # The secret that the first request must have; None afterwards.
        self._required_secret = secret
        self._hello_timer: asyncio.TimerHandle | None = None
        self._queue: deque[ReceivedRequest] = deque()
        self._outstanding = 0
        self._reads = 0
        self._is_reading = True
        # The response to a rejected append, and later appends that wait for that response.
        self._rejection: Response | None = None
        self._is_rejecting = False
        self._waiting_appends: list[ReceivedRequest] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._on_open(self):
            self._log(logging.WARNING, "connection refused", address=self.address, reason="too many connections")
            self.abort()
        elif self._required_secret is not None:
            self._hello_timer = asyncio.get_running_loop().call_later(_HELLO_SECONDS, self._hello_timed_out)

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        # Only large frames count, so that small requests are always possible.
        if not self._set_memory(max(0, self.wire.buffer_size - _UNCOUNTED_BYTES)):
            self.malformed(
                f"expected at most {self._memory.limit} bytes of incomplete large frames on all connections, found "
                f"{self._memory.used} with this one: connect again later"
            )
            self.abort()

    def _set_memory(self, size: int) -> bool:
        change, self._memory_used = size - self._memory_used, size
        return self._memory.add(change)

    def received(self, messages: Sequence[ReceivedRequest | ReceivedResponse]) -> None:
        self._queue.extend(message for message in messages if isinstance(message, ReceivedRequest))
        self._handle_queue()

    def _handle_queue(self) -> None:
        """Handle queued requests, up to the limits of outstanding ones."""
        while self._queue and self._has_capacity() and self.is_open:
            self._handle(self._queue.popleft())
        self._set_reading(not self._queue and self._has_capacity())

    def _has_capacity(self) -> bool:
        return not self.is_full and self._reads < _MAX_READS and self._outstanding < _MAX_OUTSTANDING

    def _set_reading(self, wanted: bool) -> None:
        if wanted is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _handle(self, received: ReceivedRequest) -> None:
        request = received.request
        if self._required_secret is not None and not self._check_secret(received, self._required_secret):
            return
        if isinstance(request, Refusal):
            self._refuse(received, request)
            return
        if isinstance(request, AppendRequest) and self._follows_rejection(received, request):
            return
        self._outstanding += 1
        self._reads += isinstance(request, (GetRequest, ReadRequest))
        without_data = _WITHOUT_DATA.get(type(request))
        caller = Caller(self, received if without_data is None else received._replace(request=without_data))
        if not self._handler.handle(request, caller):
            self._is_rejecting = True

    # The secret

    def _check_secret(self, received: ReceivedRequest, secret: str) -> bool:
        """Whether the request has the secret; otherwise the connection is closed."""
        if is_same(received.secret, secret):
            self._required_secret = None
            self._stop_hello_timer()
            self.wire.set_max_frame_size(self._max_frame_bytes)
            return True
        found = "none" if received.secret is None else "another"
        reason = f"expected the secret of this node in the first request, found {found}: connect with it"
        self._refuse(received, Refusal(NO_PERMISSION, reason))
        self._log(logging.WARNING, "connection refused", address=self.address, reason=reason)
        self.close()
        return False

    def _hello_timed_out(self) -> None:
        reason = f"expected the secret of this node in {_HELLO_SECONDS:.0f} s, found no request"
        self._log(logging.WARNING, "connection refused", address=self.address, reason=reason)
        self.abort()

    def _stop_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()

    # Pipelines

    def _follows_rejection(self, received: ReceivedRequest, request: AppendRequest) -> bool:
        """Reject an append after a rejected one in a pipeline, so that it cannot overtake it."""
        if request.is_restart:
            self._is_rejecting, self._rejection = False, None
        if not self._is_rejecting:
            return False
        if self._rejection is None:
            self._waiting_appends.append(received._replace(request=_WITHOUT_DATA[type(request)]))
        else:
            self._send_rejection(received, self._rejection)
        return True

    def _send_rejection(self, received: ReceivedRequest, rejection: Response) -> None:
        """Reject an append or put with the response to the earlier one."""
        kind = PutResponse if isinstance(received.request, PutRequest) else AppendResponse
        if not isinstance(rejection, kind):
            rejection = kind(**{field.name: getattr(rejection, field.name) for field in fields(Response)})
        self._send(received, rejection)

    # Responses

    def respond(self, received: ReceivedRequest, response: Response) -> None:
        """Send the response to one of its requests."""
        self._outstanding -= 1
        self._reads -= isinstance(received.request, (GetRequest, ReadRequest))
        self._send(received, response)
        if self._is_rejecting and self._rejection is None and _is_rejection(received, response):
            self._rejection = response
            waiting, self._waiting_appends = self._waiting_appends, []
            for later in waiting:
                self._send_rejection(later, response)
        if not self._is_reading:
            asyncio.get_running_loop().call_soon(self._handle_queue)

    def _send(self, received: ReceivedRequest, response: Response) -> None:
        if received.is_one_way or not self.is_open:
            return
        try:
            parts = self.wire.respond(received, response)
        except EncodeError as error:
            self._log(logging.ERROR, "answer not sent", address=self.address, reason=str(error))
            parts = self.wire.refuse(received, Refusal(SYSTEM_ERROR, str(error)))
        self.write(parts)
        self._handler.flush_later(self)

    def _refuse(self, received: ReceivedRequest, refusal: Refusal) -> None:
        if not received.is_one_way:
            self.write(self.wire.refuse(received, refusal))
            self._handler.flush_later(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._handle_queue()

    def malformed(self, error: str) -> None:
        self._log(logging.WARNING, "connection closed", address=self.address, reason=error)

    def lost(self) -> None:
        self._stop_hello_timer()
        self._queue.clear()
        self._waiting_appends.clear()
        self._set_memory(0)
        self._on_close(self)


def _is_rejection(received: ReceivedRequest, response: Response) -> bool:
    """Whether it is the response to an append that is certainly not in the log."""
    is_append = isinstance(received.request, AppendRequest)
    return is_append and response.code != ResponseCode.SUCCESS and response.code not in _UNKNOWN_OUTCOMES
