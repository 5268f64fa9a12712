"""The messages that a leader has already: where they stand, for the answer to those that came again."""

from __future__ import annotations

import base64
import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAGIC_NORMAL, MESSAGE_HEADER
from pyspark_dledger.format.message import has_message_magic, parse_message
from pyspark_dledger.rocketmq.broker.put_statistics import logged

_QUEUE_OFFSET = next(field.offset for field in MESSAGE_HEADER if field.name == "queueOffset")
_LONG = struct.Struct(">q")
# Of an identity as base64, one behind the other: 24 bytes leave nothing over.
_TEXT_SIZE = 32
_HEADER = record_struct(ENTRY_HEADER)
_NO_HEADER = (0,) * len(ENTRY_HEADER)
# Entries to look at for one that is a message, and so has a time.
_MOST_LOOKED_AT = 64
# Bytes of consecutive entries that are read at once, where there are so many to read.
_READ_AT_ONCE = 64 * 1024
_LEAST_READ_AT_ONCE = 8


class HeldEntries(Protocol):
    """What is asked of a store, in its thread."""

    @property
    def ledger_begin_index(self) -> int: ...

    @property
    def ledger_end_index(self) -> int: ...

    def get(self, index: int) -> Any:
        """An entry with ``pos`` and ``body``."""

    def read(self, first_index: int, max_bytes: int) -> Any:
        """Whole entries up to that many bytes, but at least one: their ``last_index``, ``pos`` and ``data``."""


class MessageLocation(NamedTuple):
    """Where a message stands; ``pos`` and ``queue_offset`` are -1 where the log has it no more, or damaged."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int


# Where an entry stands, and its body.
_Body = tuple[int, bytes]


def places_of(store: HeldEntries, found: Mapping[int, tuple[int, bytes]]) -> dict[int, MessageLocation]:
    """The places of entries that are known to have an identity, by the ordinals of those who ask.

    An entry that the log holds is believed only where it shows that identity: else the message is not there.
    """
    places = {}
    wanted: dict[int, tuple[int, bytes]] = {}
    for ordinal, (index, identity) in found.items():
        if index < store.ledger_begin_index:
            places[ordinal] = MessageLocation(index, -1, -1)
        elif index <= store.ledger_end_index:
            wanted[ordinal] = index, identity
    bodies = _bodies(store, sorted({index for index, _ in wanted.values()}))
    texts = base64.urlsafe_b64encode(b"".join([identity for _, identity in wanted.values()]))
    for number, (ordinal, (index, _)) in enumerate(wanted.items()):
        text = texts[number * _TEXT_SIZE : (number + 1) * _TEXT_SIZE]
        if (place := _place(index, bodies[index], text)) is not None:
            places[ordinal] = place
    return places


def _place(index: int, entry: _Body | None, text: bytes) -> MessageLocation | None:
    if entry is None:
        return MessageLocation(index, -1, -1)
    pos, body = entry
    # Most clients have it last.
    if body.rfind(text) >= 0:
        return MessageLocation(index, pos, _LONG.unpack_from(body, _QUEUE_OFFSET)[0])
    logged(
        logging.WARNING, "identity not found", index=index, found="another entry than the identities of this node say"
    )
    return None


def _bodies(store: HeldEntries, indexes: Sequence[int]) -> dict[int, _Body | None]:
    """Where entries stand, and their bodies, by their ascending indexes; None for damaged ones.

    A put that comes again stands in one piece of the log: consecutive entries are read at once.
    """
    found: dict[int, _Body | None] = {}
    start = 0
    for stop in range(1, len(indexes) + 1):
        if stop == len(indexes) or indexes[stop] != indexes[stop - 1] + 1:
            first, last = indexes[start], indexes[stop - 1]
            most = _READ_AT_ONCE if stop - start >= _LEAST_READ_AT_ONCE else 0
            while first <= last:
                found.update(_read(store, first, last, most))
                first = next(reversed(found)) + 1
            start = stop
    return found


def _read(store: HeldEntries, first: int, last: int, most: int) -> Iterator[tuple[int, _Body | None]]:
    """Entries from that index on, at most so many bytes of them, up to `last` or the first that is damaged.

    That is no reason to end: it was put, whatever stands there now.
    """
    try:
        part = store.read(first, most)
    except StoreError as error:
        logged(logging.ERROR, "damaged", index=first, found=str(error))
        yield first, None
        return
    start = 0
    for index in range(first, min(part.last_index, last) + 1):
        pos = part.pos + start
        is_there = start + ENTRY_HEADER_SIZE <= len(part.data)
        header = _HEADER.unpack_from(part.data, start) if is_there else _NO_HEADER
        magic, size, its_index, _, its_pos, _, _, _, body_size = header
        if (magic, its_index, its_pos, body_size) != (MAGIC_NORMAL, index, pos, size - ENTRY_HEADER_SIZE):
            # Damaged since it was written: a store gives its newest entries unchecked.
            logged(logging.ERROR, "damaged", index=index, found=f"no entry of that index at {pos}")
            yield index, None
            return
        yield index, (pos, bytes(part.data[start + ENTRY_HEADER_SIZE : start + size]))
        start += size


def _entry(store: HeldEntries, index: int) -> Any:
    """An entry; None where it is damaged, which is no reason to end: it was put, whatever stands there now."""
    try:
        return store.get(index)
    except StoreError as error:
        logged(logging.ERROR, "damaged", index=index, found=str(error))
        return None


def stored_at(store: HeldEntries, index: int, unknown: int) -> int:
    """The storeTimestamp (ms) of an entry, or of the next that is a message; `unknown` where none is near."""
    for each in range(index, min(index + _MOST_LOOKED_AT, store.ledger_end_index + 1)):
        entry = _entry(store, each)
        body = entry.body if entry is not None else b""
        message = parse_message(body, 0, len(body), 0) if has_message_magic(body, 0, len(body)) else ""
        if not isinstance(message, str):
            return message.store_timestamp
    return unknown
