"""The messages that a leader has already: where they stand, for the answer to those that came again."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import MESSAGE_HEADER
from pyspark_dledger.format.message import has_message_magic, parse_message
from pyspark_dledger.rocketmq.statistics import logged

_QUEUE_OFFSET = next(field for field in MESSAGE_HEADER if field.name == "queueOffset")
# Entries to look at for one that is a message, and so has a time.
_MOST_LOOKED_AT = 64


class Held(Protocol):
    """What is asked of a store, in its thread."""

    @property
    def ledger_begin_index(self) -> int: ...

    @property
    def ledger_end_index(self) -> int: ...

    def get(self, index: int) -> Any:
        """An entry with ``pos`` and ``body``."""


class Place(NamedTuple):
    """Where a message stands; ``pos`` and ``queue_offset`` are -1 where the log has it no more, or damaged."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    queue_offset: int


def places_of(store: Held, found: Mapping[int, tuple[int, bytes]]) -> dict[int, Place]:
    """The places of entries that are known to have an identity, by the ordinals of those who ask.

    An entry that the log holds is believed only where it shows that identity: else the message is not there.
    """
    places = {}
    for ordinal, (index, identity) in found.items():
        if index < store.ledger_begin_index:
            places[ordinal] = Place(index, -1, -1)
        elif (place := _place(store, index, identity)) is not None:
            places[ordinal] = place
    return places


def _place(store: Held, index: int, identity: bytes) -> Place | None:
    if index > store.ledger_end_index:
        return None
    entry = _entry(store, index)
    if entry is None:
        return Place(index, -1, -1)
    if base64.urlsafe_b64encode(identity) in entry.body:
        start, length = _QUEUE_OFFSET.offset, _QUEUE_OFFSET.length
        return Place(index, entry.pos, int.from_bytes(entry.body[start : start + length], "big", signed=True))
    logged(
        logging.WARNING, "identity not found", index=index, found="another entry than the identities of this node say"
    )
    return None


def _entry(store: Held, index: int) -> Any:
    """An entry; None where it is damaged, which is no reason to end: it was put, whatever stands there now."""
    try:
        return store.get(index)
    except StoreError as error:
        logged(logging.ERROR, "damaged", index=index, found=str(error))
        return None


def stored_at(store: Held, index: int, unknown: int) -> int:
    """The storeTimestamp (ms) of an entry, or of the next that is a message; `unknown` where none is near."""
    for each in range(index, min(index + _MOST_LOOKED_AT, store.ledger_end_index + 1)):
        entry = _entry(store, each)
        body = entry.body if entry is not None else b""
        message = parse_message(body, 0, len(body), 0) if has_message_magic(body, 0, len(body)) else ""
        if not isinstance(message, str):
            return message.store_timestamp
    return unknown
