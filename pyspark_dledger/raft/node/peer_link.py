"""A node's connection to one peer: reconnects when it is lost, and uses JSON until the peer accepts binary."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pyspark_dledger.common.log_records import record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.channel import Channel, host_of
from pyspark_dledger.raft.hello import MemberHello, read_hello
from pyspark_dledger.raft.loops import cancel
from pyspark_dledger.raft.messages import MetadataRequest, Request, Response, TransferRequest
from pyspark_dledger.raft.node.access import is_loopback
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.tls import TlsContext
from pyspark_dledger.raft.wire import EncodeError, ReceivedRequest, ReceivedResponse, Rejection, WireError

# Timeouts of DLedgerRpcNettyService in milliseconds.
_TIMEOUT = 3000
_TRANSFER_TIMEOUT = 10000
_CONNECT_SECONDS = 3.0
_FIRST_WAIT, _MAX_WAIT = 0.05, 0.5
# The longest pause after a rejection: it has to be corrected first.
_MAX_REJECTED_WAIT = 5.0
# Requests that wait for the connection; a core sends few requests without responses.
_MAX_WAITING = 256
# The maximum of unsent bytes.
_MAX_UNSENT = 64 * 1024 * 1024

# Called with the token of a request and its response, or None.
OnResponse = Callable[[int, Response | None], None]


class PeerLink:
    """Sends requests to one peer. Reports each token's outcome exactly once, never during `send`."""

    def __init__(
        self,
        peer_id: str,
        address: Address,
        hello: MetadataRequest,
        tls: TlsContext | None,
        max_frame_bytes: int,
        on_response: OnResponse,
        on_connected: Callable[[str, bool, MemberHello | None], None],
        secret: str | None = None,
        own_hello: Callable[[], MemberHello] | None = None,
        own_host: str | None = None,
        on_rejected: Callable[[MemberHello], None] = lambda _: None,
    ) -> None:
        self.peer_id = peer_id
        self.address = address
        self._hello = hello
        self._tls = tls
        self._max_frame_bytes = max_frame_bytes
        self._on_response = on_response
        # Called with the peer's id, whether it uses the binary dialect, and its hello.
        self._on_connected = on_connected
        self._secret = secret
        self._own_hello = own_hello
        # The network address to connect from: peers know this member by it.
        self._own_host = own_host
        # Called with the hello of a peer that rejects this member.
        self._on_rejected = on_rejected
        self._channel: _PeerChannel | None = None
        # Why the peer is no member of this group; None if it is one, or is not reachable.
        self.mismatch: str | None = None
        # The network addresses of the peer's host at the last lookup.
        self.hosts: frozenset[str] = frozenset()
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
        """Send a request with the next `flush`; `now` in milliseconds."""
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
        """Time out old requests, and abort the connection if nothing was received in the meantime."""
        if self._channel is not None:
            self._channel.expire(now)

    def drop_unsent(self) -> None:
        """Drop unsent requests: they may be views of a log that is about to change."""
        self._fail_waiting()
        if self._channel is not None and self._channel.unsent:
            self._channel.abort()

    def _fail(self, token: int) -> None:
        asyncio.get_running_loop().call_soon(self._on_response, token, None)

    async def _stay_connected(self) -> None:
        wait, reported = _FIRST_WAIT, ""
        while True:
            try:
                lost = await self._connect()
            except (OSError, asyncio.TimeoutError, _HelloError) as error:
                reason = str(error) or type(error).__name__
                if reason != reported:
                    record(logging.WARNING, "peer unreachable", peer=self.peer_id, address=self.address, reason=reason)
                reported = reason
                self.mismatch = reason if isinstance(error, _HelloError) else None
                if self._channel is not None and self._channel.hello is not None and self.mismatch is not None:
                    self._on_rejected(self._channel.hello)
            else:
                wait, reported, self.mismatch = _FIRST_WAIT, "", None
                await lost.wait()
                record(logging.WARNING, "peer disconnected", peer=self.peer_id)
            self._drop_channel()
            await asyncio.sleep(wait)
            wait = min(2 * wait, _MAX_WAIT if self.mismatch is None else _MAX_REJECTED_WAIT)

    async def _connect(self) -> asyncio.Event:
        """Connect and send the hello. The event is set when the connection is lost."""
        loop = asyncio.get_running_loop()
        self._is_connecting = True
        host, port = self.address
        found = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), _CONNECT_SECONDS)
        self.hosts = frozenset(host_of(each[4]) for each in found)
        connecting = loop.create_connection(
            lambda: _PeerChannel(self._max_frame_bytes, self._on_response, self._secret, self._own_hello),
            host,
            port,
            ssl=None if self._tls is None else self._tls(),
            server_hostname=host if self._tls is not None else None,
            local_addr=self._source(found),
        )
        _, channel = await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        self._channel = channel
        await asyncio.wait_for(channel.say_hello(self._hello), _CONNECT_SECONDS)
        self._is_connecting = False
        is_binary = channel.wire.is_binary
        record(logging.INFO, "peer connected", peer=self.peer_id, address=self.address, binary=is_binary)
        self._on_connected(self.peer_id, is_binary, channel.hello)
        now = int(loop.time() * 1000)
        while self._waiting:
            channel.send(*self._waiting.popleft(), now)
        channel.flush()
        return channel.gone

    def _source(self, found: Sequence[tuple[Any, ...]]) -> tuple[str, int] | None:
        """The local address to connect from, if the peer has one of the same family that it can reach."""
        if self._own_host is None or is_loopback(self._own_host) > all(is_loopback(each[4][0]) for each in found):
            return None
        family = socket.AF_INET6 if ":" in self._own_host else socket.AF_INET
        return (self._own_host, 0) if any(each[0] == family for each in found) else None

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
    """The peer is not the member that the list of peers names."""


