"""Many messages in one piece of memory: their fields are read and set for all of them at once.

The layout is `layout.MESSAGE_HEADER` and what follows it; integers are big-endian. Lengths that are read count as far
as they lie in the block: who writes what comes out has it read back and verified.
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
# With hosts of IPv4, of which one of IPv6 has so many bytes more.
_STORE_TIMESTAMP_AT = 56
_BODY_LENGTH_AT = 84
_LONGER_HOST = 12
_LENGTH_SIZE = 4
_PROPERTIES_LENGTH_SIZE = 2


def numbers_at(block: Bytes, kind: str, places: Longs) -> npt.NDArray[Any]:
    """The numbers of a type, such as ``>i4``, that stand at places of a block, aligned or not."""
    return _every(block, kind)[_within(places, len(block) - np.dtype(kind).itemsize)]


def put_numbers(block: Bytes, kind: str, places: Longs, values: Longs) -> None:
    _every(block, kind)[_within(places, len(block) - np.dtype(kind).itemsize)] = values


def _every(block: Bytes, kind: str) -> npt.NDArray[Any]:
    """A number of that type at every byte of a block."""
    count = max(len(block) - np.dtype(kind).itemsize + 1, 0)
    return np.ndarray((count,), kind, block, strides=(1,))


def _within(places: Longs, last: int) -> Longs:
    return np.clip(places, 0, max(last, 0))


@dataclass(frozen=True)
class MessageBlock:
    """Messages at ``starts`` of ``data``, each of ``sizes`` bytes; ``pos`` is where their entries stand in the log.

    ``data`` may be written to. The other three are as long as there are messages.
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
        """Those messages, in the same data."""
        return MessageBlock(self.data, self.starts[which], self.sizes[which], self.pos[which])

    def field(self, name: str, kind: str) -> npt.NDArray[Any]:
        """A field of the fixed part, of all messages."""
        return numbers_at(self.data, kind, self.starts + _AT[name])

    def set_field(self, name: str, kind: str, values: Longs) -> None:
        put_numbers(self.data, kind, self.starts + _AT[name], values)

    def is_version_2(self) -> Flags:
        is_second: Flags = self.field("magic", ">i4") == layout.MESSAGE_MAGIC_V2
        return is_second

    def lengths(self) -> tuple[Longs, Longs]:
        """Of each message the bytes of its topic and of its properties."""
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
        """When each message was stored, in milliseconds since 1970."""
        longer = (self.field("sysFlag", ">i4") & layout.FLAG_BORN_HOST_V6) != 0
        stored = numbers_at(self.data, ">i8", self.starts + _STORE_TIMESTAMP_AT + _LONGER_HOST * longer)
        return stored.astype(np.int64)

    def has_property_crc(self) -> Flags:
        """Which messages seem to end with `layout.PROPERTY_CRC`."""
        begin = np.frombuffer(layout.PROPERTY_CRC.encode(), ">u8")[0]
        has_crc: Flags = numbers_at(self.data, ">u8", self.ends - layout.PROPERTY_CRC_SIZE) == begin
        return has_crc


def renew_property_crc(engine: Engine, message: Bytes) -> None:
    """Set the CRC that a message's properties end with, if they do, to that of the message as it is now."""
    tail = message[-layout.PROPERTY_CRC_SIZE :]
    if stored_property_crc(tail.tobytes()) is not None:
        value = engine.crc32(message[: -layout.PROPERTY_CRC_SIZE].tobytes()) & MESSAGE_CRC_MASK
        tail[:] = np.frombuffer(encode_property_crc(value), np.uint8)
