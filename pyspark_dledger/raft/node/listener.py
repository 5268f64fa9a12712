"""A TLS listener that logs failed handshakes, which asyncio's own server does not report."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from pyspark_dledger.common.log_records import RateLimitedLog
from pyspark_dledger.raft.peers import Address

BACKLOG = 256
_TLS_SECONDS = 10.0
# Seconds until the next try after a failed accept, for example without a free file descriptor.
_RETRY_SECONDS = 1.0

_NewProtocol = Callable[[], asyncio.BaseProtocol]


async def listen_with_tls(
    new_protocol: _NewProtocol, address: Address, tls: ssl.SSLContext, log: RateLimitedLog
) -> TlsListener:
    """Listen at `address`, or at all addresses of a host name. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, socket_address in dict.fromkeys((each[0], each[4]) for each in found):
            sockets.append(socket.create_server(socket_address, family=family, backlog=BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return TlsListener(new_protocol, sockets, tls, log)


class TlsListener:
    """Accepts connections. A failed handshake is logged with address and reason, and its connection closed."""

    def __init__(
        self, new_protocol: _NewProtocol, sockets: list[socket.socket], tls: ssl.SSLContext, log: RateLimitedLog
    ) -> None:
        self.sockets = sockets
        self._new_protocol = new_protocol
        self._tls = tls
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        for each in sockets:
            self._run(self._accept(each))

    def close(self) -> None:
        """Stop accepting, and abort unfinished handshakes."""
        for task in self._tasks:
            task.cancel()
        for each in self.sockets:
            asyncio.get_running_loop().remove_reader(each)
            each.close()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                self._log(logging.ERROR, "connection not accepted", reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._run(self._shake_hands(accepted, str(Address(peer[0], peer[1]))))

    async def _shake_hands(self, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._new_protocol, accepted, ssl=self._tls, ssl_handshake_timeout=_TLS_SECONDS
            )
        except OSError as error:
            accepted.close()
            reason = str(error) or type(error).__name__
            self._log(logging.WARNING, "handshake refused", address=address, reason=reason)
