"""A connection that others made: their requests go to the service one by one, as fast as they take the answers."""

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

# Requests of one connection that are unanswered, and those of them whose answers hold entries.
_MAX_OUTSTANDING = 16384
_MAX_READS = 16
# Every connection may hold so much, whatever others do, in bytes.
_SMALL_BYTES = 256 * 1024
# Before a secret is given: what a hello never needs, in bytes, and how long it may take, in seconds.
_HELLO_BYTES = 64 * 1024
_HELLO_SECONDS = 10.0
# An append that may be in the log all the same: those behind it are not held back.
_OUTCOME_UNKNOWN = (ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

# What a request that is being answered is remembered by: its bytes are not kept until then.
_SHELLS: dict[type[Request], Request] = {
    AppendRequest: AppendRequest(bodies=Bodies(0, b"")),
    PushRequest: PushRequest(),
    PutRequest: PutRequest(),
}


class Caller(NamedTuple):
    """Who asked: the token of a request in the core."""

    inbound: Inbound
    asked: ReceivedRequest

    def response(self, response: Response) -> None:
        self.inbound.answered(self.asked, response)


class OwnCaller:
    """The token in the core of what this process itself asked."""

    inbound = None

    def __init__(self, future: asyncio.Future[Response]) -> None:
        self._future = future

    def response(self, response: Response) -> None:
        if not self._future.done():
            self._future.set_result(response)


class Server(Protocol):
    """What does the requests (`Service`)."""

    def handle(self, request: Request, caller: Caller | OwnCaller) -> bool:
        """Whether it was taken up; False for an append that is refused."""

    def dirty(self, channel: Channel) -> None:
        """Have `channel` flushed when all that is at hand was done."""


class Room:
    """Memory for frames that are not whole yet, of all connections together, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, more: int) -> bool:
        """Take so many bytes more, or give back where negative; False, all the same, where that is above the limit."""
        self.taken += more
        return more <= 0 or self.taken <= self.limit


class Inbound(Channel):
    """Requests of one client or peer. Takes no more of them while the other side does not take its answers.

    A connection whose next frame finds no `Room` is closed. Where there is a ``secret``, so is one whose first request
    does not give it, in a small frame and soon. ``begun`` is asked whether the connection is admitted, ``ended`` told
    when it is gone.
    """

    def __init__(
        self,
        server: Server,
        max_frame_bytes: int,
        room: Room,
        log: RateLimitedLog,
        begun: Callable[[Inbound], bool],
        ended: Callable[[Inbound], None],
        secret: str | None = None,
    ) -> None:
        super().__init__(max_frame_bytes if secret is None else min(max_frame_bytes, _HELLO_BYTES))
        self._max_frame_bytes = max_frame_bytes
        self._server = server
        self._room = room
        self._held_bytes = 0
        self._log = log
        self._begun = begun
        self._ended = ended
        # None once it was given, or where none is wanted.
        self._wanted = secret
        self._hello_timer: asyncio.TimerHandle | None = None
        self._todo: deque[ReceivedRequest] = deque()
        self._outstanding = 0
        self._reads = 0
        self._is_reading = True
        # The answer that refused an append, and appends behind it that wait for that answer.
        self._refusal: Response | None = None
        self._is_refusing = False
        self._held: list[ReceivedRequest] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._begun(self):
            self._log(logging.WARNING, "connection refused", address=self.address, reason="too many connections")
            self.abort()
        elif self._wanted is not None:
            self._hello_timer = asyncio.get_running_loop().call_later(_HELLO_SECONDS, self._give_up_waiting)

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        # Only large frames count: hoarders of memory do not keep others from small requests.
        if not self._hold(max(0, self.wire.buffer_size - _SMALL_BYTES)):
            self.malformed(
                f"expected large frames that are not whole yet to take at most {self._room.limit} bytes at a time, "
                f"found {self._room.taken} with this one: connect again later"
            )
            self.abort()

    def _hold(self, size: int) -> bool:
        more, self._held_bytes = size - self._held_bytes, size
        return self._room.take(more)

    def received(self, came: Sequence[ReceivedRequest | ReceivedResponse]) -> None:
        self._todo.extend(item for item in came if isinstance(item, ReceivedRequest))
        self._go_on()

    def _go_on(self) -> None:
        """Do what was asked, as far as may be unanswered at a time."""
        while self._todo and self._may_take() and self.is_open:
            self._do(self._todo.popleft())
        self._read_or_pause(not self._todo and self._may_take())

    def _may_take(self) -> bool:
        return not self.is_full and self._reads < _MAX_READS and self._outstanding < _MAX_OUTSTANDING

    def _read_or_pause(self, wanted: bool) -> None:
        if wanted is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _do(self, asked: ReceivedRequest) -> None:
        request = asked.request
        if self._wanted is not None and not self._is_let_in(asked, self._wanted):
            return
        if isinstance(request, Refusal):
            self._refuse(asked, request)
            return
        if isinstance(request, AppendRequest) and self._is_behind_refused(asked, request):
            return
        self._outstanding += 1
        self._reads += isinstance(request, (GetRequest, ReadRequest))
        shell = _SHELLS.get(type(request))
        caller = Caller(self, asked if shell is None else asked._replace(request=shell))
        if not self._server.handle(request, caller):
            self._is_refusing = True

    def _is_let_in(self, asked: ReceivedRequest, secret: str) -> bool:
        """Whether that request gives the secret; the connection of one that does not is closed."""
        if is_same(asked.secret, secret):
            self._wanted = None
            self._stop_waiting()
            self.wire.set_max_frame_size(self._max_frame_bytes)
            return True
        found = "none" if asked.secret is None else "another"
        reason = f"expected the secret of this node in the first request, found {found}: connect with it"
        self._refuse(asked, Refusal(NO_PERMISSION, reason))
        self._log(logging.WARNING, "connection refused", address=self.address, reason=reason)
        self.close()
        return False

    def _give_up_waiting(self) -> None:
        reason = f"expected the secret of this node in {_HELLO_SECONDS:.0f} s, found no request"
        self._log(logging.WARNING, "connection refused", address=self.address, reason=reason)
        self.abort()

    def _stop_waiting(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()

    def _is_behind_refused(self, asked: ReceivedRequest, request: AppendRequest) -> bool:
        """Refuses an append that follows a refused one in a pipeline: it must not overtake it."""
        if request.is_restart:
            self._is_refusing, self._refusal = False, None
        if not self._is_refusing:
            return False
        if self._refusal is None:
            self._held.append(asked._replace(request=_SHELLS[type(request)]))
        else:
            self._send_refusal(asked, self._refusal)
        return True

    def _send_refusal(self, asked: ReceivedRequest, refusal: Response) -> None:
        """Refuses an append as the one before it, be it a put or not."""
        kind = PutResponse if isinstance(asked.request, PutRequest) else AppendResponse
        if not isinstance(refusal, kind):
            refusal = kind(**{field.name: getattr(refusal, field.name) for field in fields(Response)})
        self._send(asked, refusal)

    def answered(self, asked: ReceivedRequest, response: Response) -> None:
        """Send the answer to one of its requests."""
        self._outstanding -= 1
        self._reads -= isinstance(asked.request, (GetRequest, ReadRequest))
        self._send(asked, response)
        if self._is_refusing and self._refusal is None and _refuses(asked, response):
            self._refusal = response
            held, self._held = self._held, []
            for behind in held:
                self._send_refusal(behind, response)
        if not self._is_reading:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _send(self, asked: ReceivedRequest, response: Response) -> None:
        if asked.is_one_way or not self.is_open:
            return
        try:
            parts = self.wire.respond(asked, response)
        except EncodeError as error:
            self._log(logging.ERROR, "answer not sent", address=self.address, reason=str(error))
            parts = self.wire.refuse(asked, Refusal(SYSTEM_ERROR, str(error)))
        self.write(parts)
        self._server.dirty(self)

    def _refuse(self, asked: ReceivedRequest, refusal: Refusal) -> None:
        if not asked.is_one_way:
            self.write(self.wire.refuse(asked, refusal))
            self._server.dirty(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def malformed(self, error: str) -> None:
        self._log(logging.WARNING, "connection closed", address=self.address, reason=error)

    def lost(self) -> None:
        self._stop_waiting()
        self._todo.clear()
        self._held.clear()
        self._hold(0)
        self._ended(self)


def _refuses(asked: ReceivedRequest, response: Response) -> bool:
    """Whether it is the answer to an append that was refused, and so surely is not in the log."""
    is_append = isinstance(asked.request, AppendRequest)
    return is_append and response.code != ResponseCode.SUCCESS and response.code not in _OUTCOME_UNKNOWN
