"""The entries of a running store, as far as duplicate detection reads them."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from pyspark_dledger.common.log_records import record
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.message import has_message_magic, parse_message

# Entries to read until one is a message, which has a store timestamp.
_MAX_READ_FOR_TIME = 64


class LogEntries(Protocol):
    """A store, used in its thread only."""

    @property
    def ledger_begin_index(self) -> int: ...

    @property
    def ledger_end_index(self) -> int: ...

    def term_at(self, index: int) -> int: ...

    def get(self, index: int) -> Any:
        """An entry with ``pos`` and ``body``."""

    def read(self, first_index: int, max_bytes: int) -> Any:
        """Whole entries of up to `max_bytes`, but at least one: their ``last_index``, ``pos`` and ``data``."""


def has_entry(store: LogEntries, index: int, term: int) -> bool:
    """Whether the log has an entry of that index and term, or had it before it expired."""
    if not 0 <= index <= store.ledger_end_index:
        return False
    try:
        return index < store.ledger_begin_index or store.term_at(index) == term
    except StoreError:
        return False  # damaged


def first_stored_from(store: LogEntries, oldest: int) -> int:
    """The index of the first entry that was stored at `oldest` (ms) or later, by the messages' store timestamps."""
    low, high = max(store.ledger_begin_index, 0), store.ledger_end_index + 1
    while low < high:
        middle = (low + high) // 2
        if _stored_at(store, middle, unknown=oldest) < oldest:
            low = middle + 1
        else:
            high = middle
    return low


def _stored_at(store: LogEntries, index: int, unknown: int) -> int:
    """The storeTimestamp (ms) of the next message from an index on; `unknown` if none is near."""
    for each in range(index, min(index + _MAX_READ_FOR_TIME, store.ledger_end_index + 1)):
        body = _body(store, each)
        message = parse_message(body, 0, len(body), 0) if has_message_magic(body, 0, len(body)) else ""
        if not isinstance(message, str):
            return message.store_timestamp
    return unknown


def _body(store: LogEntries, index: int) -> bytes:
    """The body of an entry; empty if it is damaged, which is logged."""
    try:
        body: bytes = store.get(index).body
    except StoreError as error:
        record(logging.ERROR, "damaged", index=index, found=str(error))
        return b""
    return body
