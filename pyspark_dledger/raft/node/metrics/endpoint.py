"""``/metrics``, ``/healthz`` and ``/readyz`` of a node."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from pyspark_dledger.raft.node.metrics.exposition import CONTENT_TYPE, Exposition, disk_room
from pyspark_dledger.raft.node.metrics.http_server import HttpResponse, HttpServer
from pyspark_dledger.raft.node.metrics.watched_node import Values, WatchedNode

T = TypeVar("T")

# A node whose event loop does not respond for so many seconds is not healthy.
_LOOP_SECONDS = 2.0
# Scrapes within so many seconds get the same text.
_CACHE_SECONDS = 0.5


class Endpoint:
    """Responds in the thread of an `HttpServer`. What it says of the node is taken in the node's event loop."""

    def __init__(self, node: WatchedNode, sockets: Sequence[socket.socket]) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._exposition = Exposition()
        self._text = b""
        self._rendered_at = -_CACHE_SECONDS
        pages = {
            "/metrics": self._metrics,
            "/healthz": lambda: self._verdict(node.failure),
            "/readyz": lambda: self._verdict(node.unreadiness),
        }
        self._server = HttpServer(sockets, pages)
        self.start, self.stop = self._server.start, self._server.stop

    async def _metrics(self) -> HttpResponse:
        now = time.monotonic()
        if now - self._rendered_at >= _CACHE_SECONDS:
            try:
                values, folders = await self._in_loop(self._values())
            except asyncio.TimeoutError:
                return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not respond\n")
            self._text, self._rendered_at = self._exposition.render({**values, **disk_room(folders)}), now
        return HttpResponse(HTTPStatus.OK, self._text, CONTENT_TYPE)

    async def _values(self) -> tuple[Values, tuple[Path, ...]]:
        return self._node.values(), self._node.store.metrics().folders

    async def _verdict(self, judge: Callable[[], str | None]) -> HttpResponse:
        async def judged() -> str | None:
            return judge()

        try:
            reason = await self._in_loop(judged())
        except asyncio.TimeoutError:
            reason = f"the event loop does not respond within {_LOOP_SECONDS:g} s"
        status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
        row = {"ok": reason is None, **({} if reason is None else {"reason": reason})}
        return HttpResponse(status, json.dumps(row).encode() + b"\n", "application/json")

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` in the node's event loop. Raises TimeoutError if that does not respond."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), _LOOP_SECONDS)
