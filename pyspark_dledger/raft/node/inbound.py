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
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.raft.channel import HIGH_WATER, Channel
from pyspark_dledger.raft.hello import MemberHello
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    ConfigRequest,
    GetRequest,
    MembersRequest,
    MembersResponse,
    PushRequest,
    PutRequest,
    PutResponse,
    ReadRequest,
    Request,
    Response,
    SummaryRequest,
)
from pyspark_dledger.raft.node.access import (
    Access,
    Credentials,
    Rejections,
    Roles,
    acting_member,
    stranger_response,
)
from pyspark_dledger.raft.node.callers import Caller, RequestHandler, is_rejection
from pyspark_dledger.raft.node.limits import FREE_BYTES, MemoryBudget, Quotas, TransferProgress, max_response_size
from pyspark_dledger.raft.secret import NO_SECRETS, Secrets
from pyspark_dledger.raft.wire import (
    NO_PERMISSION,
    SYSTEM_BUSY,
    SYSTEM_ERROR,
    EncodeError,
    ReceivedRequest,
    ReceivedResponse,
    Rejection,
)

# The maximum of outstanding requests of one connection, and of those whose responses have entries.
_MAX_OUTSTANDING = 16384
_MAX_READS = 16
# The same, and the maximum of unsent bytes, while others use the memory.
_MIN_OUTSTANDING = 32
_MIN_UNSENT = 32 * 1024
# With so much free memory the larger limits apply.
_ROOM_BYTES = 8 * 1024 * 1024
# Bytes of an outstanding request, and of a TLS connection. The second is asyncio's receive buffer.
_REQUEST_BYTES = 512
_TLS_BYTES = 256 * 1024
# The limit of the hello while a secret is required, in bytes.
_HELLO_BYTES = 64 * 1024
# That timeout in seconds while others wait for memory, for connections that use more bytes than these.
_SHORT_SECONDS = 2.0
_SMALL_BYTES = 512 * 1024
# Seconds after which an unused receive buffer is freed.
_SHRINK_SECONDS = 5.0
_SUCCESS = int(ResponseCode.SUCCESS)

# Outstanding requests are kept without their data.
_WITHOUT_DATA: dict[type[Request], Request] = {
    AppendRequest: AppendRequest(bodies=Bodies(0, b"")),
    PushRequest: PushRequest(),
    PutRequest: PutRequest(),
}
_READS = (GetRequest, ReadRequest, ConfigRequest, SummaryRequest)


class Timeouts(NamedTuple):
    """Seconds: for a handshake and a hello with a secret; without any request; and without progress of a transfer."""

    handshake: float
    idle: float
    transfer: float


class Registry(Protocol):
    """Knows all connections (`Connections`)."""

    memory: MemoryBudget
    quotas: Quotas
    rejected: Rejections
    roles: Roles

    def opened(self, inbound: Inbound) -> str | None:
        """The reason to reject a new connection."""

    def identified(self, inbound: Inbound, member_id: str | None) -> str | None:
        """The first request names that member as its sender. Returns the reason to close the connection."""

    def closed(self, inbound: Inbound) -> None:
        """The connection is lost."""


