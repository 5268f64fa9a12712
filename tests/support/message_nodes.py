"""Nodes that serve messages, each with its own root, and helpers for puts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_dledger.format.encode.encoded import Bodies, PutSettings, producer_of
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchSettings
from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings
from tests.support.groups import FAST, Nodes, eventually

HOST_BYTES = encode_host("127.0.0.1", 20911)
# Files that a test can fill, and a small index of keys.
SMALL_QUEUES = MessageSettings(dispatch=DispatchSettings(units_per_file=1000, hash_slots=100, index_units=400))


class MessageNodes(Nodes):
    """`Nodes` with a `MessageService` each, below ``folder/ID``."""

    settings = SMALL_QUEUES

    def __init__(self, folder: Path, count: int, **options: Any) -> None:
        # A group of one needs no time for heartbeats.
        alone = {"core_options": {**FAST, "heart_beat_time_interval_ms": 50}} if count == 1 else {}
        super().__init__(folder, count, **{**alone, **options})

    def root(self, node_id: str) -> Path:
        return self.folder / node_id

    def start(self, *ids: str, **options: Any) -> MessageNodes:
        for node_id in ids or self.ids:
            root = self.root(node_id)
            service = MessageService.open(root, node_id, HOST_BYTES, settings=self.settings)
            given: dict[str, Any] = {
                "group": "g",
                "peers": self.peers,
                "store": root,
                **self._settings(node_id, options),
            }
            config = NodeConfig(self_id=node_id, **given)
            config = replace(config, store_options={**config.store_options, **service.store_options})
            node = Node(config, application=service)
            try:
                self.run(node.start())
            except BaseException:
                service.close()
                raise
            self.nodes[node_id] = node
        return self

    def ready_leader(self) -> str:
        """The leader, once it accepts puts: it has read its log."""
        leader = self.leader()

        async def is_ready() -> bool:
            service = self.nodes[leader]._application
            assert isinstance(service, MessageService)
            return service.is_ready

        assert eventually(lambda: self.run(is_ready()))
        return leader


@contextmanager
def message_nodes(folder: Path, count: int, **options: Any) -> Iterator[MessageNodes]:
    """A group that serves messages in this process until the end of the block."""
    group = MessageNodes(folder, count, **options)
    try:
        yield group.start()
    finally:
        group.close()


def rows(count: int, start: int = 0, topic: str = "Orders", size: int = 40, **columns: Any) -> pa.RecordBatch:
    """Messages with different bodies, numbered from `start` on."""
    numbers = range(start, start + count)
    data = {
        "topic": pa.array([topic] * count),
        "body": pa.array([b"%010d" % n + b"x" * (size - 10) for n in numbers], pa.binary()),
        **{name: pa.array(values, pa.int32() if name in _INTS else None) for name, values in columns.items()},
    }
    return pa.record_batch(data)


_INTS = ("queueId", "flag", "transaction", "delayLevel")


def puts(batch: pa.RecordBatch, queues: int = 4, job: str | None = "job", ordinals: Any = None, **given: Any) -> Bodies:
    """Messages encoded like those of a task of a job; without a job they have no identity."""
    engine = get_engine()
    topics = set(batch.column("topic").to_pylist())
    settings = PutSettings(
        producer=producer_of(job, 0) if job is not None else None,
        born_timestamp=1_700_000_000_000,
        born_host=encode_host("127.0.0.1", 1),
        store_host=HOST_BYTES,
        queue_counts=given.pop("queue_counts", dict.fromkeys(topics, queues)),
        round_robin=given.pop("round_robin", 0),
    )
    return engine.encode_messages(batch, settings, engine.new_ordinals() if ordinals is None else ordinals)


def joined(parts: Sequence[Bodies]) -> Bodies:
    """Several puts as one."""
    engine = get_engine()
    return engine.pack_bodies([body for part in parts for body in engine.unpack_bodies(part)])
