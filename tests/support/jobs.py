"""Jobs without Spark: tasks that write partitions of rows, fail anywhere, and are repeated with other partitions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from pyspark_dledger.raft.client import Client
from pyspark_dledger.spark.sink.job_identity import WriteJob, txn_producer
from pyspark_dledger.spark.sink.repeated_job import complete, needs_driver
from pyspark_dledger.spark.sink.row_format import row_format
from pyspark_dledger.spark.sink.task_writer import TaskCommit, _write_messages
from pyspark_dledger.spark.sink.write_options import WriteOptions

SCHEMA = StructType().add("body", StringType()).add("keys", StringType())
_ROWS_PER_BATCH = 7


class Killed(Exception):
    """A task or the driver ended here."""


class Jobs:
    """Attempts of one micro-batch, or of one version of ``txnAppId``."""

    def __init__(self, client: Client, name: str, **options: Any) -> None:
        self.client = client
        self.name = name
        self.options = WriteOptions(path="/log", topic="T", **options)
        self.format = row_format(SCHEMA, self.options)

    def run(self, partitions: Sequence[Sequence[str]], chance: random.Random, *, is_killed: bool) -> None:
        """Write rows of text, which are bodies and keys. Raises Killed at a random point."""
        is_micro_batch = self.options.txn_app_id is None
        job = WriteJob(self.name, str(uuid.uuid4()), "the batch", is_micro_batch=is_micro_batch)
        points = sum(map(len, partitions)) + 2
        point = chance.randrange(points) if is_killed else points
        numbers = list(range(len(partitions)))
        chance.shuffle(numbers)
        messages = []
        for number in numbers:
            written = TaskCommit(number)
            batches = rows_of(partitions[number], point)
            _write_messages(batches, self.client, self.format, self.options, job, written)
            messages.append(written)
            point -= len(partitions[number])
        if point == 0:
            raise Killed
        self._commit(messages, chance if point == 1 else None)

    def _commit(self, messages: list[TaskCommit], chance: random.Random | None) -> None:
        left = [message.left for message in messages if message.left is not None]
        app, number = self.options.txn_app_id, self.options.txn_version
        version = None if app is None or number is None else (txn_producer(app), number)
        client: Any = self.client if chance is None else _MortalClient(self.client, chance.randrange(3))
        if needs_driver(left):
            complete(client, left, sum(message.count for message in messages), 4, version)
        if chance is not None:
            raise Killed


class _MortalClient:
    """A client of a driver that is killed after some puts."""

    def __init__(self, client: Client, puts: int) -> None:
        self._client = client
        self._puts = puts
        self.producer = client.producer

    def put_messages(self, *given: Any, **options: Any) -> Any:
        if self._puts == 0:
            raise Killed
        self._puts -= 1
        return self._client.put_messages(*given, **options)


def rows_of(rows: Sequence[str], until: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in small batches. Raises Killed before row `until`."""
    for start in range(0, len(rows), _ROWS_PER_BATCH):
        part = rows[start : start + _ROWS_PER_BATCH]
        if start + len(part) > until:
            raise Killed
        yield pa.record_batch({"body": list(part), "keys": list(part)})


def divided(rows: Sequence[str], chance: random.Random) -> list[list[str]]:
    """Return the rows in another order, in some partitions."""
    partitions: list[list[str]] = [[] for _ in range(chance.randint(1, 6))]
    for row in chance.sample(rows, len(rows)):
        chance.choice(partitions).append(row)
    return partitions
