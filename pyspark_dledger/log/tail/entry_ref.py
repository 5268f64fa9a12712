"""Single entries and messages of a store, with the CRC-32 of their bytes."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MESSAGE_HEADER
from pyspark_dledger.format.message import Message, has_message_magic, message_in
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import TailOffset

_TOTAL_SIZE = MESSAGE_HEADER[0]


class EntryRef(NamedTuple):
    """An entry, or a message of the old CommitLog, and the position after it."""

    offset: TailOffset
    end: int

    @property
    def pos(self) -> int:
        return -1 if self.offset.pos is None else self.offset.pos


def entry_ref(store: StoreView, source: str, pos: int) -> EntryRef | None:
    """The entry or message at a position of a source, or None."""
    segment = segment_at([segment for segment in store.segments if segment.source == source], pos)
    if segment is None:
        return None
    return _entry(store, segment, pos) if source == DLEDGER else _message(store, segment, pos)


def _entry(store: StoreView, segment: Segment, pos: int) -> EntryRef | None:
    header = entry_at(segment, pos)
    if header is None:
        return None
    data = segment.read(pos, header.size)
    return EntryRef(TailOffset(header.index, header.term, pos, store.engine.crc32(data)), pos + header.size)


def _message(store: StoreView, segment: Segment, pos: int) -> EntryRef | None:
    head = segment.read(pos, 8)
    if not has_message_magic(head, 0, len(head)):
        return None
    size = int.from_bytes(head[_TOTAL_SIZE.offset : _TOTAL_SIZE.length], "big", signed=True)
    if not 0 < size <= segment.end - pos:
        return None
    data = segment.read(pos, size)
    return EntryRef(TailOffset(None, None, pos, store.engine.crc32(data)), pos + size)


def is_complete_message(store: StoreView, message: EntryRef) -> bool:
    """Whether a message of the old CommitLog is written completely: by its lengths, its CRC and its last byte.

    The last byte is never 0. It belongs to the properties, or to the topic if there are none.
    """
    segment = segment_at([part for part in store.segments if part.source == COMMITLOG], message.pos)
    if segment is None:
        return False
    data = segment.read(message.pos, message.end - message.pos)
    parsed = message_in(data)
    if parsed is None:
        return False
    written = data if parsed.properties_length else data[: parsed.properties_start - 2]
    return parsed.has_right_crc and written[-1] != 0


def message_of(store: StoreView, index: int) -> Message | None:
    """The message of an entry that the index file has, or None."""
    pos = store.indexed(index)
    segment = segment_at(store.ledger_segments, pos) if pos is not None else None
    header = entry_at(segment, pos) if segment is not None and pos is not None else None
    if segment is None or pos is None or header is None:
        return None
    return message_in(segment.read(pos + ENTRY_HEADER_SIZE, header.body_size))
