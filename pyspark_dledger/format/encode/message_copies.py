"""Copies messages of a log into a new file of a CommitLog: the reference of `engine.Engine.copy_messages`.

Source: RocketMQ 5.3.3 ``CommitLog.checkMessageAndReturnSize``, ``MessageDecoder``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.format import layout
from pyspark_dledger.format.message import (
    encode_property_crc,
    message_crc,
    message_in,
    stored_property_crc,
)
from pyspark_dledger.format.scan.segment_file import SegmentFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

V1, V2, LONG_TOPIC, LONG_PROPERTIES, CHANGED = range(5)
"""The outcome for a message: copied, with a magic of V1 or V2; or left out, because a broker cannot read such a long
topic or such long properties, or because the bytes are not a message of that size."""


class CopiedMessages(NamedTuple):
    """The number of copied bytes, and the outcome for each message."""

    size: int
    outcomes: npt.NDArray[np.uint8]


def copy_messages(
    file: SegmentFile, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
) -> tuple[int, bytearray]:
    """The fields of `CopiedMessages`."""
    if len(starts) != len(sizes):
        raise ValueError(f"expected as many starts as sizes, found {len(starts)} and {len(sizes)}")
    if (sizes < 0).any() or sum(sizes.tolist()) > len(into):
        raise ValueError(f"the sizes do not fit a buffer of {len(into)} bytes")
    outcomes = bytearray()
    end = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        outcome = CHANGED
        if file.segment.base <= start <= start + size <= file.end:
            message = bytearray(file[start : start + size])
            outcome = _move(message, position + end)
            if outcome <= V2:
                into[end : end + size] = message
                end += size
        outcomes.append(outcome)
    return end, outcomes


def _move(message: bytearray, position: int) -> int:
    """Give a message another position. Returns the outcome."""
    data = bytes(message)
    parsed = message_in(data)
    if parsed is None:
        return CHANGED
    is_v2 = parsed.magic == layout.MESSAGE_MAGIC_V2
    if parsed.topic_length > (layout.MAX_V2_TOPIC_SIZE if is_v2 else layout.MAX_V1_TOPIC_SIZE):
        return LONG_TOPIC
    if parsed.properties_length > layout.MAX_PROPERTIES_SIZE:
        return LONG_PROPERTIES
    if parsed.physical_offset != position:
        struct.pack_into(">q", message, layout.PHYSICAL_OFFSET_AT, position)
        if stored_property_crc(parsed.raw_properties) is not None:
            begin = len(message) - layout.PROPERTY_CRC_SIZE
            message[begin:] = encode_property_crc(message_crc(bytes(message[:begin])))
    return V2 if is_v2 else V1
