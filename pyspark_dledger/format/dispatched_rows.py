"""What a broker writes into ConsumeQueues and IndexFiles for rows of the log: the types, and the reference engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import record_dtype
from pyspark_dledger.format.encode.encoded import PutIds

if TYPE_CHECKING:
    import pyarrow as pa

Longs = npt.NDArray[np.int64]
QueueName = tuple[str, int]

UNIT_DTYPE = record_dtype(layout.CONSUME_QUEUE_UNIT)

MAX_QUEUE_OFFSET = 2**62 // layout.CONSUME_QUEUE_UNIT_SIZE
"""The last queueOffset that a unit can have: files are named by their first byte."""

# A topic is a folder's name; RocketMQ's own limit, in characters, is lower.
_MAX_TOPIC_SIZE = 255
_PREPARED = 0x4

DISPATCHED_COLUMNS = (
    *("pos", "size", "index", "term", "topic", "queueId", "queueOffset", "storeSize", "sysFlag", "storeTimestamp"),
    *("tags", "keys", "uniqKey", "putId"),
)


@dataclass(frozen=True)
class Keys:
    """Keys in the order of the log: their message's ``offset`` in it, its ``stored`` time in ms, and ``key_hash``."""

    offset: Longs
    stored: Longs
    key_hash: Longs

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, which: slice) -> Keys:
        return Keys(self.offset[which], self.stored[which], self.key_hash[which])


class DispatchedRows(NamedTuple):
    """``counts`` of each queue's units, which are in the order of ``queues``, and inside in that of the log.

    Indexes and term are -1 without entries. Store timestamps are those of the first and last of ``messages`` in
    milliseconds, 0 if unknown. ``batches`` are messages of batchconsumequeue, ``skipped`` rows no messages that a queue
    can have; ``first_skipped`` is the first one's number, -1 without one.
    """

    queues: list[QueueName]
    counts: list[int]
    queue_offset: Longs
    units: npt.NDArray[Any]
    keys: Keys
    ids: PutIds
    first_index: int = -1
    last_index: int = -1
    last_term: int = -1
    first_stored: int = 0
    last_stored: int = 0
    messages: int = 0
    batches: int = 0
    skipped: int = 0
    first_skipped: int = -1


def is_valid_queue(name: QueueName) -> bool:
    """Whether a topic and a queue id can be folders: a log may contain any topic."""
    topic, queue_id = name
    size = len(topic.encode("utf-8", "surrogatepass"))
    return 0 < size <= _MAX_TOPIC_SIZE and not {"/", "\0"} & set(topic) and topic not in (".", "..") and queue_id >= 0


def key_hash(topic: str, key: str) -> int:
    """The hash of a message's key, or uniqKey, in its units (``IndexFile.indexKeyHashMethod``)."""
    # Math.abs leaves Integer.MIN_VALUE negative, and negative hashes become 0.
    found = abs(java_hash(f"{topic}#{key}"))
    return 0 if found > INT32_MAX else found


def dispatched_rows(
    batch: pa.RecordBatch, header_size: int, has_tags: bool, batch_topics: Collection[str] | None
) -> DispatchedRows:
    """The reference of `Engine.dispatched_rows`."""
    from pyspark_dledger.format.arrow_functions import numbers_of  # only this function needs Arrow

    columns = {name: batch[name].to_pylist() for name in DISPATCHED_COLUMNS if name != "storeTimestamp"}
    columns["stored"] = (numbers_of(batch["storeTimestamp"], null=0) // 1000).tolist()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    entries = [row for row in rows if row["index"] is not None]
    with_id = [row for row in entries if row["putId"] is not None]
    messages = [row for row in rows if _is_message(row)]
    skipped = [number for number, row in enumerate(rows) if not _is_message(row)]
    batches = [row for row in messages if _is_batch(row, batch_topics)]
    stored = [row["stored"] for row in messages if row["stored"] > 0]
    units: dict[QueueName, list[tuple[int, tuple[int, int, int]]]] = {}
    for row in messages:
        of_queue = units.setdefault((row["topic"], row["queueId"]), [])
        if not row["sysFlag"] & _PREPARED and not _is_batch(row, batch_topics):
            unit = row["pos"] + header_size, row["storeSize"], java_hash(row["tags"] or "")
            of_queue.append((row["queueOffset"], unit))
    units = {name: of_queue for name, of_queue in units.items() if of_queue}
    keys = [(row["pos"] + header_size, row["stored"], hashed) for row in messages for hashed in _hashes(row, has_tags)]
    return DispatchedRows(
        list(units),
        [len(each) for each in units.values()],
        np.array([offset for each in units.values() for offset, _ in each], np.int64),
        np.array([unit for each in units.values() for _, unit in each], UNIT_DTYPE),
        Keys(*np.array(keys, np.int64).reshape(-1, 3).T),
        PutIds(
            np.array([row["index"] for row in with_id], np.int64),
            b"".join(row["putId"] for row in with_id),
            np.array([row["stored"] for row in with_id], np.int64),
        ),
        first_index=entries[0]["index"] if entries else -1,
        last_index=entries[-1]["index"] if entries else -1,
        last_term=entries[-1]["term"] if entries else -1,
        first_stored=stored[0] if stored else 0,
        last_stored=stored[-1] if stored else 0,
        messages=len(messages),
        batches=len(batches),
        skipped=len(skipped),
        first_skipped=skipped[0] if skipped else -1,
    )


def _is_message(row: dict[str, Any]) -> bool:
    """Whether a row is a message that a queue can have."""
    is_named = row["topic"] is not None and is_valid_queue((row["topic"], row["queueId"]))
    return is_named and 0 <= row["queueOffset"] <= MAX_QUEUE_OFFSET


def _is_batch(row: dict[str, Any], batch_topics: Collection[str] | None) -> bool:
    """Whether a message has no unit, as there are `batch_topics`."""
    return batch_topics is not None and bool(row["sysFlag"] & layout.FLAG_INNER_BATCH or row["topic"] in batch_topics)


def _hashes(row: dict[str, Any], has_tags: bool) -> Iterator[int]:
    """The hashes of a message's UNIQ_KEY, KEYS and if `has_tags` TAGS; none of a rolled back one."""
    if row["sysFlag"] & layout.FLAG_TRANSACTION_MASK == layout.FLAG_TRANSACTION_MASK:
        return
    texts = [row["uniqKey"], *(row["keys"] or "").split(" "), f"T#{row['tags']}" if has_tags and row["tags"] else None]
    yield from (key_hash(row["topic"], text) for text in texts if text)
