"""What a store's indexes and queues know of places of its log: units that point there, and if a message is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.format.arrow_functions import values_of
from pyspark_dledger.format.codec import IndexUnit
from pyspark_dledger.format.dispatched_rows import Longs, key_hash
from pyspark_dledger.format.facts import ProblemCode
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, Filters, Segment
from pyspark_dledger.log.copies.segment_copy import is_damage
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, segment_at
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error
from pyspark_dledger.log.io.key_files import key_units
from pyspark_dledger.log.io.queue_files import FOLDER, database_queues, folders_in, queues
from pyspark_dledger.log.io.queue_units import QueueUnits, has_message, is_filler, messages_by_queue
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
from pyspark_dledger.log.options import ReadOptions, microseconds
from pyspark_dledger.log.plan import plan_between, read_judged
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import queue_root

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
        for unit in block.units[block.is_entry]:
            yield entry_of(IndexUnit(*unit.tolist()))


def entry_of(unit: IndexUnit) -> KnownMessage:
    """What a unit of the DLedger index says of its entry."""
    found = KnownMessage(unit.pos + ENTRY_HEADER_SIZE, unit.index, unit.term, unit.size - ENTRY_HEADER_SIZE)
    found.seen_by(INDEX_UNITS)
    return found


def listed_messages(store: StoreView) -> Iterator[KnownMessage]:
    """What the salvage that wrote a store knew of messages of which several have one filler."""
    for row in SalvageFillers(store.paths).messages():
        with suppress(KeyError, TypeError, ValueError):  # the list is damaged
            yield KnownMessage(
                offset=int(row["commitLogOffset"]),
                size=row["storeSize"],
                topic=row["topic"],
                queue_id=row["queueId"],
                queue_offset=row["queueOffset"],
                tags_code=row["tagsCode"],
                key_hashes=set(row["keyHashes"]),
                first_stored=_time(row["firstStoreTimestamp"]),
                last_stored=_time(row["lastStoreTimestamp"]),
                witnesses=list(row["witnesses"]),
            )


def _time(text: str | None) -> int | None:
    return microseconds(datetime.fromisoformat(text)) if text is not None else None


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


def topics_of(log: StoreView, on_unreadable: OnUnreadable = ignore_error) -> list[str]:
    """The topics that have a folder for their ConsumeQueues, or ConsumeQueues in a RocksDB."""
    root = log.paths.root
    if root is None:
        return []
    folders = (folder.name for folder in folders_in(root / FOLDER, on_unreadable))
    return sorted({*folders, *(queue.topic for queue in database_queues(root, on_unreadable))})


class Pointer(NamedTuple):
    """What units know of a message that is not at its place; ``found`` says what is there instead.

    ``is_expired``: below the beginning of the log. ``is_damage``: the bytes are damaged, or their file is missing.
    """

    message: KnownMessage
    found: str
    is_expired: bool
    is_damage: bool = False

    def __str__(self) -> str:
        return f"{'; '.join(_known(self.message))}: {self.found}"


def _known(message: KnownMessage) -> Iterator[str]:
    if message.index is not None:
        yield f"the DLedger index has the entry {message.index} at pos {message.offset - ENTRY_HEADER_SIZE}"
    if message.topic is not None:
        queue = f"{printable(message.topic)}/{message.queue_id}"
        yield (
            f"the ConsumeQueue {queue} has at queueOffset {message.queue_offset} a message of {message.size} bytes at "
            f"commitLogOffset {message.offset}"
        )
    if message.key_hashes:
        yield f"the index of keys has the hash at commitLogOffset {message.offset}"


def damaged_rows(batch: pa.RecordBatch) -> list[int]:
    """The numbers of the rows with a column problemCode whose bytes are damaged."""
    numbers: list[int] = np.flatnonzero(is_damage(batch["problemCode"], {ProblemCode.BORN_TIME})).tolist()
    return numbers


def offsets_of_keys(log: StoreView, keys: Iterable[str]) -> list[int]:
    """The commitLogOffsets to which units with the hash of a key or uniqKey point, in any topic."""
    root = log.paths.root
    if root is None:
        return []
    topics = [
        topic for topic in topics_of(log, log.on_unreadable) if log.options.topic is None or topic in log.options.topic
    ]
    hashes = np.array(sorted({key_hash(topic, key) for topic in topics for key in keys}), np.int64)

    def has_hash(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        return np.isin(units["keyHash"], hashes)

    return sorted({unit.offset for unit in key_units(root, has_hash, log.on_unreadable)})


def pointers_to(log: StoreView, messages: Iterable[KnownMessage]) -> list[Pointer]:
    """Those of the messages that are not intact at their offsets, with all that units know of them."""
    looked = _Rows(log)
    states = [(message, looked.state_at(message.offset)) for message in messages]
    gone = {message.offset: (message, state) for message, state in states if state is not None}
    ranges = ((offset, offset + 1) for offset in gone)
    known = known_messages([log.paths.root], ranges, log.on_unreadable, known=(message for message, _ in gone.values()))
    return [Pointer(known[offset], *state) for offset, (_, state) in gone.items() if state is not None]


class _Rows:
    """What is at single offsets of a log. A segment is scanned once, because a row's start is only known from there."""

    def __init__(self, log: StoreView) -> None:
        self._log = log
        self._rows: dict[int, tuple[Longs, dict[int, str]]] = {}

    def state_at(self, offset: int) -> tuple[str, bool, bool] | None:
        """The fields of `Pointer` after the message; None for an intact message."""
        log = self._log
        pos = offset - _header_at(log, offset)
        segment = segment_at(log.segments, pos)
        if log.unread.covers(pos, pos + 1):
            return "cannot tell: its file cannot be read", False, False
        if pos < log.min_offset:
            return f"it has expired, the log begins at {log.min_offset}", True, False
        if pos >= log.max_offset:
            return f"it is lost, the log ends at {log.max_offset}", False, False
        if segment is None:
            return "it is lost, its file is missing", False, True
        starts, problems = self._rows_of(segment)
        number = int(np.searchsorted(starts, pos, "right")) - 1
        start = int(starts[number]) if number >= 0 else -1
        if start in problems:
            return f"it is lost, the bytes there are damaged ({problems[start]})", False, True
        return None if start == pos else ("no message begins there, the unit is damaged", False, False)

    def _rows_of(self, segment: Segment) -> tuple[Longs, dict[int, str]]:
        """Where the rows of a segment begin, and the problems of those whose bytes are damaged."""
        if segment.base not in self._rows:
            options = ReadOptions(engine=self._log.options.engine)
            columns = ("kind", "pos", "problem", "problemCode")
            partitions = plan_between(self._log, columns, options, Filters(), None, segment.base, segment.end)
            starts, problems = [np.empty(0, np.int64)], {}
            for batch in (batch for partition in partitions for batch in read_judged(partition)):
                starts.append(values_of(batch["pos"]).astype(np.int64))
                for number in damaged_rows(batch):
                    problems[batch["pos"][number].as_py()] = batch["problem"][number].as_py()
            self._rows[segment.base] = np.concatenate(starts), problems
        return self._rows[segment.base]


