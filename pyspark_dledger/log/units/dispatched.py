"""Messages as arrays: the values that a broker puts into ConsumeQueues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.arrow_functions import is_valid, numbered, texts_of, values_of
from pyspark_dledger.format.codec import signed32
from pyspark_dledger.format.dispatched_rows import Longs, QueueName
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.message import Message
from pyspark_dledger.format.spec import DLEDGER

COLUMNS = ("pos", "source", "topic", "queueId", "queueOffset", "storeSize", "sysFlag", "storeTimestamp", "tags")
"""The columns of the ``log`` table that `arrays_of_batches` reads; also ``committed`` if there is one."""


class QueueNames:
    """Numbers queues, for arrays."""

    def __init__(self, names: Iterable[QueueName] = ()) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def number(self, name: QueueName) -> int:
        """The number of a queue, a new one if it has none."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


@dataclass(frozen=True)
class MessageArrays:
    """Messages by ``offset``, the commitLogOffset of their units.

    ``queue`` is a number of `QueueNames`, ``tags_code`` the hash of the tags, ``stored`` in milliseconds since 1970.
    ``is_committed`` is false if unknown, or not asked for.
    """

    offset: Longs
    size: Longs
    queue: Longs
    queue_offset: Longs
    tags_code: Longs
    sys_flag: Longs
    stored: Longs
    is_committed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def is_dispatched(self) -> npt.NDArray[np.bool_]:
        return in_queue(self.sys_flag)

    def find(self, offsets: Longs) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """The number of the message at each offset, and whether there is one."""
        if not len(self):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        number = np.minimum(np.searchsorted(self.offset, offsets), len(self) - 1)
        return number, self.offset[number] == offsets


def in_queue(sys_flag: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which messages are in a queue: all but prepared (0x4) and rolled back (0xC) ones."""
    found: npt.NDArray[np.bool_] = (sys_flag & 0x4) == 0
    return found


def arrays_of_batches(engine: Engine, batches: Iterable[pa.RecordBatch], names: QueueNames) -> MessageArrays:
    """The messages of batches of `COLUMNS`, in the order of the log."""
    kept = list(batches)
    rows = pa.Table.from_batches(kept).combine_chunks().to_batches() if kept else []
    if not rows:
        return arrays_of_messages({}, names)
    (batch,) = rows
    committed = np.zeros(batch.num_rows, bool)
    if "committed" in batch.schema.names:
        committed = pc.fill_null(batch["committed"], fill_value=False).to_numpy(zero_copy_only=False)
    in_ledger = pc.equal(batch["source"], DLEDGER).to_numpy(zero_copy_only=False)
    topics, topic = texts_of(batch["topic"])
    queue_id = values_of(batch["queueId"]).astype(np.int64) & 0xFFFFFFFF
    unique, number = numbered(topic << 32 | queue_id)
    numbers = [names.number((topics[key >> 32], signed32(key))) for key in unique.tolist()]
    stored = values_of(batch["storeTimestamp"]) // 1000
    return MessageArrays(
        offset=values_of(batch["pos"]) + np.where(in_ledger, layout.ENTRY_HEADER_SIZE, 0),
        size=values_of(batch["storeSize"]).astype(np.int64),
        queue=np.array(numbers, np.int64)[number],
        queue_offset=values_of(batch["queueOffset"]),
        tags_code=_tags_codes(engine, batch["tags"]),
        sys_flag=values_of(batch["sysFlag"]).astype(np.int64),
        stored=np.where(is_valid(batch["storeTimestamp"]), stored, np.iinfo(np.int64).min),
        is_committed=committed,
    )


def _tags_codes(engine: Engine, tags: pa.Array) -> Longs:
    encoded = pc.dictionary_encode(tags)
    codes = np.concatenate([np.asarray(engine.java_hashes(encoded.dictionary)), [0]]).astype(np.int64)
    return codes[np.where(is_valid(encoded.indices), values_of(encoded.indices), len(codes) - 1)]


def arrays_of_messages(found: Mapping[int, Message], names: QueueNames) -> MessageArrays:
    """Single messages as arrays, by offset. Whether they are committed is unknown."""
    rows = [
        (
            offset,
            message.total_size,
            names.number((message.topic, message.queue_id)),
            message.queue_offset,
            java_hash(message.properties.get(layout.PROPERTY_TAGS, "")),
            message.sys_flag,
            message.store_timestamp,
        )
        for offset, message in sorted(found.items())
    ]
    offset, size, queue, queue_offset, tags_code, sys_flag, stored = np.array(rows, np.int64).reshape(-1, 7).T
    is_committed = np.zeros(len(rows), bool)
    return MessageArrays(offset, size, queue, queue_offset, tags_code, sys_flag, stored, is_committed)
