"""Where a read of a live group begins and ends, by index, position or time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import final

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import message_in
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.spark.group.group_log import GroupLog

# Bytes of a request that searches a message.
_REQUEST_BYTES = 4 * 1024 * 1024


@final
class GroupStart:
    """The first index to read. It does not depend on how much of the log is committed."""

    def __init__(self, log: GroupLog, options: ReadOptions) -> None:
        self._log = log
        self._options = options
        # These committed entries hold no message; they are not read again.
        self._without_message = range(0)

    def first_index(self, begin: int, committed: int) -> int:
        """Return it, for a log from `begin` to `committed`; at least ``committed + 1`` if it is not committed yet.

        Raises StoreError for a start before `begin`, unless failOnDataLoss is false.
        """
        first = self.offset_index(begin, committed)
        if self._options.starting_timestamp is None:
            return first
        return self.stored_at(self._options.starting_timestamp // 1000, first, committed)

    def offset_index(self, begin: int, committed: int) -> int:
        """Return the index of startingOffsets, `begin` for ``earliest`` and ``latest``. Raises as `first_index`."""
        offset = self._options.starting_offsets
        if offset.kind == "index":
            return self._not_before("index", offset.value, begin)
        if offset.kind != "pos":
            return begin
        begin_pos = self._log.entry(begin).pos if begin <= committed else 0
        self._not_before("pos", offset.value, begin_pos)
        return self.index_at(offset.value, begin, committed)

    def index_at(self, pos: int, begin: int, committed: int) -> int:
        """Return the first index whose entry begins at or after `pos`."""
        if committed < begin or self._log.entry(committed).end <= pos:
            return committed + 1
        return _first_index(begin, committed, lambda index: self._log.entry(index).pos >= pos)

    def index_after_term(self, term: int, begin: int, last: int) -> int:
        """Return the first index with a term above `term`, as `last` has one."""
        return _first_index(begin, last, lambda index: self._log.entry(index).term > term)

    def _not_before(self, unit: str, start: int, begin: int) -> int:
        if start < begin and self._options.fail_on_data_loss:
            raise StoreError(
                f"{self._log.name}: startingOffsets: expected {unit} {start}, found the first entry with {unit} "
                f"{begin}: start there or later, or set failOnDataLoss=false"
            )
        return max(start, begin)

    def stored_at(self, milliseconds: int, begin: int, committed: int) -> int:
        """Return the first message from `begin` on stored at or after that time, if times rise; else ``committed + 1``.

        If times do not rise, it is one of the messages after which they pass that time. The search always reads the
        same indexes, so the result does not depend on how much is committed.
        """
        first = 0
        for bit in reversed(range((committed + 1).bit_length())):
            probe = first + (1 << bit)
            if probe - 1 <= committed and self._is_stored_before(milliseconds, max(probe - 1, begin), committed):
                first = probe
        message = self._next_message(max(first, begin), committed)
        return message[0] if message is not None else committed + 1

    def _is_stored_before(self, milliseconds: int, index: int, committed: int) -> bool:
        """Return whether the first message from `index` on was stored before that time."""
        message = self._next_message(index, committed)
        return message is not None and message[1] < milliseconds

    def _next_message(self, index: int, committed: int) -> tuple[int, int] | None:
        """Return index and storeTimestamp (ms since 1970) of the first committed message from `index` on."""
        start, size = index, 1
        while index <= committed:
            if index in self._without_message:
                index = self._without_message.stop
                continue
            data = memoryview(self._log.read(index, size).data)
            at, size = 0, _REQUEST_BYTES
            while at < len(data) and index <= committed:
                end = at + decode_entry_header(bytes(data[at : at + ENTRY_HEADER_SIZE])).size
                stored = _store_timestamp(bytes(data[at + ENTRY_HEADER_SIZE : end]))
                if stored is not None:
                    return index, stored
                at, index = end, index + 1
        known = self._without_message
        self._without_message = range(min(start, known.start) if start <= known.stop else start, index)
        return None


def _first_index(low: int, high: int, is_reached: Callable[[int], bool]) -> int:
    """Return the first index from `low` on for which `is_reached` is true; from there on it is, up to `high`."""
    return low + bisect_left(range(low, high), True, key=is_reached)


def _store_timestamp(body: bytes) -> int | None:
    """Return when a message was stored, in ms since 1970; None for any other entry."""
    message = message_in(body)
    return message.store_timestamp if message is not None else None