def _header_at(log: StoreView, offset: int) -> int:
    segment = segment_at(log.segments, offset)
    if segment is None:
        return ENTRY_HEADER_SIZE if log.ledger_segments and offset >= log.ledger_segments[0].base else 0
    return 0 if segment.source == COMMITLOG else ENTRY_HEADER_SIZE


def unit_at(log: StoreView, topic: str, queue_id: int, queue_offset: int) -> KnownMessage | str:
    """The message of a queueOffset by its ConsumeQueue unit; without one, what is there. Raises StoreError."""
    found = {(queue.topic, queue.queue_id): queue for queue in queues(queue_root(log))}
    if (topic, queue_id) not in found:
        return "no such queue"
    units = QueueUnits(found[topic, queue_id])
    rank = units.rank_of(queue_offset)
    if rank is None:
        return f"the units {units.queue_offset(0)} to {units.end - 1}" if units.count else "an empty queue"
    _, read = units.read(rank, rank + 1)
    if not len(read) or not has_message(read)[0]:
        return "a filler" if len(read) and is_filler(read)[0] else "no unit"
    offset, size = int(read["commitLogOffset"][0]), int(read["size"][0])
    found_unit = KnownMessage(offset, size=size, topic=topic, queue_id=queue_id, queue_offset=queue_offset)
    found_unit.seen_by(CONSUME_QUEUE)
    return found_unit
