"""The one connection of a node to a peer: made anew whenever it is lost, JSON until the peer offers more."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence

from pyspark_dledger.common.log_records import record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.loops import cancel
from pyspark_dledger.raft.messages import MetadataRequest, Request, Response, TransferRequest
from pyspark_dledger.raft.node.channel import Channel
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire import EncodeError, ReceivedRequest, ReceivedResponse, Refusal

# As DLedgerRpcNettyService: milliseconds until a request counts as unanswered.
_TIME_OUT = 3000
_TRANSFER_TIME_OUT = 10000
_CONNECT_SECONDS = 3.0
_FIRST_WAIT, _MAX_WAIT = 0.05, 0.5
# Requests that wait for the connection; a core sends few before anything was answered.
_MAX_WAITING = 256
# Bytes that may be unsent to one peer.
_MAX_UNSENT = 64 * 1024 * 1024

# Told the token of a request, and its answer: None if there will be none.
OnResponse = Callable[[int, Response | None], None]


class Link:
    """Sends requests to one peer, and gives each token its answer exactly once, never from within `send`."""

    def __init__(
        self,
        peer_id: str,
        address: Address,
        hello: MetadataRequest,
        tls: ssl.SSLContext | None,
        max_frame_bytes: int,
        answered: OnResponse,
        is_ours: Callable[[str, bool], None],
        secret: str | None = None,
    ) -> None:
        self.peer_id = peer_id
        self._address = address
        self._hello = hello
        self._tls = tls
        self._max_frame_bytes = max_frame_bytes
        self._answered = answered
        self._is_ours = is_ours
        self._secret = secret
        self._channel: _PeerChannel | None = None
        self._waiting: deque[tuple[int, Request]] = deque()
        self._is_connecting = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._is_connecting = True
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    async def stop(self) -> None:
        await cancel([self._task] if self._task is not None else [])
        self._drop_channel()

    @property
    def is_connected(self) -> bool:
        return self._channel is not None and self._channel.is_ready

    def send(self, token: int, request: Request, now: int) -> None:
        """Have it sent with the next `flush`; `now` in milliseconds."""
        channel = self._channel
        if channel is not None and channel.is_ready:
            channel.send(token, request, now)
        elif self._is_connecting and len(self._waiting) < _MAX_WAITING:
            self._waiting.append((token, request))
        else:
            self._fail(token)

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def expire(self, now: int) -> None:
        """Give up on what is unanswered for too long, and on the connection if nothing came over it meanwhile."""
        if self._channel is not None:
            self._channel.expire(now)

    def drop_unsent(self) -> None:
        """Let nothing be sent that waits: it may be views of a log that is about to change."""
        self._fail_waiting()
        if self._channel is not None and self._channel.unsent:
            self._channel.abort()

    def _fail(self, token: int) -> None:
        asyncio.get_running_loop().call_soon(self._answered, token, None)

    async def _stay_connected(self) -> None:
        wait, is_down = _FIRST_WAIT, False
        while True:
            try:
                lost = await self._connect()
            except (OSError, asyncio.TimeoutError, _HelloError) as error:
                if not is_down:
                    reason = str(error) or type(error).__name__
                    record(logging.WARNING, "peer unreachable", peer=self.peer_id, address=self._address, reason=reason)
                is_down = True
            else:
                wait, is_down = _FIRST_WAIT, False
                await lost.wait()
                record(logging.WARNING, "peer disconnected", peer=self.peer_id)
            self._drop_channel()
            await asyncio.sleep(wait)
            wait = min(2 * wait, _MAX_WAIT)

    async def _connect(self) -> asyncio.Event:
        """Connect and say hello; the event comes when the connection is lost."""
        loop = asyncio.get_running_loop()
        self._is_connecting = True
        host = self._address.host
        made = loop.create_connection(
            lambda: _PeerChannel(self._max_frame_bytes, self._answered, self._secret),
            host,
            self._address.port,
            ssl=self._tls,
            server_hostname=host if self._tls is not None else None,
        )
        _, channel = await asyncio.wait_for(made, _CONNECT_SECONDS)
        self._channel = channel
        await asyncio.wait_for(channel.say_hello(self._hello), _CONNECT_SECONDS)
        self._is_connecting = False
        is_ours = channel.wire.is_binary
        record(logging.INFO, "peer connected", peer=self.peer_id, address=self._address, binary=is_ours)
        self._is_ours(self.peer_id, is_ours)
        now = int(loop.time() * 1000)
        while self._waiting:
            channel.send(*self._waiting.popleft(), now)
        channel.flush()
        return channel.gone

    def _drop_channel(self) -> None:
        self._is_connecting = False
        if self._channel is not None:
            self._channel.abort()
            self._channel = None
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        while self._waiting:
            self._fail(self._waiting.popleft()[0])


class _HelloError(Exception):
    """A peer that is not what the list of peers says."""


class _PeerChannel(Channel):
    """The connection itself, and what is unanswered on it."""

    def __init__(self, max_frame_bytes: int, answered: OnResponse, secret: str | None) -> None:
        super().__init__(max_frame_bytes, secret)
        self.is_ready = False
        self.gone = asyncio.Event()
        self._answered = answered
        # Token and time of sending of each request, by its opaque, oldest first.
        self._asked: dict[int, tuple[int, int, int]] = {}
        self._hello: asyncio.Future[Response | Refusal] | None = None
        self._hello_opaque = -1
        self._last_received = 0

    async def say_hello(self, hello: MetadataRequest) -> None:
        self._hello = asyncio.get_running_loop().create_future()
        self._hello_opaque, parts = self.wire.request(hello)
        self.write(parts)
        self.flush()
        response = await self._hello
        if isinstance(response, Refusal) or response.code != ResponseCode.SUCCESS:
            found = response.remark if isinstance(response, Refusal) else f"code {response.code}"
            raise _HelloError(f"expected member {hello.remote_id} of group {hello.group}, found who answers {found}")
        self.is_ready = True

    def send(self, token: int, request: Request, now: int) -> None:
        if not self.is_open or self.unsent > _MAX_UNSENT:
            asyncio.get_running_loop().call_soon(self._answered, token, None)
            return
        try:
            opaque, parts = self.wire.request(request)
        except EncodeError as error:
            record(logging.ERROR, "request not sent", address=self.address, reason=str(error))
            asyncio.get_running_loop().call_soon(self._answered, token, None)
            return
        time_out = _TRANSFER_TIME_OUT if isinstance(request, TransferRequest) else _TIME_OUT
        self._asked[opaque] = (token, now, now + time_out)
        self.write(parts)

    def expire(self, now: int) -> None:
        late = [opaque for opaque, (_, _, until) in self._asked.items() if until <= now]
        is_silent = False
        for opaque in late:
            token, sent, _ = self._asked.pop(opaque)
            self.wire.forget(opaque)
            is_silent = is_silent or self._last_received < sent
            self._answered(token, None)
        if is_silent:
            record(logging.WARNING, "peer silent", address=self.address, unsent=self.unsent)
            self.abort()

    def received(self, came: Sequence[ReceivedRequest | ReceivedResponse]) -> None:
        self._last_received = int(asyncio.get_running_loop().time() * 1000)
        for item in came:
            if isinstance(item, ReceivedRequest):
                self.malformed("a request on a connection that only asks")
                self.abort()
                return
            self._take(item)

    def _take(self, item: ReceivedResponse) -> None:
        if item.opaque == self._hello_opaque:
            if self._hello is not None and not self._hello.done():
                self._hello.set_result(item.response)
            return
        asked = self._asked.pop(item.opaque, None)
        if asked is not None:
            self._answered(asked[0], None if isinstance(item.response, Refusal) else item.response)

    def malformed(self, error: str) -> None:
        record(logging.WARNING, "peer closed for malformed frames", address=self.address, reason=error)

    def lost(self) -> None:
        self.is_ready = False
        self.gone.set()
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(ConnectionResetError("the connection was closed before it answered"))
        asked, self._asked = self._asked, {}
        for token, _, _ in asked.values():
            self._answered(token, None)
