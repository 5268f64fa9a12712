"""One TCP connection, of either side: decodes received messages, and collects writes."""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.hello import MemberHello
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire import ReceivedRequest, ReceivedResponse, WireConnection, WireError
from pyspark_dledger.raft.wire.framing import LAST_BLOCK_BYTES

# The size of both socket buffers in bytes; the system's limit may be lower.
_SOCKET_BYTES = 2 * 1024 * 1024
# A connection with more unsent bytes than the first accepts no requests until there are fewer than the second.
HIGH_WATER = 1024 * 1024
LOW_WATER = 256 * 1024
# Parts of frames up to this size are joined before they are written: a copy costs less than a call.
_JOINED = 64 * 1024


class Channel(asyncio.BufferedProtocol):
    """Reads messages, and sends the buffers of all `write` calls with the next `flush`."""

    def __init__(
        self, max_frame_bytes: int, secret: str | None = None, hello: Callable[[], MemberHello] | None = None
    ) -> None:
        member = None if hello is None else lambda: hello().text()
        self.wire = WireConnection(max_frame_size=max_frame_bytes, secret=secret, member=member)
        self.host: str | None = None
        self.address = "an unknown address"
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_size = 0
        # Flushed buffers that the transport has not taken.
        self._pieces: deque[Buffer] = deque()
        self._pieces_size = 0
        self._is_ending = False
        self.is_full = False

    @abstractmethod
    def received(self, message: ReceivedRequest | ReceivedResponse) -> None:
        """Handle one request or response; they are in the order of their arrival."""

    @abstractmethod
    def malformed(self, error: str) -> None:
        """The other side sent unreadable bytes; the connection is aborted next."""

    @abstractmethod
    def lost(self) -> None:
        """The connection is lost or closed."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self._is_ending

    @property
    def unsent(self) -> int:
        """Written bytes that were not yet passed to the system."""
        own = self._out_size + self._pieces_size
        return own if self._transport is None else own + self._transport.get_write_buffer_size()

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send these buffers, in order, with the next `flush`."""
        self._out += parts
        for part in parts:
            self._out_size += len(part)

    def flush(self) -> None:
        """Send all written buffers. Those that the transport does not take are copied."""
        parts, self._out, self._out_size = self._out, [], 0
        if self._transport is None or self._transport.is_closing():
            return
        small: list[Buffer] = []
        for part in parts:
            if len(part) <= _JOINED:
                small.append(part)
                continue
            # A large part is sent without a copy.
            self._send_joined(small)
            small = []
            # A transport of TLS encrypts all that it gets at once.
            for start in range(0, len(part), LAST_BLOCK_BYTES):
                self._send_piece(memoryview(part)[start : start + LAST_BLOCK_BYTES])
        self._send_joined(small)

    def _send_joined(self, parts: list[Buffer]) -> None:
        if parts:
            self._send_piece(parts[0] if len(parts) == 1 else b"".join(parts))

    def _send_piece(self, piece: Buffer) -> None:
        assert self._transport is not None
        if self.is_full or self._pieces:
            self._pieces.append(bytes(piece))
            self._pieces_size += len(piece)
        else:
            self._transport.write(piece)

    def close(self) -> None:
        """Close the connection after sending all written buffers."""
        self.flush()
        self._is_ending = True
        if self._transport is not None and not self._pieces:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def can_receive(self) -> bool:
        """Whether the next message may be handled."""
        return self.is_open

    def read_messages(self) -> None:
        """Handle the messages that are complete."""
        try:
            while self.can_receive() and (message := self.wire.next_message()) is not None:
                self.received(message)
        except WireError as error:
            self.malformed(str(error))
            self.abort()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the same methods, but another base class.
        self._transport = cast("asyncio.Transport", transport)
        if peer := transport.get_extra_info("peername"):
            self.host = host_of(peer)
            self.address = str(Address(*peer[:2]))
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        _set_up(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        self._pieces.clear()
        self._out_size = self._pieces_size = 0
        self.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.wire.add(nbytes)
        self.read_messages()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        # Not in this callback: asyncio's loop ends a connection twice that is closed there.
        asyncio.get_running_loop().call_soon(self.resumed)

    def resumed(self) -> None:
        """Send what waited for the transport."""
        while self._pieces and not self.is_full and self._transport is not None:
            piece = self._pieces.popleft()
            self._pieces_size -= len(piece)
            self._transport.write(piece)
        if self._is_ending and not self._pieces and self._transport is not None:
            self._transport.close()


def host_of(peer: tuple[Any, ...]) -> str:
    """The network address of a socket address; an IPv4 one also where IPv6 sockets accept both."""
    host: str = peer[0]
    return host.removeprefix("::ffff:")


def _set_up(sock: socket.socket | None) -> None:
    if sock is None:
        return
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        # macOS rejects sizes above its limit.
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
    # Detects a side that vanished without closing.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
