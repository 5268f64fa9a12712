"""What a store's indexes and queues know of places of its log: units that point there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.format.codec import IndexUnit
from pyspark_dledger.format.dispatched_rows import Longs
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error
from pyspark_dledger.log.io.key_files import key_units
from pyspark_dledger.log.io.queue_units import messages_by_queue

INDEX_UNITS = "indexUnits"
CONSUME_QUEUE = "consumeQueue"
INDEX_FILE = "indexFile"
_MULTI_DISPATCH = "%LMQ%"


@dataclass
class KnownMessage:
    """What units say about a message, whose bytes begin at ``offset`` of the log; None where none says it.

    ``size`` is of the message in bytes, without its entry's header. Times are in microseconds since 1970; a unit of an
    IndexFile has whole seconds.
    """

    offset: int
    index: int | None = None
    term: int | None = None
    size: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    tags_code: int | None = None
    key_hashes: set[int] = field(default_factory=set)
    first_stored: int | None = None
    last_stored: int | None = None
    witnesses: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The position after it, as far as its size is known."""
        return self.offset + (self.size or 0)

    def seen_by(self, witness: str) -> None:
        if witness not in self.witnesses:
            self.witnesses.append(witness)


class Places:
    """Ascending, disjoint ranges ``[start, end)`` of a log."""

    def __init__(self, ranges: Iterator[tuple[int, int]]) -> None:
        pairs = np.array(list(ranges), np.int64).reshape(-1, 2)
        self._starts, self._ends = pairs[:, 0], pairs[:, 1]

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def extent(self) -> tuple[int, int]:
        """The positions from the first range to the last one."""
        return int(self._starts[0]), int(self._ends[-1])

    def number_of(self, offsets: Longs) -> Longs:
        """The number of the range that has each offset; -1 for none."""
        number = np.searchsorted(self._starts, offsets, "right") - 1
        is_inside = (number >= 0) & (offsets < self._ends[np.maximum(number, 0)])
        return np.where(is_inside, number, -1)


def entries_of_index(
    index: DLedgerIndex, ranges: Iterable[tuple[int, int]], on_unreadable: OnUnreadable = ignore_error
) -> Iterator[KnownMessage]:
    """The entries with indexes ``[first, stop)`` by the units of a DLedger index; damaged units are left out."""
    for block in (block for first, stop in ranges for block in index.blocks(first, stop, on_unreadable)):
        units = block.units
        fits = (units["index"] == np.arange(len(units)) + block.first) & np.isin(units["magic"], ENTRY_MAGICS)
        for unit in units[fits & (units["size"] >= ENTRY_HEADER_SIZE)]:
            yield entry_of(IndexUnit(*unit.tolist()))


def entry_of(unit: IndexUnit) -> KnownMessage:
    """What a unit of the DLedger index says of its entry."""
    found = KnownMessage(unit.pos + ENTRY_HEADER_SIZE, unit.index, unit.term, unit.size - ENTRY_HEADER_SIZE)
    found.seen_by(INDEX_UNITS)
    return found


def known_messages(
    roots: Iterable[Path | None],
    ranges: Iterable[tuple[int, int]],
    on_unreadable: OnUnreadable = ignore_error,
    *,
    known: Iterable[KnownMessage] = (),
    with_keys: bool = True,
) -> dict[int, KnownMessage]:
    """What ConsumeQueues and IndexFiles know of messages in ranges of the log, by offset, added to those in `known`.

    Without `with_keys`, IndexFiles are not read. Raises StoreError for remote files.
    """
    found: dict[int, KnownMessage] = {}
    for message in known:
        found.setdefault(message.offset, message)
    places = Places(merged(ranges))
    for root in roots if len(places) else ():
        if root is not None:
            _add_queue_units(root, places, found, on_unreadable)
            if with_keys:
                _add_key_units(root, places, found, on_unreadable)
    return found


def merged(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges ``[start, stop)`` in order, those that overlap or touch as one."""

    def joined(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int] | None:
        return (first[0], max(first[1], second[1])) if second[0] <= first[1] else None

    return merge_adjacent(sorted(ranges), joined)


def _add_queue_units(root: Path, places: Places, known: dict[int, KnownMessage], on_unreadable: OnUnreadable) -> None:
    for queue, found in messages_by_queue(*places.extent, root, on_unreadable):
        is_inside = places.number_of(found.pos) >= 0
        for offset, size, queue_offset, tags_code in zip(*(each[is_inside].tolist() for each in found), strict=True):
            message = known.setdefault(offset, KnownMessage(offset))
            message.seen_by(CONSUME_QUEUE)
            # A message can be in further queues, those of a light topic.
            if message.topic is None or message.topic.startswith(_MULTI_DISPATCH):
                message.topic, message.queue_id, message.queue_offset = queue.topic, queue.queue_id, queue_offset
                message.tags_code = tags_code
            message.size = message.size or size


def _add_key_units(root: Path, places: Places, known: dict[int, KnownMessage], on_unreadable: OnUnreadable) -> None:
    def is_inside(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        return np.asarray(places.number_of(units["commitLogOffset"].astype(np.int64)) >= 0)

    for unit in key_units(root, is_inside, on_unreadable):
        message = known.setdefault(unit.offset, KnownMessage(unit.offset))
        message.seen_by(INDEX_FILE)
        message.key_hashes.add(unit.key_hash)
        message.first_stored, message.last_stored = unit.stored
