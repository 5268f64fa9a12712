"""Links between processes on loopback that can be closed or stopped, in one thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

CHUNK = 1 << 16


class Link:
    """A proxy for connections to a node; listens on its own port.

    ``open`` forwards all data; ``closed`` closes all connections, also new ones; ``stopped`` keeps connections but
    forwards nothing, like a network that loses all packets.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.state = "open"
        self._opened = asyncio.Event()
        self._opened.set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK)
        self.port = server.sockets[0].getsockname()[1]

    def set_state(self, state: str) -> None:
        """Called in the loop's thread."""
        self.state = state
        if state == "open":
            self._opened.set()
        else:
            self._opened.clear()
        if state == "closed":
            for pump in self._pumps:
                pump.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.state == "closed":
            writer.transport.abort()
            return
        try:
            target = await asyncio.open_connection("127.0.0.1", self.target_port, limit=CHUNK)
        except OSError:
            writer.transport.abort()
            return
        pumps = {
            asyncio.ensure_future(self._pump(reader, target[1])),
            asyncio.ensure_future(self._pump(target[0], writer)),
        }
        self._pumps |= pumps
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._pumps -= pumps
            writer.transport.abort()
            target[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(CHUNK):
                await self._opened.wait()
                writer.write(data)
                await writer.drain()


class Network:
    """A link from each node to each other one: ``links[a, b]`` is from a to b."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.links = {(a, b): Link(ports[b]) for a in ports for b in ports if a != b}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        for link in self.links.values():
            self._run(link.listen())

    def isolate(self, node: str, state: str, direction: str = "both") -> None:
        """Set the state of all links from (``out``) or to (``in``) the node, or both."""
        for (a, b), link in self.links.items():
            if (a == node and direction != "in") or (b == node and direction != "out"):
                self._loop.call_soon_threadsafe(link.set_state, state)

    def heal(self) -> None:
        for link in self.links.values():
            self._loop.call_soon_threadsafe(link.set_state, "open")

    def close(self) -> None:
        async def cancel_everything() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(cancel_everything())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)
