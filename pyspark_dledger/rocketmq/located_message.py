"""Reads single messages at an offset of the log."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format import layout
from pyspark_dledger.format.message import Message, parse_message, parse_properties
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.io.entry_reads import entry_at, read_at, segment_at
from pyspark_dledger.log.store_view import StoreView


@dataclass(frozen=True)
class LocatedMessage:
    """A message at an offset of the log, with its properties."""

    offset: int
    message: Message
    topic: str
    properties: dict[str, str]


def message_at(log: StoreView, offset: int) -> LocatedMessage | None:
    """The message at an offset of the log, in DLedger that of an entry's body; None without one."""
    for source, header in ((DLEDGER, layout.ENTRY_HEADER_SIZE), (COMMITLOG, 0)):
        segment = segment_at(log.segments, offset - header)
        if segment is None or segment.source != source or offset - header >= log.segment_end(segment):
            continue
        at = offset - segment.base
        size = int.from_bytes(read_at(segment.path, at, 4), "big", signed=True)
        entry = entry_at(segment, offset - header) if source == DLEDGER else None
        if source == DLEDGER and (entry is None or entry.body_size != size):
            return None
        if not layout.MIN_MESSAGE_SIZE <= size <= layout.MAX_ENTRY_SIZE:
            return None
        data = read_at(segment.path, at, size)
        message = parse_message(data, 0, size, offset) if len(data) == size else ""
        if isinstance(message, str) or message.magic not in (layout.MESSAGE_MAGIC_V1, layout.MESSAGE_MAGIC_V2):
            return None
        topic = data[message.topic_start : message.topic_start + message.topic_length]
        start = message.properties_start
        properties = parse_properties(data[start : start + message.properties_length])
        return LocatedMessage(offset, message, decode_utf8(topic), properties)
    return None
