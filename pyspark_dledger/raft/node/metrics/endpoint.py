"""``/metrics``, ``/healthz`` and ``/readyz`` of a node, also while it opens its store."""

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
from pyspark_dledger.raft.node.metrics.watched_node import (
    STARTING,
    Values,
    WatchedNode,
    info_values,
    role_values,
)
from pyspark_dledger.raft.node.node_config import NodeConfig

T = TypeVar("T")

# A node whose event loop does not respond for so many seconds is not healthy.
_LOOP_SECONDS = 2.0
# Scrapes within so many seconds get the same text.
_CACHE_SECONDS = 0.5


class Endpoint:
    """Responds in the thread of an `HttpServer`. What it says of the node is taken in the node's event loop.

    ``node`` is None while the store is opened and recovered, which blocks that loop.
    """

    def __init__(self, config: NodeConfig, sockets: Sequence[socket.socket]) -> None:
        self._config = config
        self.node: WatchedNode | None = None
        self._loop = asyncio.get_running_loop()
        self._exposition = Exposition()
        self._text = b""
        self._rendered_at = -_CACHE_SECONDS
        pages = {
            "/metrics": self._metrics,
            "/healthz": lambda: self._verdict(WatchedNode.failure, None),
            "/readyz": lambda: self._verdict(WatchedNode.unreadiness, "recovering: the store is being opened"),
        }
        self._server = HttpServer(sockets, pages)
        self.start, self.stop = self._server.start, self._server.stop

    async def _metrics(self) -> HttpResponse:
        now, node = time.monotonic(), self.node
        if node is None:
            values: Values = {**info_values(self._config), "dledger_role": role_values(STARTING)}
            return HttpResponse(HTTPStatus.OK, self._exposition.render(values), CONTENT_TYPE)
        if now - self._rendered_at >= _CACHE_SECONDS:
            try:
                values, folders = await self._in_loop(self._values(node))
            except asyncio.TimeoutError:
                return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not respond\n")
            self._text, self._rendered_at = self._exposition.render({**values, **disk_room(folders)}), now
        return HttpResponse(HTTPStatus.OK, self._text, CONTENT_TYPE)

    async def _values(self, node: WatchedNode) -> tuple[Values, tuple[Path, ...]]:
        return node.values(), node.store.metrics().folders

    async def _verdict(self, judge: Callable[[WatchedNode], str | None], starting: str | None) -> HttpResponse:
        """``starting`` is the reason while the store is opened."""
        node = self.node

        async def judged(node: WatchedNode) -> str | None:
            return judge(node)

        try:
            reason = starting if node is None else await self._in_loop(judged(node))
        except asyncio.TimeoutError:
            reason = f"the event loop does not respond within {_LOOP_SECONDS:g} s"
        status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
        row = {"ok": reason is None, **({} if reason is None else {"reason": reason})}
        return HttpResponse(status, json.dumps(row).encode() + b"\n", "application/json")

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` in the node's event loop. Raises TimeoutError if that does not respond."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wait_for(asyncio.wrap_future(future), _LOOP_SECONDS)
