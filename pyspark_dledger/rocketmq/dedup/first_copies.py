"""Where the first copies of duplicates are in the log, for the response to a put that repeats them."""

from __future__ import annotations

import base64
import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark_dledger.common.log_records import record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAGIC_NORMAL, MESSAGE_HEADER
from pyspark_dledger.rocketmq.dedup.log_entries import LogEntries

_QUEUE_OFFSET = next(field.offset for field in MESSAGE_HEADER if field.name == "queueOffset")
_LONG = struct.Struct(">q")
# An identity of 24 bytes in base64, without padding.
_TEXT_SIZE = 32
_HEADER = record_struct(ENTRY_HEADER)
_NO_HEADER = (0,) * len(ENTRY_HEADER)
# From so many consecutive entries on, this many bytes are read at once.
_MIN_READ_TOGETHER = 8
_READ_BYTES = 64 * 1024


class MessageLocation(NamedTuple):
    """Where a message is; ``pos`` and ``queue_offset`` are -1 if it has expired or is damaged."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int


# Position and body of an entry.
_Body = tuple[int, bytes]


def first_copies(store: LogEntries, found: Mapping[int, tuple[int, bytes]]) -> dict[int, MessageLocation]:
    """Where messages with known identities are, by ordinal; `found` has each one's index and identity.

    An entry counts only if it has the identity: otherwise the message is not a duplicate.
    """
    locations = {}
    wanted: dict[int, tuple[int, bytes]] = {}
    for ordinal, (index, identity) in found.items():
        if index < store.ledger_begin_index:
            locations[ordinal] = MessageLocation(index, -1, -1)
        elif index <= store.ledger_end_index:
            wanted[ordinal] = index, identity
    bodies = _bodies(store, sorted({index for index, _ in wanted.values()}))
    texts = base64.urlsafe_b64encode(b"".join([identity for _, identity in wanted.values()]))
    for number, (ordinal, (index, _)) in enumerate(wanted.items()):
        text = texts[number * _TEXT_SIZE : (number + 1) * _TEXT_SIZE]
        if (location := _location(index, bodies[index], text)) is not None:
            locations[ordinal] = location
    return locations


def _location(index: int, entry: _Body | None, text: bytes) -> MessageLocation | None:
    if entry is None:
        return MessageLocation(index, -1, -1)
    pos, body = entry
    # Most clients write the identity last.
    if body.rfind(text) >= 0:
        return MessageLocation(index, pos, _LONG.unpack_from(body, _QUEUE_OFFSET)[0])
    record(
        logging.WARNING, "identity not found", index=index, found="another entry than the identities of this node say"
    )
    return None


def _bodies(store: LogEntries, indexes: Sequence[int]) -> dict[int, _Body | None]:
    """Positions and bodies of entries, by their ascending indexes; None for damaged ones.

    The messages of a repeated put are usually consecutive in the log: they are read together.
    """
    found: dict[int, _Body | None] = {}
    start = 0
    for stop in range(1, len(indexes) + 1):
        if stop == len(indexes) or indexes[stop] != indexes[stop - 1] + 1:
            first, last = indexes[start], indexes[stop - 1]
            max_bytes = _READ_BYTES if stop - start >= _MIN_READ_TOGETHER else 0
            while first <= last:
                found.update(_read(store, first, last, max_bytes))
                first = next(reversed(found)) + 1
            start = stop
    return found


def _read(store: LogEntries, first: int, last: int, max_bytes: int) -> Iterator[tuple[int, _Body | None]]:
    """Entries from index `first` on, at most `max_bytes` of them, up to `last` or the first damaged one.

    Damage is logged and not raised: the message was put, so it is a duplicate.
    """
    try:
        part = store.read(first, max_bytes)
    except StoreError as error:
        record(logging.ERROR, "damaged", index=first, found=str(error))
        yield first, None
        return
    start = 0
    for index in range(first, min(part.last_index, last) + 1):
        pos = part.pos + start
        is_there = start + ENTRY_HEADER_SIZE <= len(part.data)
        header = _HEADER.unpack_from(part.data, start) if is_there else _NO_HEADER
        magic, size, its_index, _, its_pos, _, _, _, body_size = header
        if (magic, its_index, its_pos, body_size) != (MAGIC_NORMAL, index, pos, size - ENTRY_HEADER_SIZE):
            # A store returns its newest entries unchecked.
            record(logging.ERROR, "damaged", index=index, found=f"no entry of that index at {pos}")
            yield index, None
            return
        yield index, (pos, bytes(part.data[start + ENTRY_HEADER_SIZE : start + size]))
        start += size
