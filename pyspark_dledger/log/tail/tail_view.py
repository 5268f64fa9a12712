"""A store as it stood at one look: what may be read of it, and single entries and messages with their CRC."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MESSAGE_HEADER
from pyspark_dledger.format.message import MESSAGE_CRC_MASK, Message, has_message_magic, parse_message
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.committed import Bound
from pyspark_dledger.log.io.entry_reads import entry_at, read_at, segment_at
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tail.tail import TailOffset

_TOTAL_SIZE = MESSAGE_HEADER[0]


class EntryRef(NamedTuple):
    """An entry or a message of the log, and the position right behind it."""

    offset: TailOffset
    end: int

    @property
    def pos(self) -> int:
        return -1 if self.offset.pos is None else self.offset.pos


class View:
    """A store as it stood at one look: what may be read of it, and single entries."""

    def __init__(self, store: StoreView, bound: Bound, known: EntryRef | None) -> None:
        self.store = store
        self.bound = bound
        self.known = known
        self.end: EntryRef | None = None

    @property
    def begin(self) -> int:
        """Where the first row begins."""
        return self.store.segments[0].base if self.store.segments else 0

    @property
    def begin_index(self) -> int | None:
        """The first index of the log; None without one."""
        first = next(filter(None, map(self.store.first_entry, self.store.ledger_segments)), None)
        return first[1] if first is not None and self.store.end.entries > 0 else None

    def place(self, source: str, pos: int) -> EntryRef | None:
        """What stands at a position of a source, or None."""
        segments = [segment for segment in self.store.segments if segment.source == source]
        segment = segment_at(segments, pos)
        if segment is None:
            return None
        return self._entry(segment, pos) if source == DLEDGER else self._message(segment, pos)

    def _entry(self, segment: Segment, pos: int) -> EntryRef | None:
        header = entry_at(segment, pos)
        if header is None:
            return None
        data = read_at(segment.path, pos - segment.base, header.size)
        return EntryRef(TailOffset(header.index, header.term, pos, self.store.engine.crc32(data)), pos + header.size)

    def _message(self, segment: Segment, pos: int) -> EntryRef | None:
        head = read_at(segment.path, pos - segment.base, 8)
        if not has_message_magic(head, 0, len(head)):
            return None
        size = int.from_bytes(head[_TOTAL_SIZE.offset : _TOTAL_SIZE.length], "big", signed=True)
        if not 0 < size <= segment.end - pos:
            return None
        data = read_at(segment.path, pos - segment.base, size)
        return EntryRef(TailOffset(None, None, pos, self.store.engine.crc32(data)), pos + size)

    def position_of(self, index: int) -> int:
        """Where the first entry with at least `index` stands, found without a walk where the index knows it."""
        end, known = self.store.end, self.known
        if index == end.last_index:
            return end.last_pos
        indexed = self.store.indexed(index)
        if indexed is not None:
            return indexed
        is_before = known is not None and known.offset.index is not None and known.offset.index <= index
        if known is not None and is_before and index <= end.last_index and known.end <= end.pos:
            segment = segment_at(self.store.ledger_segments, known.pos)
            if segment is not None and self.place(DLEDGER, known.pos) == known:
                stop = self.store.segment_end(segment)
                pos = self.store.engine.seek(segment, known.pos, stop, index)
                if pos < stop:
                    return pos
        return self.store.position_of(index)

    def entry(self, index: int) -> EntryRef | None:
        """The entry of that index, or the first behind it where damage took it."""
        return self.place(DLEDGER, self.position_of(index))

    def old_end(self) -> EntryRef | None:
        """The last message of the old CommitLog."""
        found = self.store.ends.get(COMMITLOG)
        return self.place(COMMITLOG, found[1].last_pos) if found is not None else None

    def is_whole(self, place: EntryRef) -> bool:
        """Whether a message is written to its end, as its lengths, its CRC and its last byte tell, which is never 0.

        Without properties that is its topic's.
        """
        segment = segment_at([part for part in self.store.segments if part.source == COMMITLOG], place.pos)
        if segment is None:
            return False
        data = read_at(segment.path, place.pos - segment.base, place.end - place.pos)
        message = parse_message(data, 0, len(data), place.pos)
        if isinstance(message, str):
            return False
        body = data[message.body_start : message.body_start + message.body_length]
        written = data if message.properties_length else data[: message.properties_start - 2]
        return self.store.engine.crc32(body) & MESSAGE_CRC_MASK == message.body_crc and written[-1] != 0


def message_of(store: StoreView, index: int) -> tuple[Message, str] | None:
    """The message of an entry that the index file knows, and its topic, or None."""
    pos = store.indexed(index)
    segment = segment_at(store.ledger_segments, pos) if pos is not None else None
    header = entry_at(segment, pos) if segment is not None and pos is not None else None
    if segment is None or pos is None or header is None:
        return None
    body = read_at(segment.path, pos + ENTRY_HEADER_SIZE - segment.base, header.body_size)
    if not has_message_magic(body, 0, len(body)):
        return None
    message = parse_message(body, 0, len(body), pos + ENTRY_HEADER_SIZE)
    if isinstance(message, str):
        return None
    return message, decode_utf8(body[message.topic_start : message.topic_start + message.topic_length])
