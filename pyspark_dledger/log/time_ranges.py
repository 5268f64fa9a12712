"""Leaves out the parts of a log whose messages were stored at other times than those wanted.

Clocks jump, so the messages at both ends of a part do not bound those between them. A part is left out if one leader
stamped all its messages, and both ends are earlier than the wanted times, or both later, by more than the option
clockTolerance. One damaged message does not decide: a second one has to agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import MAX_TIMESTAMP, MIN_TIMESTAMP
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import STORED_SIZE, stored_at
from pyspark_dledger.format.spec import DLEDGER, Filters, IntFilter, ScanRequest, Segment
from pyspark_dledger.log.io.entry_reads import entry_in
from pyspark_dledger.log.store_view import StoreView

# A part is not divided below this size: reading it costs less.
_MIN_BYTES = 1024 * 1024
_READ_BYTES = ENTRY_HEADER_SIZE + STORED_SIZE
# Entries without a message, such as a leader's NOOP, are few.
_MAX_ENTRIES = 16
_EARLIER, _LATER = -1, 1

Span = tuple[int, int]


class _Sample(NamedTuple):
    """The first messages from a position on: who wrote the first one, and their store times in microseconds.

    ``term`` is None in an old CommitLog; ``index`` is the first entry's, with or without a message.
    """

    source: str
    term: int | None
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    low: int
    high: int


def in_time(
    store: StoreView, parts: Sequence[ScanRequest], wanted: IntFilter, tolerance: int
) -> list[list[ScanRequest]]:
    """What of each part has to be read for the `wanted` store times. Parts are in the order of the log.

    `tolerance` is in microseconds.
    """
    search = _TimeSearch(store, parts, wanted, tolerance)
    return [list(search.pieces_of(number)) for number in range(len(parts))]


def has_message_of(store: StoreView, time: int) -> bool:
    """Whether the log has a message that was stored at `time` (ms), at any place: clocks go back."""
    if not MIN_TIMESTAMP <= time <= MAX_TIMESTAMP:
        return False
    filters = Filters(store_timestamp=IntFilter(time * 1000, time * 1000))
    for segment in reversed(store.segments):
        request = ScanRequest(segment, segment.base, store.segment_end(segment), ("pos",), filters, verify_crc=False)
        with suppress(UnreadableError):
            if any(len(rows) for rows, _ in store.engine.scan(request)):
                return True
    return False


class _TimeSearch:
    """A search for the parts that can have messages of a time range."""

    def __init__(self, store: StoreView, parts: Sequence[ScanRequest], wanted: IntFilter, tolerance: int) -> None:
        self._store = store
        self._parts = parts
        self._low, self._high = wanted.low - tolerance, wanted.high + tolerance
        self._tolerance = tolerance
        end = self._last_messages()
        # The end of the log has a number, too: the one after the last part.
        self._samples = [*(self._sample(part.segment, part.start, 1) for part in parts), end]
        self._pairs: dict[int, _Sample | None] = {len(parts): end}
        numbers = range(len(self._samples))
        # The last part with a sample up to each part, and the first one after each.
        self._before = self._nearest(numbers)
        self._after = [*self._nearest(reversed(numbers))[::-1][1:], None]

    def _last_messages(self) -> _Sample | None:
        """The last two messages of the log, if its last two entries are messages."""
        if not self._parts or self._parts[-1].segment.source not in self._store.ends:
            return None
        segment, end = self._store.ends[self._parts[-1].segment.source]
        pos = self._store.indexed(end.last_index - 1)
        return self._sample(segment, pos, 2) if pos is not None and pos >= segment.base else None

    def _nearest(self, numbers: Iterable[int]) -> list[int | None]:
        """For each part the last one in this order that has a sample, itself included."""
        nearest: list[int | None] = []
        for number in numbers:
            last = nearest[-1] if nearest else None
            nearest.append(number if self._samples[number] is not None else last)
        return nearest

    def pieces_of(self, number: int) -> Iterator[ScanRequest]:
        """What has to be read of a part."""
        before, after = self._before[number], self._after[number]
        if before is not None and after is not None and self._is_out(before, after):
            return
        part = self._parts[number]
        first, last = self._pair(before), self._pair(after)
        for start, end in merge_adjacent(self._pieces(part.segment, part.start, part.end, first, last), _joined):
            yield replace(part, start=start, end=end)

    def _is_out(self, before: int, after: int) -> bool:
        """Whether no message from one part with a sample to the next one is wanted."""
        side = self._side_of_all(self._samples[before], self._samples[after])
        if side == 0:
            return False
        # The sample nearer to the wanted times decides: the one beyond it, or a second message, has to agree.
        if side == _EARLIER:
            decides, beyond = after, self._after[after]
        else:
            decides, beyond = before, self._before[before - 1] if before > 0 else None
        agrees = beyond is not None and self._side(self._samples[beyond]) == side
        return agrees or self._side(self._pair(decides)) == side

    def _pieces(
        self, segment: Segment, start: int, end: int, first: _Sample | None, last: _Sample | None
    ) -> Iterator[Span]:
        """The pieces of ``[start, end)`` to read, given the messages from `start` on and from `end` on."""
        if self._side_of_all(first, last) != 0:
            return
        is_unknown = first is None and last is None
        is_wanted = first is not None and last is not None and self._side(first) == self._side(last) == 0
        middle = None
        if end - start > _MIN_BYTES and not is_unknown and not is_wanted:
            middle = self._middle(segment, start, end, first, last)
        sample = self._sample(segment, middle, 2) if middle is not None else None
        if middle is None or sample is None:
            yield start, end
            return
        yield from self._pieces(segment, start, middle, first, sample)
        yield from self._pieces(segment, middle, end, sample, last)

    def _middle(
        self, segment: Segment, start: int, end: int, first: _Sample | None, last: _Sample | None
    ) -> int | None:
        """Where an entry begins about in the middle of a range: as the index files say, else as the log shows."""
        if first is not None and first.term is not None:
            stop = last.index if last is not None and last.term is not None else self._store.end.last_index + 1
            pos = self._store.indexed((first.index + stop) // 2)
            if pos is not None and start < pos < end:
                return pos
        cuts = self._store.engine.split(segment, start, end, (end - start) // 2)
        return cuts[0] if cuts else None

    def _side(self, sample: _Sample | None) -> int:
        """`_EARLIER` or `_LATER` than the wanted times, else 0."""
        if sample is None:
            return 0
        return _EARLIER if sample.high < self._low else _LATER if sample.low > self._high else 0

    def _side_of_all(self, first: _Sample | None, last: _Sample | None) -> int:
        """The side of all messages between two samples, as far as these can show it."""
        if first is None or last is None or first[:2] != last[:2]:
            return 0
        side = self._side(first)
        is_in_order = first.low <= last.high + self._tolerance
        return side if is_in_order and side == self._side(last) else 0

    def _pair(self, number: int | None) -> _Sample | None:
        """The first two messages of a part."""
        if number is None:
            return None
        if number not in self._pairs:
            part = self._parts[number]
            self._pairs[number] = self._sample(part.segment, part.start, 2)
        return self._pairs[number]

    def _sample(self, segment: Segment, pos: int, count: int) -> _Sample | None:
        """The first `count` messages from the entry at `pos` on; None if they are not found."""
        found = list(islice(self._messages(segment, pos), count))
        if len(found) < count:
            return None
        times = [time for _, _, time in found]
        return _Sample(segment.source, found[0][0], found[0][1], min(times), max(times))

    def _messages(self, segment: Segment, pos: int) -> Iterator[tuple[int | None, int, int]]:
        """Term, index of the entry at `pos`, and time in microseconds, of the messages from `pos` on."""
        index = -1
        for _ in range(_MAX_ENTRIES):
            data = self._read(segment, pos)
            if segment.source == DLEDGER:
                header = entry_in(data, segment, pos)
                if header is None:
                    return
                term, size, skipped = header.term, header.size, ENTRY_HEADER_SIZE
                index = header.index if index < 0 else index
            else:
                term, size, skipped = None, int.from_bytes(data[:4], "big"), 0
            stored = stored_at(data, skipped, size - skipped, pos + skipped)
            if stored is not None and MIN_TIMESTAMP <= stored <= MAX_TIMESTAMP:
                yield term, index, stored * 1000
            elif stored is None and term is None:
                return
            pos += size

    def _read(self, segment: Segment, pos: int) -> bytes:
        """The beginning of an entry of the log; nothing after its end."""
        if pos >= self._store.segment_end(segment):
            return b""
        head = self._store.file_ends(segment).head
        at = pos - segment.base
        return head[at:] if at + _READ_BYTES <= len(head) else segment.read(segment.base + at, _READ_BYTES)


def _joined(last: Span, following: Span) -> Span | None:
    return (last[0], following[1]) if last[1] == following[0] else None
