"""Reads entries of a running store: their store timestamps, and where the first copies of duplicates are."""

from __future__ import annotations

import base64
import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark_dledger.common.log_records import record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    MAGIC_NORMAL,
    MESSAGE_HEADER,
    PROPERTY_REAL_QUEUE_ID,
)
from pyspark_dledger.format.message import host_sizes, message_in

# Entries to read until one is a message, which has a store timestamp.
_MAX_READ_FOR_TIME = 64
_QUEUE_OFFSET = next(field.offset for field in MESSAGE_HEADER if field.name == "queueOffset")
_LONG = struct.Struct(">q")
_SYS_FLAG = slice(36, 40)
# Of the fields before the body's length, without both hosts.
_FRONT_SIZE = 68
# An identity of 24 bytes in base64, without padding.
_TEXT_SIZE = 32
_HEADER = record_struct(ENTRY_HEADER)
_NO_HEADER = (0,) * len(ENTRY_HEADER)
# From so many consecutive entries on, this many bytes are read at once.
_MIN_READ_TOGETHER = 8
_READ_BYTES = 64 * 1024


class RunningStore(Protocol):
    """The store of a running node (`store.DLedgerStore`). Only the node's thread uses it, except as that says."""

    append_hook: Callable[[bytearray, bytearray], None] | None
    read_check: Callable[[Buffer], int | None] | None
    expiry_hook: Callable[[int, bool], int] | None

    @property
    def committed_index(self) -> int: ...

    @property
    def flushed_index(self) -> int: ...

    @property
    def end_pos(self) -> int: ...

    @property
    def ledger_begin_index(self) -> int: ...

    @property
    def ledger_end_index(self) -> int: ...

    def term_at(self, index: int) -> int: ...

    def is_recent(self, index: int) -> bool: ...

    def end_of(self, index: int) -> int | None: ...

    def get(self, index: int) -> Any:
        """An entry with ``pos`` and ``body``."""

    def read(self, first_index: int, max_bytes: int) -> Any:
        """Whole entries of up to `max_bytes`, but at least one: their ``last_index``, ``pos`` and ``data``."""


class AppendedEntries(Protocol):
    """The entries of one append (`store.Appended`)."""

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def runs(self) -> Sequence[tuple[int, int]]: ...


def has_entry(store: RunningStore, index: int, term: int) -> bool:
    """Whether the log has an entry of that index and term, or had it before it expired."""
    if not 0 <= index <= store.ledger_end_index:
        return False
    try:
        return index < store.ledger_begin_index or store.term_at(index) == term
    except StoreError:
        return False  # damaged


def first_stored_from(store: RunningStore, oldest: int) -> int:
    """The index of the first entry that was stored at `oldest` (ms) or later, by the messages' store timestamps."""
    low, high = max(store.ledger_begin_index, 0), store.ledger_end_index + 1
    while low < high:
        middle = (low + high) // 2
        if _stored_at(store, middle, unknown=oldest) < oldest:
            low = middle + 1
        else:
            high = middle
    return low


def _stored_at(store: RunningStore, index: int, unknown: int) -> int:
    """The storeTimestamp (ms) of the next message from an index on; `unknown` if none is near."""
    for each in range(index, min(index + _MAX_READ_FOR_TIME, store.ledger_end_index + 1)):
        try:
            body = store.get(each).body
        except StoreError as error:
            record(logging.ERROR, "damaged", index=each, found=str(error))
            continue
        message = message_in(body)
        if message is not None:
            return message.store_timestamp
    return unknown


class MessageLocation(NamedTuple):
    """Where a message is; ``pos`` and ``queue_offset`` are -1 if it has expired or is damaged."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int


# Position and body of an entry.
_Body = tuple[int, bytes]


def first_copies(
    store: RunningStore, found: Mapping[int, tuple[int, bytes]], messages: Sequence[bytes]
) -> dict[int, MessageLocation]:
    """Where messages with known identities are, by ordinal; `found` has each one's index and identity.

    An entry counts only if it has the identity: otherwise the message is not a duplicate. Raises ValueError if its
    content differs: a client can take the identity of another one's next message, which must not get lost.
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
        if (location := _location(index, bodies[index], text, messages[ordinal])) is not None:
            locations[ordinal] = location
    return locations


def _location(index: int, entry: _Body | None, text: bytes, message: bytes) -> MessageLocation | None:
    if entry is None:
        return MessageLocation(index, -1, -1)
    pos, body = entry
    # Most clients write the identity last.
    if body.rfind(text) >= 0:
        if not is_same_message(body, message):
            # A store returns its newest entries unchecked.
            if (found := message_in(body)) is None or not found.has_right_crc:
                return MessageLocation(index, -1, -1)
            raise ValueError(
                f"expected a new identity, found that of another message, entry {index}: use another producer"
            )
        return MessageLocation(index, pos, _LONG.unpack_from(body, _QUEUE_OFFSET)[0])
    record(
        logging.WARNING, "identity not found", index=index, found="another entry than the identities of this node say"
    )
    return None


def is_same_message(one: bytes, other: bytes) -> bool:
    """Whether two messages have the same topic, body and properties. A delayed one may get another queue."""
    return _tail(one) == _tail(other) or (_content(one) is not None and _content(one) == _content(other))


def _tail(message: bytes) -> bytes:
    """All from the body's length on."""
    return message[_FRONT_SIZE + sum(host_sizes(int.from_bytes(message[_SYS_FLAG], "big"))) :]


def _content(data: bytes) -> tuple[bytes, bytes, dict[str, str]] | None:
    message = message_in(data)
    if message is None:
        return None
    properties = message.properties
    properties.pop(PROPERTY_REAL_QUEUE_ID, None)
    return message.raw_topic, message.body, properties


def _bodies(store: RunningStore, indexes: Sequence[int]) -> dict[int, _Body | None]:
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


def _read(store: RunningStore, first: int, last: int, max_bytes: int) -> Iterator[tuple[int, _Body | None]]:
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