class _PeerChannel(Channel):
    """The connection and its outstanding requests."""

    def __init__(
        self,
        max_frame_bytes: int,
        on_response: OnResponse,
        secret: str | None,
        own_hello: Callable[[], MemberHello] | None,
    ) -> None:
        super().__init__(max_frame_bytes, secret, own_hello)
        self._own_hello = own_hello
        self.is_ready = False
        self.gone = asyncio.Event()
        self._on_response = on_response
        # Token, send time and deadline of each request by its opaque, oldest first.
        self._outstanding: dict[int, tuple[int, int, int]] = {}
        self.hello: MemberHello | None = None
        self._hello: asyncio.Future[ReceivedResponse] | None = None
        self._hello_opaque = -1
        self._last_received = 0

    async def say_hello(self, hello: MetadataRequest) -> None:
        self._hello = asyncio.get_running_loop().create_future()
        self._hello_opaque, parts = self.wire.request(hello)
        self.write(parts)
        self.flush()
        received = await self._hello
        response = received.response
        if isinstance(response, Rejection) or response.code != ResponseCode.SUCCESS:
            found = response.remark if isinstance(response, Rejection) else f"code {response.code}"
            with suppress(_HelloError):
                self._check_hello(received.member, hello.remote_id)
            raise _HelloError(f"member {hello.remote_id} of group {hello.group} refuses this member: {found}")
        self._check_hello(received.member, hello.remote_id)
        self.is_ready = True

    def _check_hello(self, text: str | None, peer_id: str | None) -> None:
        """Raises _HelloError for a member of another group. Java members say nothing."""
        if text is None or self._own_hello is None:
            return
        try:
            self.hello = read_hello(text)
            reason = self._own_hello().mismatch(self.hello, peer_id)
        except WireError as error:
            reason = str(error)
        if reason is not None:
            raise _HelloError(reason)

    def send(self, token: int, request: Request, now: int) -> None:
        if not self.is_open or self.unsent > _MAX_UNSENT:
            asyncio.get_running_loop().call_soon(self._on_response, token, None)
            return
        try:
            opaque, parts = self.wire.request(request)
        except EncodeError as error:
            record(logging.ERROR, "request not sent", address=self.address, reason=str(error))
            asyncio.get_running_loop().call_soon(self._on_response, token, None)
            return
        timeout = _TRANSFER_TIMEOUT if isinstance(request, TransferRequest) else _TIMEOUT
        self._outstanding[opaque] = (token, now, now + timeout)
        self.write(parts)

    def expire(self, now: int) -> None:
        expired = [opaque for opaque, (_, _, deadline) in self._outstanding.items() if deadline <= now]
        is_silent = False
        for opaque in expired:
            token, sent, _ = self._outstanding.pop(opaque)
            self.wire.forget(opaque)
            is_silent = is_silent or self._last_received < sent
            self._on_response(token, None)
        if is_silent:
            record(logging.WARNING, "peer silent", address=self.address, unsent=self.unsent)
            self.abort()

    def buffer_updated(self, nbytes: int) -> None:
        self._last_received = int(asyncio.get_running_loop().time() * 1000)
        super().buffer_updated(nbytes)

    def received(self, message: ReceivedRequest | ReceivedResponse) -> None:
        if isinstance(message, ReceivedRequest):
            self.malformed("a request on a connection for responses only")
            self.abort()
        else:
            self._handle_response(message)

    def _handle_response(self, received: ReceivedResponse) -> None:
        if received.opaque == self._hello_opaque:
            if self._hello is not None and not self._hello.done():
                self._hello.set_result(received)
            return
        outstanding = self._outstanding.pop(received.opaque, None)
        if outstanding is not None:
            response = received.response
            self._on_response(outstanding[0], None if isinstance(response, Rejection) else response)

    def malformed(self, error: str) -> None:
        record(logging.WARNING, "peer closed for malformed frames", address=self.address, reason=error)

    def lost(self) -> None:
        self.is_ready = False
        self.gone.set()
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(ConnectionResetError("the connection was closed before the response"))
        outstanding, self._outstanding = self._outstanding, {}
        for token, _, _ in outstanding.values():
            self._on_response(token, None)
