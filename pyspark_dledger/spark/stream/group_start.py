"""Where a stream over a live group begins: startingOffsets and startingTimestamp, as an index of the group's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import has_message_magic, parse_message
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.spark.stream.group_log import GroupLog

_CHUNK_BYTES = 4 * 1024 * 1024


class _Stored(NamedTuple):
    """A message: its index, and when it was stored, in ms since 1970."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    store_timestamp: int


@final
class GroupStart:
    """The first index that the options ask for. The same log gives the same index, however far it is committed."""

    def __init__(self, log: GroupLog, options: ReadOptions) -> None:
        self._log = log
        self._options = options
        # Committed entries up to the end that hold no message, so that they are not looked through again.
        self._without_message = range(0)

    def first(self, begin: int, committed: int) -> int:
        """It, in a log that is there from `begin` up to `committed`; at least ``committed + 1`` if it is yet to come.

        Raises StoreError for a start below `begin`, unless failOnDataLoss is false.
        """
        offset = self._options.starting_offsets
        if offset.kind == "index":
            first = self._not_below(offset.value, begin, f"index {offset.value}", f"index {begin}")
        elif offset.kind == "pos":
            first = self._at_given_pos(offset.value, begin, committed)
        else:
            first = begin
        if self._options.starting_timestamp is None:
            return first
        return self._at_time(self._options.starting_timestamp // 1000, first, committed)

    def at_pos(self, pos: int, begin: int, committed: int) -> int:
        """The first index whose entry begins at `pos` or behind it."""
        if committed < begin or self._log.entry(committed).end <= pos:
            return committed + 1
        return self._first_where(lambda index: self._log.entry(index).pos >= pos, begin, committed)

    def with_term_above(self, term: int, begin: int, last: int) -> int:
        """The first index up to `last`, which has a higher term than `term`, that has one, too."""
        return self._first_where(lambda index: self._log.entry(index).term > term, begin, last)

    def _at_given_pos(self, pos: int, begin: int, committed: int) -> int:
        first_pos = self._log.entry(begin).pos if begin <= committed else 0
        self._not_below(pos, first_pos, f"pos {pos}", f"pos {first_pos}")
        return self.at_pos(pos, begin, committed)

    def _not_below(self, wanted: int, least: int, wanted_text: str, least_text: str) -> int:
        if wanted < least and self._options.fail_on_data_loss:
            raise StoreError(
                f"group {self._log.group}: startingOffsets: expected {wanted_text}, found the first entry with "
                f"{least_text}: start there or later, or set failOnDataLoss=false"
            )
        return max(wanted, least)

    def _at_time(self, milliseconds: int, begin: int, committed: int) -> int:
        """The first message from `begin` on stored at that time or later, if times rise; else one behind `committed`.

        Where they do not rise, it is one of the places where they pass that time. Which one does not depend on how far
        the log is committed: the places that are looked at are always the same.
        """
        first = 0
        for bit in reversed(range((committed + 1).bit_length())):
            probe = first + (1 << bit)
            if probe - 1 <= committed and self._is_before(max(probe - 1, begin), milliseconds, committed):
                first = probe
        message = self._next_message(max(first, begin), committed)
        return message.index if message is not None else committed + 1

    def _is_before(self, index: int, milliseconds: int, committed: int) -> bool:
        """Whether the first message from `index` on was stored before that time."""
        message = self._next_message(index, committed)
        return message is not None and message.store_timestamp < milliseconds

    def _next_message(self, index: int, committed: int) -> _Stored | None:
        """The first committed message from `index` on."""
        begun, size = index, 1
        while index <= committed:
            if index in self._without_message:
                index = self._without_message.stop
                continue
            data = memoryview(self._log.read(index, size).data)
            at, size = 0, _CHUNK_BYTES
            while at < len(data) and index <= committed:
                end = at + decode_entry_header(bytes(data[at : at + ENTRY_HEADER_SIZE])).size
                stored = _store_timestamp(bytes(data[at + ENTRY_HEADER_SIZE : end]))
                if stored is not None:
                    return _Stored(index, stored)
                at, index = end, index + 1
        known = self._without_message
        self._without_message = range(min(begun, known.start) if begun <= known.stop else begun, index)
        return None

    @staticmethod
    def _first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
        """The first index in ``[low, high]`` for which `holds` is true; it is for `high` and from there on."""
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        return high


def _store_timestamp(body: bytes) -> int | None:
    """When a message was stored, in ms since 1970; None for any other entry."""
    message = parse_message(body, 0, len(body), 0) if has_message_magic(body, 0, len(body)) else None
    return message.store_timestamp if message is not None and not isinstance(message, str) else None
