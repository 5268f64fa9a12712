"""A connection of either side, on a socket."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from pyspark_dledger.raft.channel import Channel
from pyspark_dledger.raft.wire import MAX_FRAME_SIZE, ReceivedRequest, ReceivedResponse

LARGE, SMALL = b"a" * (8 << 20), b"b" * 100


class Sender(Channel):
    """It waits until the system has taken all that it wrote."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.WriteTransport)
        transport.set_write_buffer_limits(0)

    def received(self, message: ReceivedRequest | ReceivedResponse) -> None:
        raise AssertionError(message)

    def malformed(self, error: str) -> None:
        raise AssertionError(error)

    def lost(self) -> None:
        pass


def test_a_connection_that_is_closed_sends_the_rest_and_ends_once() -> None:
    errors: list[dict[str, Any]] = []

    async def close_while_full() -> bytes:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        ours, theirs = socket.socketpair()
        _, channel = await loop.create_connection(lambda: Sender(MAX_FRAME_SIZE), sock=ours)
        channel.write([LARGE, SMALL])
        channel.flush()
        assert channel.is_full
        channel.close()
        reader, writer = await asyncio.open_connection(sock=theirs)
        received = await reader.read()
        writer.close()
        await asyncio.sleep(0.01)
        return received

    assert asyncio.run(close_while_full()) == LARGE + SMALL
    assert errors == []
