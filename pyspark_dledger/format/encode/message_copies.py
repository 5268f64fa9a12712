"""Messages of a log, put one behind the other into a new file of a CommitLog: what the engines take and give.

A message keeps everything but its physicalOffset, and with that the CRC in its properties, if they end with one. Left
out is one of which a broker would read the lengths with a sign: it would take the log to end there. Source: RocketMQ
5.3.3 ``CommitLog.checkMessageAndReturnSize``, ``MessageDecoder``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.format import layout
from pyspark_dledger.format.message import (
    Message,
    encode_property_crc,
    has_message_magic,
    message_crc,
    parse_message,
    stored_property_crc,
)
from pyspark_dledger.format.scan.segment_file import SegmentFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

V1, V2, LONG_TOPIC, LONG_PROPERTIES, CHANGED = range(5)
"""What became of a message: placed, with a magic of either version; or left out, for the length of its topic or its
properties, or since other bytes stand there than a message of its size."""

LONGEST_TOPIC_V1 = 127
"""What a broker reads as the length of a topic has 8 bits and a sign in a message of the first version."""
MOST_PROPERTY_BYTES = 2**15 - 1
"""What it reads as the length of properties has 16 bits and a sign."""
LONGEST_TOPIC_V2 = 2**15 - 1

_PHYSICAL_OFFSET_AT = next(field.offset for field in layout.MESSAGE_HEADER if field.name == "physicalOffset")


class CopiedMessages(NamedTuple):
    """Bytes of the messages that were placed, and what became of each."""

    size: int
    outcomes: npt.NDArray[np.uint8]


def place(
    file: SegmentFile, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
) -> tuple[int, bytearray]:
    """The fields of `CopiedMessages` for messages of a segment; the first byte of `into` stands at `position`.

    Raises ValueError where `into` has no room for all of them.
    """
    if len(starts) != len(sizes):
        raise ValueError("expected as many starts as sizes, found others")
    if (sizes < 0).any() or sum(sizes.tolist()) > len(into):
        raise ValueError("expected room for all messages, found less")
    outcomes = bytearray()
    end = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        outcome = CHANGED
        if file.segment.base <= start <= start + size <= file.end:
            message = bytearray(file[start : start + size])
            outcome = _moved(message, position + end)
            if outcome <= V2:
                into[end : end + size] = message
                end += size
        outcomes.append(outcome)
    return end, outcomes


def _moved(message: bytearray, position: int) -> int:
    """Make a message one that stands at a position; what becomes of it."""
    data = bytes(message)
    parsed = parse_message(data, 0, len(data), position)
    if not isinstance(parsed, Message) or not has_message_magic(data, 0, len(data)):
        return CHANGED
    is_v2 = parsed.magic == layout.MESSAGE_MAGIC_V2
    if parsed.topic_length > (LONGEST_TOPIC_V2 if is_v2 else LONGEST_TOPIC_V1):
        return LONG_TOPIC
    if parsed.properties_length > MOST_PROPERTY_BYTES:
        return LONG_PROPERTIES
    if parsed.physical_offset != position:
        struct.pack_into(">q", message, _PHYSICAL_OFFSET_AT, position)
        if stored_property_crc(data[parsed.properties_start :]) is not None:
            begin = len(message) - layout.PROPERTY_CRC_SIZE
            message[begin:] = encode_property_crc(message_crc(bytes(message[:begin])))
    return V2 if is_v2 else V1
