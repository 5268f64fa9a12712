"""A small HTTP server for metrics and health: GET only, in a thread of its own, with limits for hostile clients."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

from pyspark_dledger.common.log_records import record

# The limit of a request's head in bytes, and of a whole connection in seconds.
_MAX_HEAD = 8192
_MAX_SECONDS = 5.0
# With more connections the oldest is closed.
_MAX_CONNECTIONS = 16
# Seconds between two connections: requests cannot take much of the interpreter's time.
_ACCEPT_SECONDS = 0.01
_RETRY_SECONDS = 1.0
# Method and path; a query is ignored.
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([^ ?]+)(?:\?[^ ]*)? HTTP/1\.[01](?:\r\n|$)")


class HttpResponse(NamedTuple):
    """A response; the connection is closed after it."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def encoded(self) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append("Allow: GET")
        return "\r\n".join((*lines, "", "")).encode() + self.body


Page = Callable[[], Awaitable[HttpResponse]]


class HttpServer:
    """Serves pages by path. Each connection gets one response."""

    def __init__(self, sockets: Sequence[socket.socket], pages: Mapping[str, Page]) -> None:
        self._sockets = sockets
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._is_stopping = asyncio.Event()
        # Connections, oldest first.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._thread = threading.Thread(target=self._run, name="Metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close all connections, and wait for the thread, unless a disk hangs."""
        self._loop.call_soon_threadsafe(self._is_stopping.set)
        self._thread.join(_MAX_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        accepting = [asyncio.ensure_future(self._accept(each)) for each in self._sockets]
        await self._is_stopping.wait()
        for task in (*accepting, *self._tasks):
            task.cancel()
        await asyncio.gather(*accepting, *self._tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if len(self._tasks) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._tasks))
                del self._tasks[oldest]
                oldest.cancel()
            task = asyncio.ensure_future(self._handle(accepted))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
            await asyncio.sleep(_ACCEPT_SECONDS)

    async def _handle(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, asyncio.TimeoutError):
            connection.setblocking(False)
            await asyncio.wait_for(self._respond(connection), _MAX_SECONDS)

    async def _respond(self, connection: socket.socket) -> None:
        head = bytearray()
        while b"\r\n\r\n" not in head and len(head) <= _MAX_HEAD:
            data = await self._loop.sock_recv(connection, _MAX_HEAD)
            if not data:
                return
            head += data
        response = await self._response(bytes(head))
        await self._loop.sock_sendall(connection, response.encoded())
        connection.shutdown(socket.SHUT_WR)
        # Closing with unread bytes would reset the connection, and lose the response.
        while await self._loop.sock_recv(connection, _MAX_HEAD):
            pass

    async def _response(self, head: bytes) -> HttpResponse:
        request, end, _ = head.partition(b"\r\n\r\n")
        if not end or len(request) > _MAX_HEAD:
            return _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        match = _REQUEST_LINE.match(request)
        if match is None:
            return _error(HTTPStatus.BAD_REQUEST)
        method, path = match[1], match[2].decode("latin-1")
        if path not in self._pages:
            return _error(HTTPStatus.NOT_FOUND)
        if method != b"GET":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            return await self._pages[path]()
        except Exception as error:  # noqa: BLE001  # a defect of a page must not look like a node that hangs
            record(logging.ERROR, "page failed", page=path, reason=repr(error))
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)


def _error(status: HTTPStatus) -> HttpResponse:
    return HttpResponse(status, f"{status.phrase}\n".encode())
