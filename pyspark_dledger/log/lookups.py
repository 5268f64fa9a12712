"""Conditions that a plan looks up in a broker's files, to read only a part of the log. The scan does not know them.

Queue offsets, by ConsumeQueue units that the log confirms: they rise along the log. So messages with offsets between
those of two confirmed units lie between these units' messages, also if the units between them are damaged. Where no
unit is confirmed, the log is read on.

Keys, by IndexFiles. An IndexFile covers the log from its first unit's message to its last one's, if it is intact: its
units are in the order of the log, those with a key's hash are exactly those to which the key's hash slot leads, and the
log has the messages of these, the first and the last. The rest of the log is searched. Nothing proves that the broker
indexed each message in between: it leaves out those of rolled back transactions, and all while ``messageIndexEnable``
is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.fields import changed
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.dispatched_rows import key_hash
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import message_in
from pyspark_dledger.format.spec import Filters, IntFilter, ScanRequest
from pyspark_dledger.log.conditions import Lookup
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.files import ignore_error, is_remote_path
from pyspark_dledger.log.io.key_files import KeyFile, KeyUnit, hashes_at, index_files
from pyspark_dledger.log.io.queue_files import FILLER_SIZE, queue_of
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import RowRange, StoreView

Span = tuple[int, int]


def looked_up(
    store: StoreView, ranges: Iterable[ScanRequest | FileGap], options: ReadOptions, filters: Filters, lookup: Lookup
) -> list[ScanRequest | FileGap]:
    """What of the ranges has to be read."""
    parts = list(ranges)
    if lookup.queue_offsets is not None:
        parts = list(_within(parts, [queue_window(store, filters, lookup.queue_offsets)]))
    is_trusted = options.trust_key_index and not options.heal  # other replicas may have messages that no unit has
    if is_trusted and lookup.keys is not None and filters.topic is not None:
        parts = list(_within(parts, key_spans(store, filters.topic, lookup.keys)))
    return parts


def _within(parts: Iterable[ScanRequest | FileGap], spans: list[Span]) -> Iterator[ScanRequest | FileGap]:
    """The parts of ranges that are in one of the spans, which are ascending and can overlap."""
    for part in parts:
        if isinstance(part, FileGap):
            yield part
            continue
        at = part.start
        for start, end in spans:
            start, end = max(start, at), min(end, part.end)
            if start < end:
                yield changed(part, start=start, end=end)
                at = end


# Each queue costs a few reads.
_MAX_QUEUES = 64
_MAX_TRIED = 64


def queue_window(store: StoreView, filters: Filters, offsets: IntFilter) -> tuple[int, int]:
    """Positions ``[start, end)`` that have all messages with these queue offsets in the queues of the filters.

    Entries begin at both. The whole log, if the filters do not name queues or the units do not show it.
    """
    whole = 0, INT64_MAX
    # Prepared messages have the offset 0, wherever they are.
    if filters.topic is None or filters.queue_id is None or filters.queue_id.values is None or offsets.low <= 0:
        return whole
    names = list(product(filters.topic, filters.queue_id.values))
    root = store.paths.root
    if root is None or not 0 < len(names) <= _MAX_QUEUES:
        return whole
    try:
        windows = [_Queue(store, root, *name).window(offsets) for name in names]
    except StoreError:
        return whole
    return min(start for start, _ in windows), max(end for _, end in windows)


class _Queue:
    """The units of one queue of a store, and the messages that they point to."""

    def __init__(self, store: StoreView, root: Path, topic: str, queue_id: int) -> None:
        self._store = store
        self._topic = topic
        self._queue_id = queue_id
        self._units = QueueUnits(queue_of(root, topic, queue_id, ignore_error), ignore_error)

    def window(self, offsets: IntFilter) -> tuple[int, int]:
        """The positions that have all messages of the queue with these offsets."""
        if not self._units.count:
            return 0, INT64_MAX
        first, last = self._units.queue_offset(0), self._units.end - 1
        low, high = min(offsets.low, last), max(offsets.high, first)
        before = self._confirmed(range(low, max(low - _MAX_TRIED, first - 1), -1))
        after = self._confirmed(range(high, min(high + _MAX_TRIED, last + 1)))
        start, end = before[0] if before is not None else 0, after[1] if after is not None else INT64_MAX
        return (start, end) if start < end else (0, INT64_MAX)

    def _confirmed(self, numbers: Iterable[int]) -> tuple[int, int] | None:
        """Where the entry of the first of these queue offsets begins and ends of which the log confirms the unit."""
        found = (self._entry_of(number) for number in numbers)
        return next((each for each in found if each is not None), None)

    def _entry_of(self, number: int) -> tuple[int, int] | None:
        offset, size, _ = self._units.at(number, 1)[0].tolist()
        if not MIN_MESSAGE_SIZE <= size < FILLER_SIZE:
            return None
        row, segment = self._store.row_of_message(offset), segment_at(self._store.segments, offset)
        if row is None or segment is None or offset + size != row.end or row.end > self._store.segment_end(segment):
            return None
        data = segment.read(offset, size)
        message = message_in(data) if len(data) == size else None
        if message is None or message.physical_offset != offset:
            return None
        is_wanted = (message.topic, message.queue_id, message.queue_offset) == (self._topic, self._queue_id, number)
        return row if is_wanted else None


_MAX_CHAIN = 10_000
_MAX_HASHES = 256
# A plan reads all their units, 400 MB in a full file.
_MAX_FILES = 64


def key_spans(store: StoreView, topics: Iterable[str], keys: Iterable[str]) -> list[Span]:
    """Positions ``[start, end)``, ascending, where rows of these topics with one of these keys or uniqKeys can be."""
    root = store.paths.root
    names = list(keys)
    hashes = {key_hash(topic, key) for topic in topics for key in names}
    try:
        files = index_files(root) if root is not None and not is_remote_path(root) else []
    except UnreadableError:
        files = []
    if not 0 < len(hashes) <= _MAX_HASHES or not all(names) or len(files) > _MAX_FILES:
        return [(0, INT64_MAX)]
    covered: list[tuple[RowRange, RowRange]] = []
    rows: list[RowRange] = []
    for file in files:
        found = _covered(store, file, hashes)
        if found is not None:
            covered.append(found[0])
            rows += found[1]
    return sorted({*_between(covered), *rows})


def _between(covered: list[tuple[RowRange, RowRange]]) -> Iterator[Span]:
    """What is outside the covered parts, given by their first and last row. These can have units in two files."""
    lasts = {last for _, last in covered}
    at = 0
    for first, last in sorted(covered):
        start = first.start if first in lasts else first.end
        if at < start:
            yield at, start
        at = max(at, last.start)
    yield at, INT64_MAX


def _covered(store: StoreView, path: Path, hashes: set[int]) -> tuple[tuple[RowRange, RowRange], list[RowRange]] | None:
    """The first and last row that an IndexFile has, and those with these hashes.

    None if it is not intact, or the log there.
    """
    try:
        file = KeyFile.opened(path)
        if file is None:
            return None
        units, linked = _ordered(file, hashes, store.min_offset), linked_units(file, hashes)
        if units is None or linked is None:
            return None
        linked = {number: unit for number, unit in linked.items() if unit.offset >= store.min_offset}
        if units.wanted != {number: unit for number, unit in linked.items() if unit.key_hash in hashes}:
            return None
        if not all(
            unit.key_hash in (hashes_at(store.segments, unit.offset) or ()) for unit in (*linked.values(), *units.ends)
        ):
            return None
        first, last = (store.row_of_message(unit.offset) for unit in units.ends)
        rows = [store.row_of_message(unit.offset) for unit in units.wanted.values()]
    except StoreError:
        return None
    found = [row for row in rows if row is not None]
    if first is None or last is None or len(found) < len(rows):
        return None
    return (first, last), found


class _OrderedUnits(NamedTuple):
    """The first and the last unit of a file whose messages have not expired, and the wanted ones by number."""

    ends: tuple[KeyUnit, KeyUnit]
    wanted: dict[int, KeyUnit]


def _ordered(file: KeyFile, hashes: set[int], min_offset: int) -> _OrderedUnits | None:
    """The units of messages from `min_offset` on, of which those with these hashes are wanted.

    None without any, if units are not in the order of the log, or if the ends are not those of the header.
    """
    header = file.header
    sorted_hashes = np.array(sorted(hashes), np.int64)
    wanted: dict[int, KeyUnit] = {}
    first = last = None
    before = header.begin_phy_offset
    following = 1
    for start, units in file.blocks(header.index_count):
        offsets = units["commitLogOffset"].astype(np.int64)
        if start != following or not len(units) or (np.diff(offsets, prepend=before) < 0).any():
            return None
        following = start + len(units)
        if start == 1 and offsets[0] != before:
            return None
        before, begin = int(offsets[-1]), int(np.searchsorted(offsets, min_offset))
        if begin < len(units):
            first, last = first or file.unit(start + begin, units[begin]), file.unit(following - 1, units[-1])
        for place in np.flatnonzero(np.isin(units["keyHash"], sorted_hashes) & (offsets >= min_offset)).tolist():
            wanted[start + place] = file.unit(start + place, units[place])
    is_whole = following == header.index_count
    if not is_whole or first is None or last is None or last.offset != header.end_phy_offset:
        return None
    return _OrderedUnits((first, last), wanted)


def linked_units(file: KeyFile, hashes: set[int]) -> dict[int, KeyUnit] | None:
    """The units in these hashes' slots by their numbers, also of other hashes; None if a slot's chain is broken."""
    found: dict[int, KeyUnit] = {}
    slots = file.slots
    for slot in {value % slots for value in hashes}:
        number = file.newest(slot)
        for _ in range(_MAX_CHAIN):
            if number <= 0:
                break
            units = file.read(number, number + 1)
            if number >= file.header.index_count or not len(units) or int(units["keyHash"][0]) % slots != slot:
                return None
            found[number] = file.unit(number, units[0])
            following = int(units["previous"][0])
            if following >= number:
                return None
            number = following
        else:
            return None
    return found
