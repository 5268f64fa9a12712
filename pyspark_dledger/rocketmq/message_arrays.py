"""Messages as arrays: the values that a broker puts into ConsumeQueues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.rocketmq.located_message import LocatedMessage

COLUMNS = (
    *("pos", "source", "topic", "queueId", "queueOffset", "storeSize", "sysFlag", "storeTimestamp", "tags"),
    "committed",
)
"""The columns of the ``log`` table that `arrays_of_batches` reads."""

Longs = npt.NDArray[np.int64]
QueueName = tuple[str, int]

_NO_TIME = np.iinfo(np.int64).min


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

    ``queue`` is a number of `QueueNames`, ``tags_code`` the hash of the tags, ``stored`` in milliseconds since 1970
    (the lowest integer if unknown). ``is_committed`` is false if unknown.
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
        """Which messages are in a queue: all but prepared and rolled back ones."""
        return (self.sys_flag & 0x4) == 0

    def find(self, offsets: Longs) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """The number of the message at each offset, and whether there is one."""
        if not len(self):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        number = np.minimum(np.searchsorted(self.offset, offsets), len(self) - 1)
        return number, self.offset[number] == offsets


def arrays_of_batches(batches: Iterable[pa.RecordBatch], names: QueueNames) -> MessageArrays:
    """The messages of batches of `COLUMNS`, in the order of the log."""
    schema = None
    kept = []
    for batch in batches:
        schema = batch.schema
        kept.append(batch)
    if schema is None:
        return arrays_of_messages([], names)
    table = pa.Table.from_batches(kept, schema).combine_chunks()
    in_ledger = _numpy(pc.equal(table["source"], DLEDGER))
    return MessageArrays(
        offset=_longs(table["pos"]) + np.where(in_ledger, layout.ENTRY_HEADER_SIZE, 0),
        size=_longs(table["storeSize"]),
        queue=_queue_numbers(table["topic"], _longs(table["queueId"]), names),
        queue_offset=_longs(table["queueOffset"]),
        tags_code=_tags_codes(table["tags"]),
        sys_flag=_longs(table["sysFlag"]),
        stored=_milliseconds(table["storeTimestamp"]),
        is_committed=_numpy(pc.fill_null(table["committed"], fill_value=False)),
    )


def _numpy(column: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = column.to_numpy()
    return values


def _longs(column: Any) -> Longs:
    return _numpy(column).astype(np.int64)


def _milliseconds(column: Any) -> Longs:
    micros = _longs(pc.fill_null(column.cast(pa.int64()), _NO_TIME))
    return np.where(micros == _NO_TIME, _NO_TIME, micros // 1000)


def _queue_numbers(topics: Any, queue_ids: Longs, names: QueueNames) -> Longs:
    encoded = topics.combine_chunks().dictionary_encode()
    keys = encoded.indices.to_numpy().astype(np.int64) << 32 | (queue_ids & 0xFFFFFFFF)
    known = encoded.dictionary.to_pylist()
    unique, number = np.unique(keys, return_inverse=True)
    numbers = [names.number((known[key >> 32], _signed(key & 0xFFFFFFFF))) for key in unique.tolist()]
    return np.array(numbers, np.int64)[number]


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >= 1 << 31 else bits


def _tags_codes(tags: Any) -> Longs:
    encoded = tags.combine_chunks().dictionary_encode()
    codes = np.array([*(java_hash(text) for text in encoded.dictionary.to_pylist()), 0], np.int64)
    return codes[_longs(pc.fill_null(encoded.indices, len(codes) - 1))]


def arrays_of_messages(found: Iterable[LocatedMessage], names: QueueNames) -> MessageArrays:
    """Single messages as arrays, by offset. Whether they are committed is unknown."""
    ordered = sorted(found, key=lambda item: item.offset)
    rows = [
        (
            item.offset,
            item.message.total_size,
            names.number((item.topic, item.message.queue_id)),
            item.message.queue_offset,
            java_hash(item.properties.get(layout.PROPERTY_TAGS, "")),
            item.message.sys_flag,
            item.message.store_timestamp,
        )
        for item in ordered
    ]
    offset, size, queue, queue_offset, tags_code, sys_flag, stored = np.array(rows, np.int64).reshape(-1, 7).T
    is_committed = np.zeros(len(rows), bool)
    return MessageArrays(offset, size, queue, queue_offset, tags_code, sys_flag, stored, is_committed)
