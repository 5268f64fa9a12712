"""A listener for plain and TLS connections that limits descriptors and handshakes, and logs failed handshakes."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress

from pyspark_dledger.common.log_records import RateLimitedLog
from pyspark_dledger.raft.channel import host_of
from pyspark_dledger.raft.node.access import Rejections
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.tls import TlsContext

_BACKLOG = 256
# Connections that are accepted before other work goes on.
_ACCEPTED = 16
# With more unfinished handshakes the oldest is aborted. Each takes 270 KB.
_MAX_HANDSHAKES = 64
# Seconds until the next try after a failed accept, for example without a free file descriptor.
_RETRY_SECONDS = 1.0
# File descriptors that connections leave free, at most half of all: the log has at most 128 open files.
_FREE_DESCRIPTORS = 256

_NewProtocol = Callable[[], asyncio.BaseProtocol]


async def listen(
    new_protocol: _NewProtocol,
    address: Address,
    log: RateLimitedLog,
    tls: TlsContext | None = None,
    handshake_seconds: float = 10.0,
    may_use_reserve: Callable[[str], bool] = lambda _: False,
    rejected: Rejections | None = None,
) -> Listener:
    """Listen at `address`, or at all addresses of a host name. Raises OSError.

    Connections leave file descriptors free for other files; half of those are for hosts that `may_use_reserve`.
    """
    sockets = await listening_sockets(address)
    return Listener(new_protocol, sockets, log, tls, handshake_seconds, may_use_reserve, rejected or Rejections())


async def listening_sockets(address: Address) -> list[socket.socket]:
    """Sockets that listen at `address`, or at all addresses of a host name. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, socket_address in dict.fromkeys((each[0], each[4]) for each in found):
            sockets.append(socket.create_server(socket_address, family=family, backlog=_BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


class Listener:
    """Accepts connections. A failed handshake is logged with address and reason, and its connection closed."""

    def __init__(
        self,
        new_protocol: _NewProtocol,
        sockets: list[socket.socket],
        log: RateLimitedLog,
        tls: TlsContext | None,
        handshake_seconds: float,
        may_use_reserve: Callable[[str], bool],
        rejected: Rejections,
    ) -> None:
        self.sockets = sockets
        self._rejected = rejected
        self._new_protocol = new_protocol
        self._log = log
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._may_use_reserve = may_use_reserve
        self._loop = asyncio.get_running_loop()
        # Unfinished handshakes, oldest first.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        for each in sockets:
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Stop accepting, and abort unfinished handshakes."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._log(logging.ERROR, "connection not accepted", reason=str(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(_RETRY_SECONDS, self._accept_again, listening)
                return
            self._accepted(accepted, host_of(peer), str(Address(*peer[:2])))

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _accepted(self, accepted: socket.socket, host: str, address: str) -> None:
        if not self._has_descriptor(accepted.fileno(), host):
            accepted.close()
            self._rejected.connections["descriptors"] += 1
            self._log(logging.WARNING, "connection refused", address=address, reason="too few file descriptors")
            return
        accepted.setblocking(False)
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._tasks) >= _MAX_HANDSHAKES:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._connect(accepted, address))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _has_descriptor(self, descriptor: int, host: str) -> bool:
        """Whether enough descriptors stay free. A new one has the lowest free number."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return True
        free = min(_FREE_DESCRIPTORS, limit // 2)
        return descriptor < limit - free or (descriptor < limit - free // 2 and self._may_use_reserve(host))

    async def _connect(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._new_protocol,
                accepted,
                ssl=None if self._tls is None else self._tls(),
                ssl_handshake_timeout=self._handshake_seconds if self._tls is not None else None,
            )
        except OSError as error:
            accepted.close()
            self._rejected.connections["handshake"] += 1
            reason = str(error) or type(error).__name__
            self._log(logging.WARNING, "handshake refused", address=address, reason=reason)
