"""One TCP connection, of either side: decodes received messages, and collects writes."""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire import ReceivedRequest, ReceivedResponse, WireConnection, WireError

# The size of both socket buffers in bytes; the system's limit may be lower.
_SOCKET_BYTES = 2 * 1024 * 1024
# A connection with more unsent bytes than the first accepts no requests until there are fewer than the second.
HIGH_WATER = 1024 * 1024
LOW_WATER = 256 * 1024
# Parts of frames up to this size are joined before they are written: a copy costs less than a call.
_JOINED = 64 * 1024


class Channel(asyncio.BufferedProtocol):
    """Reads messages, and sends the buffers of all `write` calls with the next `flush`."""

    def __init__(self, max_frame_bytes: int, secret: str | None = None) -> None:
        self.wire = WireConnection(max_frame_size=max_frame_bytes, secret=secret)
        self.address = "an unknown address"
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self.is_full = False

    @abstractmethod
    def received(self, messages: Sequence[ReceivedRequest | ReceivedResponse]) -> None:
        """Handle requests and responses, in the order of their arrival."""

    @abstractmethod
    def malformed(self, error: str) -> None:
        """The other side sent unreadable bytes; the connection is aborted next."""

    @abstractmethod
    def lost(self) -> None:
        """The connection is lost or closed."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes that were flushed but not yet passed to the system."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send these buffers, in order, with the next `flush`."""
        self._out += parts

    def flush(self) -> None:
        """Send all written buffers."""
        parts, self._out = self._out, []
        if self._transport is None or self._transport.is_closing():
            return
        small: list[Buffer] = []
        for part in parts:
            if len(part) <= _JOINED:
                small.append(part)
                continue
            # A large part is sent without a copy.
            self._write_joined(small)
            small = []
            self._transport.write(part)
        self._write_joined(small)

    def _write_joined(self, parts: list[Buffer]) -> None:
        if parts and self._transport is not None:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """Close the connection after sending all written buffers."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the same methods, but another base class.
        self._transport = cast(asyncio.Transport, transport)
        self.address = _address_of(transport)
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        _set_up(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        self.lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wire.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            messages = self.wire.buffer_updated(nbytes)
        except WireError as error:
            self.malformed(str(error))
            self.abort()
            return
        if messages:
            self.received(messages)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False


def _address_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    if not peer:
        return "an unknown address"
    return str(Address(*peer[:2]))


def _set_up(sock: socket.socket | None) -> None:
    if sock is None:
        return
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        # macOS rejects sizes above its limit.
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
    # Detects a side that vanished without closing.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
