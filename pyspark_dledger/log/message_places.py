"""Where the row of a message is, given the offset that a ConsumeQueue, an IndexFile or an offsetMsgId has."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import COMMITLOG
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.store_view import StoreView


class RowRange(NamedTuple):
    """The positions ``[start, end)`` of a row."""

    start: int
    end: int


def row_of_message(log: StoreView, offset: int) -> RowRange | None:
    """The row whose message begins at `offset`; None if none does. Its bytes are not checked."""
    segment = segment_at(log.segments, offset)
    if segment is None or segment.source != COMMITLOG:
        pos = offset - ENTRY_HEADER_SIZE
        segment = segment_at(log.ledger_segments, pos)
        header = entry_at(segment, pos) if segment is not None else None
        return RowRange(pos, pos + header.size) if header is not None and pos < log.end.pos else None
    head = segment.read(offset, MIN_MESSAGE_SIZE)
    size = int.from_bytes(head[:4], "big", signed=True)
    if len(head) < MIN_MESSAGE_SIZE or not has_message_magic(head, 0, len(head)) or size < MIN_MESSAGE_SIZE:
        return None
    return RowRange(offset, offset + size)
