"""The network of a group on loopback: a proxy at each member's address, in one thread of this process.

Each member has a host of its own, from which it connects, too: so a proxy knows the sender of a connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

HOST = "127.0.0.1"
CLIENT = "client"
CHUNK = 1 << 16


class Way:
    """What one process sends to another one.

    ``open`` forwards all data; ``closed`` closes all connections, also new ones; ``stopped`` keeps connections but
    forwards nothing, like a network that loses all packets.
    """

    def __init__(self) -> None:
        self.state = "open"
        self.opened = asyncio.Event()
        self.opened.set()
        self.pumps: set[asyncio.Task[None]] = set()

    def set_state(self, state: str) -> None:
        """Called in the loop's thread."""
        self.state = state
        if state == "open":
            self.opened.set()
        else:
            self.opened.clear()
        if state == "closed":
            for pump in self.pumps:
                pump.cancel()


class Network:
    """Nodes by id, which listen at their ports of 127.0.0.1. ``addresses`` are those that all others connect to."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports
        self._hosts = {f"127.0.0.{10 + number}": node for number, node in enumerate(ports)}
        self.addresses = {node: f"{host}:{ports[node]}" for host, node in self._hosts.items()}
        self._ways = {(a, b): Way() for a in (*ports, CLIENT) for b in (*ports, CLIENT) if a != b}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        for host, node in self._hosts.items():
            self._run(self._listen(host, node))

    def isolate(self, node: str, state: str, direction: str = "both") -> None:
        """Set the state of all that the node sends (``out``) or gets (``in``), or both. It still reaches clients."""
        for (a, b), way in self._ways.items():
            if CLIENT not in (a, b) and ((a == node and direction != "in") or (b == node and direction != "out")):
                self._loop.call_soon_threadsafe(way.set_state, state)

    def heal(self) -> None:
        for way in self._ways.values():
            self._loop.call_soon_threadsafe(way.set_state, "open")

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

    async def _listen(self, host: str, node: str) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(node, reader, writer)

        await asyncio.start_server(serve, host, self._ports[node], limit=CHUNK)

    async def _serve(self, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("peername")[0]
        sender = self._hosts.get(host, CLIENT)
        there, back = self._ways[sender, node], self._ways[node, sender]
        if "closed" in (there.state, back.state):
            writer.transport.abort()
            return
        try:
            target = await asyncio.open_connection(HOST, self._ports[node], limit=CHUNK, local_addr=(host, 0))
        except OSError:
            writer.transport.abort()
            return
        pumps = {
            asyncio.ensure_future(self._pump(there, reader, target[1])),
            asyncio.ensure_future(self._pump(back, target[0], writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            target[1].transport.abort()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        way.pumps.add(task)
        try:
            while data := await reader.read(CHUNK):
                await way.opened.wait()
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            way.pumps.discard(task)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)
