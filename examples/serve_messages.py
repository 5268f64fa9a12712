"""Serve messages from your own process, without a broker: a group of one, and one put.

``python examples/serve_messages.py [ROOT]``: ROOT is a storePathRootDir; without it a temporary folder.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from concurrent.futures import Future
from pathlib import Path

from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.raft.messages import PutRequest, PutResponse
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.rocketmq.service.message_putter import MessagePutter, OutgoingMessage, PutOutcome, outcome_of
from pyspark_dledger.rocketmq.service.message_service import MessageService, host_bytes


async def serve(root: Path, port: int) -> None:
    """Start a node, put a message as a broker's processor would, and print a broker's result."""
    host = host_bytes("127.0.0.1", port)
    service = MessageService.open(root, "n0", host)
    config = NodeConfig("g", "n0", f"n0-127.0.0.1:{port}", root, store_options=service.store_options)
    node = Node(config, service)
    await node.start()
    loop = asyncio.get_running_loop()

    def submit(bodies: Bodies, queue_nums: int) -> Future[PutOutcome]:
        async def ask() -> PutOutcome:
            response = await node.request(PutRequest(bodies=bodies, queue_nums=queue_nums))
            assert isinstance(response, PutResponse)
            return outcome_of(response)

        return asyncio.run_coroutine_threadsafe(ask(), loop)

    putter = MessagePutter(submit, host, version="5.3.3")
    print(await asyncio.to_thread(putter.put_message, OutgoingMessage("Orders", b"hello", tags="new")))
    await node.stop()
    service.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dledger-") as folder:
        asyncio.run(serve(Path(sys.argv[1] if len(sys.argv) > 1 else folder), free_port()))
