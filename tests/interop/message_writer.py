"""Draws random message rows of every kind, writes them through a group and compares them with RocketMQ's view."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_dledger.format.encode.encoded import Bodies, PutSettings, producer_of
from pyspark_dledger.format.encode.put_rows import PUT_SCHEMA
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.raft.client import Client
from tests.interop.java_store import Received

QUEUES = 4
LONG_TOPIC = "Long_" + "topic" * 30
TOPICS = ("Orders", "%RETRY%group", "with|bar-and_more")
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
_TEXTS = ("", "plain", "Größe 日本 \U0001f600", "x" * 3000, '{"json": [1, 2]}')
_TAGS = (None, "paid", "refund||cancel", "日本", "Aa", "BB")
# "hot" repeats, so its hash has many messages; the others are single or several keys.
_KEYS = (None, "hot", "hot other", "first  second   third", "日本")

Row = dict[str, Any]


class WrittenMessage(NamedTuple):
    """A row and the position of its message: ``pos`` of the entry in the log, ``queue_offset`` in its queue."""

    row: Row
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int

    @property
    def physical_offset(self) -> int:
        return self.pos + 48

    @property
    def is_in_queue(self) -> bool:
        """Returns False for prepared and rolled back messages."""
        return self.row["transaction"] not in (PREPARED, ROLLBACK)

    @property
    def topic(self) -> str:
        """The topic that the message is stored with."""
        return DELAY_TOPIC if self._is_delayed else str(self.row["topic"])

    @property
    def keys(self) -> set[str]:
        keys = {*(self.row["keys"] or "").split()}
        return keys | {value for name, value in self.row["properties"] or () if name == "UNIQ_KEY"}

    @property
    def _is_delayed(self) -> bool:
        return bool(self.row["delayLevel"]) and self.is_in_queue

    def differences(self, got: Received) -> dict[str, tuple[Any, Any]]:
        """Returns the fields that RocketMQ reads differently: (written, read) by name."""
        row = self.row
        properties = dict(row["properties"] or ())
        properties |= {name: row[column] for name, column in (("KEYS", "keys"), ("TAGS", "tags")) if row[column]}
        queue = row["queueId"]
        if row["delayLevel"]:
            level = min(row["delayLevel"], 18)
            properties["DELAY"] = str(level)
            if self._is_delayed:
                properties["REAL_TOPIC"], properties["REAL_QID"] = row["topic"], str(queue)
                queue = level - 1
        expected = {
            "topic": self.topic,
            "queue_id": queue,
            "queue_offset": self.queue_offset,
            "physical_offset": self.physical_offset,
            "flag": row["flag"] or 0,
            "sys_flag": row["transaction"] or 0,
            "born_timestamp": row["bornTimestamp"],
            "body": row["body"],
            **{f"property {name}": value for name, value in properties.items()},
        }
        found = {**got._asdict(), **{f"property {name}": value for name, value in got.properties.items()}}
        return {name: (want, found.get(name)) for name, want in expected.items() if found.get(name) != want}


def random_rows(choice: random.Random, count: int, topics: Sequence[str] = TOPICS) -> list[Row]:
    """Returns random rows. The property ``row`` is unique."""
    return [_row(choice, topics) for _ in range(count)]


def _row(choice: random.Random, topics: Sequence[str]) -> Row:
    transaction = choice.choice((0, 0, 0, 0, 0, PREPARED, COMMIT, ROLLBACK))
    delay = choice.choice((None, None, None, 0, 1, 5, 18, 25)) if transaction == 0 else None
    properties = [("row", uuid.UUID(int=choice.getrandbits(128)).hex)]
    if choice.random() < 0.5:
        properties.append(("UNIQ_KEY", f"{choice.getrandbits(128):032X}"))
    if choice.random() < 0.3:
        properties.append((choice.choice(("WAIT", "ä", "x-long")), choice.choice(("true", "日本", "y" * 500))))
    return {
        "topic": choice.choice(topics),
        "body": choice.choice((choice.choice(_TEXTS).encode(), choice.randbytes(choice.randrange(2000)))),
        "queueId": choice.randrange(QUEUES),
        "tags": choice.choice(_TAGS),
        "keys": choice.choice((*_KEYS, f"key{choice.randrange(10**6)}")),
        "properties": properties,
        "flag": choice.choice((None, 0, 7, -1)),
        "bornTimestamp": 1_700_000_000_000 + choice.randrange(10**9),
        "transaction": transaction,
        "delayLevel": delay,
    }


class Writer:
    """One partition of a write job."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._producer = producer_of(uuid.uuid4().hex, 0)
        self._engine = get_engine()
        self._ordinals = self._engine.new_ordinals()

    def encode(self, rows: Iterable[Row]) -> Bodies:
        batch = pa.RecordBatch.from_pylist(list(rows), schema=PUT_SCHEMA)
        topics = self._client.topics(sorted(set(batch.column("topic").to_pylist())), QUEUES)
        settings = PutSettings(
            producer=self._producer,
            born_timestamp=int(time.time() * 1000),
            born_host=encode_host("127.0.0.1", 4321),
            store_host=topics.store_host,
            queue_counts=topics.queue_counts,
        )
        return self._engine.encode_messages(batch, settings, self._ordinals)

    def write(self, rows: Sequence[Row]) -> list[WrittenMessage]:
        """Encodes and puts the rows in one request. Returns them with their positions."""
        return self.put(self.encode(rows), rows)

    def put(self, bodies: Bodies, rows: Sequence[Row]) -> list[WrittenMessage]:
        """Puts rows encoded before. Messages that are already in the log keep their positions."""
        positions = self._client.put_messages(bodies, QUEUES)
        return [WrittenMessage(row, *position) for row, position in zip(rows, positions, strict=True)]


def problems(written: Iterable[WrittenMessage], got: Iterable[Received]) -> list[str]:
    """Returns messages of queues that are missing, duplicate, different from what was written or in a wrong queue."""
    found = dict[int, Received]()
    found_problems = []
    for each in got:
        if each.physical_offset in found:
            found_problems.append(f"duplicate: {each}")
        if each.queue != (each.topic, each.queue_id):
            found_problems.append(f"in another queue: {each}")
        found[each.physical_offset] = each
    for message in written:
        one = found.pop(message.physical_offset, None)
        if message.is_in_queue != (one is not None):
            found_problems.append(f"{'missing' if message.is_in_queue else 'should be in no queue'}: {message}")
        elif one is not None and (differences := message.differences(one)):
            found_problems.append(f"different: {differences}")
    return found_problems + [f"not written by this test: {one}" for one in found.values()]


def queues_with_gaps(got: Iterable[Received]) -> dict[tuple[str, int], list[int]]:
    """Returns the queues with offsets other than 0, 1, 2 … in log order."""
    queues = dict[tuple[str, int], list[int]]()
    for each in sorted(got, key=lambda one: one.physical_offset):
        queues.setdefault(each.queue, []).append(each.queue_offset)
    return {queue: offsets for queue, offsets in queues.items() if offsets != list(range(len(offsets)))}
