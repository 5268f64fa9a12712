"""Where a node listens with TLS: asyncio's own server says nothing of a handshake that fails."""

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
# Seconds until the next try where a connection cannot be accepted, such as without a file descriptor for it.
_RETRY_SECONDS = 1.0

_NewProtocol = Callable[[], asyncio.BaseProtocol]


async def listen_with_tls(
    new_protocol: _NewProtocol, address: Address, tls: ssl.SSLContext, log: RateLimitedLog
) -> TlsListener:
    """Listen at `address`, each of them where a name has several. Raises OSError where that is not possible."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, place in dict.fromkeys((each[0], each[4]) for each in found):
            sockets.append(socket.create_server(place, family=family, backlog=BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return TlsListener(new_protocol, sockets, tls, log)


class TlsListener:
    """Accepts connections; one whose handshake fails is closed, and logged with its address and the reason."""

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
        """Accept no more, and end the connections whose handshake is not done."""
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