class Inbound(Channel):
    """The requests of one client or peer.

    Handles no more requests while the other side does not read responses, or while there is no memory for the response.
    If ``secrets`` has one of clients, the first request must have it, in a small frame and soon; otherwise the
    connection is closed. Requests of members are rejected unless the connection may act as that member (`Roles`).
    """

    def __init__(
        self,
        handler: RequestHandler,
        max_frame_bytes: int,
        registry: Registry,
        log: RateLimitedLog,
        secrets: Secrets = NO_SECRETS,
        is_tls: bool = False,
        on_lost: Callable[[Inbound], None] | None = None,
        hello: Callable[[], MemberHello] | None = None,
        on_hello: Callable[[MemberHello], None] = lambda _: None,
    ) -> None:
        super().__init__(max_frame_bytes if secrets.client is None else min(max_frame_bytes, _HELLO_BYTES), hello=hello)
        self._max_frame_bytes = max_frame_bytes
        self._handler = handler
        self._threads = handler.threads
        self._quotas = registry.quotas if registry.quotas.are_on else None
        self._registry = registry
        self._on_lost = on_lost
        self._memory = registry.memory
        self._log = log
        self.base_bytes = _TLS_BYTES if is_tls else 0
        # The connection of a member of the group: limits of memory and idle time are for clients.
        self.is_member = False
        self.is_identified = False
        self.access = Access(secrets, hello, lambda: registry.roles, on_hello)
        self._outstanding = 0
        self._max_outstanding = _MIN_OUTSTANDING
        self._reads = 0
        self._reserved = 0
        self._charged = 0
        # The next request, if there is no memory for its response; and responses without memory.
        self._held: ReceivedRequest | None = None
        self._postponed: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_reading = True
        self._granted = 0
        self._lacks_buffer = False
        self._is_retry_due = False
        # The response to a rejected append, and later appends that wait for that response.
        self._rejection: Response | Rejection | None = None
        self._is_rejecting = False
        self._waiting_appends: list[ReceivedRequest] = []
        self._progress = TransferProgress()
        self.active_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.access.shown = Credentials(self.host, transport.get_extra_info("peercert"))
        self.active_at = self._opened_at = asyncio.get_running_loop().time()
        self._progress.begin(self.active_at)
        if (reason := self._registry.opened(self)) is not None:
            self._reject_connection("limit", reason)
        self._charge()

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = asyncio.get_running_loop().time()
        self._progress.received += nbytes
        self._use(nbytes)
        super().buffer_updated(nbytes)

    # Memory

    def _charge(self) -> int:
        """Count the memory that is in use. Returns the counted bytes."""
        used = 0
        if not self.is_member and self._transport is not None:
            used = (
                self.base_bytes + max(self.wire.reader.buffer_size, self._granted) + self._outstanding * _REQUEST_BYTES
            )
            used = max(0, used + self._reserved + self.unsent - FREE_BYTES)
        if used != self._charged:
            change, self._charged = used - self._charged, used
            self._memory.add(change)
        return used

    def _has_memory(self, more: int) -> bool:
        return more <= 0 or self.is_member or self._memory.allows(self._charge(), more)

    def _has_room(self, size: int) -> bool:
        """Whether a response of so many bytes may be made now. If not, this is tried again later."""
        if self.is_full or self.unsent >= HIGH_WATER:
            return False
        if self._has_memory(size):
            return True
        self._memory.wait(self.retry, self._charged)
        return False

    def _has_buffer(self) -> bool:
        """Whether there is memory for the next receive buffer. If not, this is tried again later."""
        reader = self.wire.reader
        self._lacks_buffer = False
        self._granted = 0
        if reader.next_size <= FREE_BYTES:
            return True
        if self._has_memory(reader.next_size - reader.buffer_size):
            # All connections are asked before the first one allocates.
            self._granted = reader.next_size
            return True
        reader.use_small_buffer()
        if reader.next_size <= FREE_BYTES:
            return True
        self._lacks_buffer = True
        self._memory.wait(self.retry, self._charged)
        return False

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        """Call `work`, which responds at once, when there is memory for a response of `size` bytes."""
        if not self._postponed and self._has_room(size):
            work()
        else:
            self._postponed.append((size, work))

    def retry(self) -> None:
        """Continue what waited for memory, or for the other side."""
        self._is_retry_due = False
        if self._is_deferred():
            return
        while self._postponed and self.is_open and self._has_room(self._postponed[0][0]):
            self._postponed.popleft()[1]()
        held = self._held
        if held is not None and self.is_open and self._has_room(max_response_size(held.request)):
            self._held = None
            self._handle(held)
        self.read_messages()

    def _is_deferred(self) -> bool:
        """Whether requests wait: for a disk, or for heartbeats that are late. If so, this is tried again later."""
        if self._threads.is_busy:
            self._threads.when_idle(self.retry, self.wire.reader.unhandled)
        elif self._is_late:
            self._handler.turns.wait(self.retry, self.wire.reader.unhandled)
        return self._threads.is_busy or self._is_late

    def _retry_soon(self) -> None:
        if not self._is_retry_due and (self._postponed or not self._is_reading):
            self._is_retry_due = True
            asyncio.get_running_loop().call_soon(self.retry)

    # Requests

    def can_receive(self) -> bool:
        return (
            self._held is None
            and not self.is_full
            and self._outstanding < self._max_outstanding
            and self._reads < _MAX_READS
            and self._out_size < HIGH_WATER
            and self.is_open
            and not self._threads.is_busy
            and not self._is_late
        )

    @property
    def _is_late(self) -> bool:
        return not self.is_member and self._handler.turns.is_late

    def read_messages(self) -> None:
        is_roomy = self._has_memory(_ROOM_BYTES)
        self._max_outstanding = _MAX_OUTSTANDING if is_roomy else _MIN_OUTSTANDING
        if is_roomy or self.unsent < _MIN_UNSENT:
            super().read_messages()
            self._set_reading(self.can_receive() and self._has_buffer())
        else:
            self._set_reading(False)
        self._is_deferred()
        self._charge()

    def _set_reading(self, wanted: bool) -> None:
        if wanted is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def received(self, message: ReceivedRequest | ReceivedResponse) -> None:
        if isinstance(message, ReceivedResponse):
            return
        size = max_response_size(message.request)
        if size and not self._has_room(size):
            self._held = message
        else:
            self._handle(message)

    def _handle(self, received: ReceivedRequest) -> None:
        request = received.request
        if not self.is_identified and not (self._is_admitted(received) and self._identify(request)):
            return
        if isinstance(request, Rejection):
            self._reject(received, request)
            return
        if (reason := self._stranger_reason(request)) is not None:
            self._reject_stranger(received, request, reason)
            return
        if isinstance(request, AppendRequest) and self._follows_rejection(received, request):
            return
        if not self._has_quota(received):
            return
        self._outstanding += 1
        self._reads += isinstance(request, _READS)
        reserved = max_response_size(request)
        self._reserved += reserved
        without_data = _WITHOUT_DATA.get(type(request))
        kept = received if without_data is None else received._replace(request=without_data)
        if not self._handler.handle(request, Caller(self, kept, reserved)):
            self.reject_next()

    def reject_next(self) -> None:
        self._is_rejecting = True

    def _identify(self, request: Request | Rejection) -> bool:
        """Whether the sender of the first request may stay."""
        self.is_identified = True
        reason = self._registry.identified(self, None if isinstance(request, Rejection) else request.local_id)
        if reason is not None:
            self._reject_connection("limit", reason)
        return reason is None

    def _reject_connection(self, kind: str, reason: str, event: str = "connection refused") -> None:
        self._registry.rejected.connections[kind] += 1
        self._log(logging.WARNING, event, address=self.address, reason=reason)
        if kind in ("secret", "hello"):
            self.close()  # after the response
        else:
            self.abort()

    # Secrets and roles

    def _stranger_reason(self, request: Request) -> str | None:
        """Why this connection may not send a request that only members may send."""
        if isinstance(request, MembersRequest) and request.is_change:
            return self._registry.roles.change_rejection(self.access.shown)
        member_id = acting_member(request)
        return None if member_id is None else self.access.member_rejection(member_id)

    def _reject_stranger(self, received: ReceivedRequest, request: Request, reason: str) -> None:
        name = type(request).__name__
        self._registry.rejected.member_requests[name] += 1
        self._log(logging.WARNING, "request refused", address=self.address, request=name, reason=reason)
        response = stranger_response(request)
        if isinstance(response, MembersResponse):
            response.reason = reason
        self._send(received, response)

    def _is_admitted(self, received: ReceivedRequest) -> bool:
        """Whether the first request admits the connection; otherwise it is closed."""
        reason = self.access.first_rejection(received)
        if reason is None:
            self.wire.set_max_frame_size(self._max_frame_bytes)
            return True
        self._reject(received, Rejection(NO_PERMISSION, reason), self.access.told)
        self._reject_connection(self.access.rejected_for, reason)
        return False

    # Quotas

    def _use(self, size: int) -> None:
        """Count bytes of a client."""
        if self._quotas is not None and not self.is_member:
            self._quotas.add_bytes(self.host, size, asyncio.get_running_loop().time())

    def _has_quota(self, received: ReceivedRequest) -> bool:
        """Whether a client may send this request; otherwise it is rejected."""
        if self._quotas is None or self.is_member:
            return True
        if (reason := self._quotas.rejection(self.host, asyncio.get_running_loop().time())) is None:
            return True
        rejection = Rejection(SYSTEM_BUSY, reason)
        if isinstance(received.request, AppendRequest):
            self._is_rejecting, self._rejection = True, rejection
        self._log(logging.WARNING, "request refused", address=self.address, reason=reason)
        self._reject(received, rejection)
        return False

    # Pipelines

    def _follows_rejection(self, received: ReceivedRequest, request: AppendRequest) -> bool:
        """Reject an append after a rejected one in a pipeline, so that it cannot overtake it."""
        if request.is_restart:
            self._is_rejecting, self._rejection = False, None
        if not self._is_rejecting:
            return False
        if self._rejection is None:
            self._outstanding += 1
            self._waiting_appends.append(received._replace(request=_WITHOUT_DATA[type(request)]))
        else:
            self._send_rejection(received, self._rejection)
        return True

    def _send_rejection(self, received: ReceivedRequest, rejection: Response | Rejection) -> None:
        """Reject an append or put with the response to the earlier one."""
        if isinstance(rejection, Rejection):
            self._reject(received, rejection)
            return
        kind = PutResponse if isinstance(received.request, PutRequest) else AppendResponse
        if not isinstance(rejection, kind):
            rejection = kind(**{field.name: getattr(rejection, field.name) for field in fields(Response)})
        self._send(received, rejection)

    # Responses

    def respond(self, caller: Caller, response: Response) -> None:
        """Send the response to one of its requests."""
        received = caller.received
        self._outstanding -= 1
        self._reserved -= caller.reserved
        self._reads -= isinstance(received.request, _READS)
        self._send(received, response)
        if self._is_rejecting and self._rejection is None and is_rejection(received, response):
            self._rejection = response
            waiting, self._waiting_appends = self._waiting_appends, []
            self._outstanding -= len(waiting)
            for later in waiting:
                self._send_rejection(later, response)
        self._retry_soon()

    def _send(self, received: ReceivedRequest, response: Response) -> None:
        if response.code != _SUCCESS:
            self._registry.rejected.requests[response.code] += 1
        if received.is_one_way or not self.is_open:
            return
        try:
            parts = self.wire.respond(received, response)
        except EncodeError as error:
            self._log(logging.ERROR, "answer not sent", address=self.address, reason=str(error))
            parts = self.wire.reject(received, Rejection(SYSTEM_ERROR, str(error)))
        self.write(parts)
        self._handler.flush_later(self)

    def _reject(self, received: ReceivedRequest, rejection: Rejection, member: str | None = None) -> None:
        self._registry.rejected.requests[rejection.code] += 1
        if not received.is_one_way:
            self.write(self.wire.reject(received, rejection, member))
            self._handler.flush_later(self)

    def write(self, parts: Sequence[Buffer]) -> None:
        super().write(parts)
        size = sum(map(len, parts))
        self._progress.sent += size
        self._use(size)

    def flush(self) -> None:
        super().flush()
        self._charge()
        self._retry_soon()

    def resumed(self) -> None:
        super().resumed()
        self.retry()

    # Time

    @property
    def is_idle(self) -> bool:
        """Whether no request is outstanding, no response unsent, and no frame incomplete."""
        return not self._outstanding and self.wire.reader.is_between_frames and not self.unsent

    @property
    def gives_way(self) -> bool:
        """Whether it may be closed for another connection: it is idle, or has never completed a request."""
        return self.is_idle or not self.is_identified

    def check(self, now: float, timeouts: Timeouts) -> None:
        """Close the connection if it has waited too long, and free what it does not need. `now` is in seconds."""
        if (reason := self._overdue(now, timeouts)) is not None:
            self._reject_connection("timeout", reason, "connection closed")
            return
        if self.is_idle and now - self.active_at > _SHRINK_SECONDS:
            self.wire.reader.use_small_buffer()
        self._charge()
        self._retry_soon()

    def _overdue(self, now: float, timeouts: Timeouts) -> str | None:
        """What has taken too long."""
        if self.access.lacks_secret and now - self._opened_at > timeouts.handshake:
            return f"expected the secret of this node in {timeouts.handshake:g} s, found no request"
        if not self.is_member and self.is_idle and now - self.active_at > timeouts.idle:
            return f"idle for more than {timeouts.idle:g} s"
        transfer = timeouts.transfer
        if self._charged > _SMALL_BYTES and self._memory.is_short(now):
            transfer = min(transfer, _SHORT_SECONDS)
        # Frames that lack memory count too: if all did, none would ever get it.
        is_incomplete = not self.wire.reader.is_between_frames and (self._is_reading or self._lacks_buffer)
        progress = self._progress
        return progress.unread(self.unsent, now, transfer) or progress.incomplete(
            is_incomplete, self.active_at, now, transfer
        )

    def malformed(self, error: str) -> None:
        self._reject_connection("malformed", error, "connection closed")

    def lost(self) -> None:
        self._held = None
        self._postponed.clear()
        self._waiting_appends.clear()
        self._memory.forget(self.retry)
        self._charge()
        self._registry.closed(self)
        if self._on_lost is not None:
            self._on_lost(self)
