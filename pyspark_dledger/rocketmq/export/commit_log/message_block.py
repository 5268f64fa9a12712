"""Reads and sets fields of many messages in one block of memory, for all of them at once.

The layout is `layout.MESSAGE_HEADER` and what follows it; integers are big-endian. Positions outside the block are
clipped: a wrong length gives a wrong message, which is found when the written file is read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format import layout
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.message import MESSAGE_CRC_MASK, encode_property_crc, stored_property_crc
from pyspark_dledger.rocketmq.message_arrays import Longs

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_AT = {field.name: field.offset for field in layout.MESSAGE_HEADER}
# Offsets with IPv4 hosts; an IPv6 host is 12 bytes longer.
_STORE_TIMESTAMP_AT = 56
_BODY_LENGTH_AT = 84
_LONGER_HOST = 12
_LENGTH_SIZE = 4
_PROPERTIES_LENGTH_SIZE = 2


def numbers_at(block: Bytes, dtype: str, positions: Longs) -> npt.NDArray[Any]:
    """The numbers of a type, such as ``>i4``, at positions of a block, which need not be aligned."""
    return _unaligned(block, dtype)[_clipped(positions, len(block) - np.dtype(dtype).itemsize)]


def put_numbers(block: Bytes, dtype: str, positions: Longs, values: Longs) -> None:
    _unaligned(block, dtype)[_clipped(positions, len(block) - np.dtype(dtype).itemsize)] = values


def _unaligned(block: Bytes, dtype: str) -> npt.NDArray[Any]:
    """A view with a number at every byte of a block."""
    count = max(len(block) - np.dtype(dtype).itemsize + 1, 0)
    return np.ndarray((count,), dtype, block, strides=(1,))


def _clipped(positions: Longs, last: int) -> Longs:
    return np.clip(positions, 0, max(last, 0))


@dataclass(frozen=True)
class MessageBlock:
    """Messages at ``starts`` of ``data``, of ``sizes`` bytes; ``pos`` are the positions of their entries in the log.

    ``data`` is writable.
    """

    data: Bytes
    starts: Longs
    sizes: Longs
    pos: Longs

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> Longs:
        return self.starts + self.sizes

    def only(self, which: Flags) -> MessageBlock:
        """A block of some of the messages, with the same data."""
        return MessageBlock(self.data, self.starts[which], self.sizes[which], self.pos[which])

    def field(self, name: str, dtype: str) -> npt.NDArray[Any]:
        """A field of the fixed part of each message."""
        return numbers_at(self.data, dtype, self.starts + _AT[name])

    def set_field(self, name: str, dtype: str, values: Longs) -> None:
        put_numbers(self.data, dtype, self.starts + _AT[name], values)

    def is_version_2(self) -> Flags:
        is_second: Flags = self.field("magic", ">i4") == layout.MESSAGE_MAGIC_V2
        return is_second

    def lengths(self) -> tuple[Longs, Longs]:
        """The bytes of each message's topic, and of its properties."""
        flags = self.field("sysFlag", ">i4")
        longer = ((flags & layout.FLAG_BORN_HOST_V6) != 0).astype(np.int64)
        longer += (flags & layout.FLAG_STORE_HOST_V6) != 0
        at = self.starts + _BODY_LENGTH_AT + _LONGER_HOST * longer
        at = at + _LENGTH_SIZE + numbers_at(self.data, ">i4", at)
        second = self.is_version_2()
        topic = numbers_at(self.data, ">u1", at).astype(np.int64)
        if second.any():
            topic[second] = numbers_at(self.data, ">u2", at[second])
        properties_start = at + 1 + second + topic + _PROPERTIES_LENGTH_SIZE
        return topic, self.ends - properties_start

    def store_timestamps(self) -> Longs:
        """The store timestamp of each message, in milliseconds since 1970."""
        longer = (self.field("sysFlag", ">i4") & layout.FLAG_BORN_HOST_V6) != 0
        stored = numbers_at(self.data, ">i8", self.starts + _STORE_TIMESTAMP_AT + _LONGER_HOST * longer)
        return stored.astype(np.int64)

    def has_property_crc(self) -> Flags:
        """Which messages seem to end with `layout.PROPERTY_CRC`."""
        name = np.frombuffer(layout.PROPERTY_CRC.encode(), ">u8")[0]
        has_crc: Flags = numbers_at(self.data, ">u8", self.ends - layout.PROPERTY_CRC_SIZE) == name
        return has_crc


def update_property_crc(engine: Engine, message: Bytes) -> None:
    """Recompute the CRC at the end of a message's properties, if there is one."""
    tail = message[-layout.PROPERTY_CRC_SIZE :]
    if stored_property_crc(tail.tobytes()) is not None:
        value = engine.crc32(message[: -layout.PROPERTY_CRC_SIZE].tobytes()) & MESSAGE_CRC_MASK
        tail[:] = np.frombuffer(encode_property_crc(value), np.uint8)
