"""Encoded messages of one block, made into batches that brokers take, without a loop over the messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.cluster.producer import ENVELOPE
from pyspark_dledger.format.encode.encoded import ID_SIZE, LENGTH_SIZE, Bodies
from pyspark_dledger.format.layout import MESSAGE_MAGIC_V1, PROPERTY_ID, PROPERTY_UNIQ_KEY

_NAMES = ("magic", "number", "flag", "sysFlag", "bornTimestamp", "bodySize")
_HEADER = np.dtype(
    {"names": _NAMES, "formats": [">i4", ">i4", ">i4", ">i4", ">i8", ">i4"], "offsets": [4, 12, 16, 36, 40, 84]}
)
"""Of a message with hosts of four bytes; ``number`` is that of its queue."""

# The parts of a message: header, body, length of the topic, topic, length of the properties, properties without the
# identity, its name, its text.
_PARTS = 8
_BODY, _TOPIC, _PROPERTIES, _ID = 1, 3, 5, 7
# The identity is the last property: its name, its text, and a separator after each.
_ID_TEXT = ID_SIZE * 4 // 3 + 1
_ID_PROPERTY = len(PROPERTY_ID) + 1 + _ID_TEXT
_UNIQ_KEY = f"{PROPERTY_UNIQ_KEY}\1".encode()
# What a message in a batch begins with, and what is before its properties: see `Batch`.
_FRONT = np.dtype([(name, ">i4") for name in ("size", "magic", "crc", "flag", "bodySize")])
_SIZE = np.dtype(">i2")

_Longs = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class EncodedMessages:
    """`fields` are those of the headers, `topic` numbers of `topics`."""

    def __init__(self, bodies: Bodies) -> None:
        block, count = bodies.block, bodies.count
        sizes = np.frombuffer(block, ">u4", count).astype(np.int64)
        ends = LENGTH_SIZE * count + np.cumsum(sizes)
        starts = ends - sizes
        self.fields = _at(block, starts, _HEADER)
        body = starts + _HEADER.itemsize
        length_at = body + self.fields["bodySize"]
        is_short = self.fields["magic"] == MESSAGE_MAGIC_V1
        topic = length_at + np.where(is_short, 1, 2)
        length = np.where(is_short, _at(block, length_at, np.dtype("u1")), _at(block, length_at, np.dtype(">u2")))
        topic_end = topic + length
        properties, id_name, id_text = topic_end + _SIZE.itemsize, ends - _ID_PROPERTY, ends - _ID_TEXT
        places = np.stack((starts, body, length_at, topic, topic_end, properties, id_name, id_text), axis=1)
        offsets = np.append(places.ravel(), ends[-1]).astype(np.int32)
        self._parts = _binary(offsets, block)
        names = self._part(_TOPIC, np.arange(count)).dictionary_encode()
        self.topics: Sequence[str] = [name.decode() for name in names.dictionary.to_pylist()]
        self.topic = np.asarray(names.indices)

    def first_with(self, pattern: str) -> int | None:
        """The first message whose properties, without the identity, match a pattern."""
        found = np.asarray(pc.match_substring_regex(self._part(_PROPERTIES, np.arange(len(self.topic))), pattern))
        return int(np.argmax(found)) if found.any() else None

    def batches(
        self, is_pinned: _Bools, is_alone: _Bools, max_messages: int, max_bytes: int
    ) -> Iterator[tuple[int, int, memoryview]]:
        """The first row, the number of messages and the data of each batch, in the order of the first rows.

        A batch has consecutive messages of a topic and queue that are equally pinned and born at the same time.
        """
        queue = (self.fields["number"], self.topic)
        # Stable: the messages of a queue keep their order.
        order = np.lexsort(queue)
        alike = (*queue, self.fields["bornTimestamp"], is_pinned)
        is_first = np.any([np.diff(key[order]) != 0 for key in alike], axis=0)
        alone = np.flatnonzero(is_alone[order])
        cuts = np.unique(np.concatenate(([0], np.flatnonzero(is_first) + 1, alone, alone + 1, [len(order)])))
        encoded = self._encoded(order)
        offsets = np.frombuffer(encoded.buffers()[1], np.int32, len(order) + 1)
        data = memoryview(encoded.buffers()[2]).cast("B")
        found = [
            (int(order[begin]), end - begin, data[offsets[begin] : offsets[end]])
            for group in pairwise(cuts.tolist())
            for begin, end in _split(offsets, *group, max_messages, max_bytes)
        ]
        yield from sorted(found, key=lambda batch: batch[0])

    def _part(self, part: int, rows: _Longs) -> Any:
        return self._parts.take(pa.array(_PARTS * rows + part))

    def _encoded(self, rows: _Longs) -> Any:
        """Messages as in a batch. One that was sent before keeps its identity, others get theirs as UNIQ_KEY."""
        bodies, properties = self._part(_BODY, rows), self._part(_PROPERTIES, rows)
        has_key = pc.or_(
            pc.starts_with(properties, _UNIQ_KEY), pc.match_substring(properties, (b"\2" + _UNIQ_KEY).decode())
        )
        added = np.where(np.asarray(has_key), 0, len(_UNIQ_KEY) + _ID_TEXT)
        sizes = np.zeros(len(rows), _SIZE)
        sizes[:] = np.asarray(pc.binary_length(properties)) + added
        fronts = np.zeros(len(rows), _FRONT)
        fronts["flag"], fronts["bodySize"] = self.fields["flag"][rows], self.fields["bodySize"][rows]
        fronts["size"] = ENVELOPE + fronts["bodySize"] + sizes
        nothing = pa.scalar(b"")
        name, ids = (pc.if_else(has_key, nothing, each) for each in (pa.scalar(_UNIQ_KEY), self._part(_ID, rows)))
        parts = (_fixed(fronts), bodies, _fixed(sizes), properties, name, ids)
        return pc.binary_join_element_wise(*parts, nothing)


def _split(offsets: Any, begin: int, end: int, max_messages: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    while begin < end:
        fitting = int(np.searchsorted(offsets, offsets[begin] + max_bytes, "right")) - 1
        stop = min(max(fitting, begin + 1), begin + max_messages, end)
        yield begin, stop
        begin = stop


def _at(block: Any, places: _Longs, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values at these places of a block."""
    return np.ndarray((len(block) - kind.itemsize + 1,), kind, block, 0, (1,))[places]


def _fixed(values: npt.NDArray[Any]) -> Any:
    return _binary(np.arange(len(values) + 1, dtype=np.int32) * values.itemsize, values)


def _binary(offsets: npt.NDArray[np.int32], data: Any) -> Any:
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
