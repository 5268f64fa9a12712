"""What would change if ConsumeQueues or the index of keys were built anew: nothing is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.queue_files import UNIT_DTYPE, Queue, Units, read_units
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.consume_queue.queue_units import is_filler
from pyspark_dledger.rocketmq.consume_queue.queue_writer import QueueWriter, first_file_end
from pyspark_dledger.rocketmq.index_file.index_file import IndexHeader, hash_slots, index_files, read_header
from pyspark_dledger.rocketmq.message_arrays import Longs, QueueName
from pyspark_dledger.rocketmq.rebuild.builder import (
    BuildSettings,
    Built,
    Progress,
    QueueSink,
    ext_addresses,
    go_through,
)
from pyspark_dledger.rocketmq.rebuild.index_check import units_in, unlinked_units
from pyspark_dledger.rocketmq.rebuild.parts import TakenUnits
from pyspark_dledger.rocketmq.rebuild.queue_files import ExistingQueues, UnitFiles

Flags = npt.NDArray[np.bool_]

# Below it there is no folder, and so none of the queues that a writer would go on with.
_NOWHERE = Path(os.devnull)
# Keys that were found on one side only and may yet be found on the other, out of their order.
_MOST_UNMATCHED = 1_000_000


@dataclass
class QueueDifference:
    """A queue as it stands, held against what it is built anew; numbers of units.

    ``equal`` units stay, ``different`` ones become others, ``missing`` ones are added, ``extra`` ones, of messages that
    the log does not have, go. ``fillers`` stand, then, for messages that the log does not have, be they RocketMQ's or
    copies of the unit behind, which count as that unit. The first unit that differs is at ``queue_offset``; None where
    none does.
    """

    topic: str
    queue_id: int
    equal: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    fillers: int = 0
    queue_offset: int | None = None
    expected: str | None = None
    found: str | None = None

    @property
    def is_equal(self) -> bool:
        return not (self.different or self.missing or self.extra)

    def note_first(self, queue_offset: int, expected: str, found: str) -> None:
        if self.queue_offset is None or queue_offset < self.queue_offset:
            self.queue_offset, self.expected, self.found = queue_offset, expected, found


@dataclass
class IndexDifference:
    """An index file as it stands, held against what is built anew; numbers of keys, each of one message.

    ``missing`` keys are of messages in the range of the file that the index does not have; ``extra`` ones are of no
    message of the log that has that key, or stand there twice; ``expired`` ones are of messages before the log's
    beginning. Nothing leads to ``unlinked`` ones. ``file`` is None for messages that are in the range of no file.
    ``problem`` says why a file cannot be read, None where it can. The first difference is of the message at
    ``commit_log_offset``.
    """

    file: str | None
    keys: int = 0
    missing: int = 0
    extra: int = 0
    expired: int = 0
    unlinked: int = 0
    commit_log_offset: int | None = None
    problem: str | None = None

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.unlinked or self.problem)


def compare_queues(
    log: StoreView, root: Path, settings: BuildSettings, progress: Progress | None = None
) -> tuple[Built, list[QueueDifference]]:
    """What building the ConsumeQueues of a root anew would change, queue by queue. Raises StoreError."""
    files = _ComparedFiles(settings.units_per_file * CONSUME_QUEUE_UNIT_SIZE, root)
    writer = QueueWriter(_NOWHERE, settings.units_per_file, files, first_file_end(log.segments))
    built = go_through(log, settings, [QueueSink(writer, files, log, root)], root, progress=progress)
    return built, files.differences(writer.gap_copies)


def compare_index(
    log: StoreView, root: Path, settings: BuildSettings, progress: Progress | None = None
) -> tuple[Built, list[IndexDifference]]:
    """What building the index of keys of a root anew would change, file by file. Raises StoreError."""
    sink = _ComparedKeys(root, log.segments[0].base if log.segments else 0)
    built = go_through(log, settings, [sink], root, progress=progress)
    return built, sink.rows


# Queues


class _ComparedFiles(UnitFiles):
    """Takes the units that would be written, and looks what stands there."""

    def __init__(self, size: int, root: Path) -> None:
        super().__init__(size, ext_addresses(root))
        self._existing = ExistingQueues(root)
        self._rows: dict[QueueName, QueueDifference] = {}
        self._seen: dict[QueueName, int] = {}
        self._ranges: dict[QueueName, tuple[int, int]] = {}

    def take(self, path: Path, offset: int, name: QueueName, first: int, units: Units) -> None:
        row = self._row(name)
        found = self._existing.units(name, first, len(units))
        is_expected, is_there = is_real(units), is_real(found)
        is_same = units == found
        row.equal += int((is_same & is_expected).sum())
        row.fillers += int((~is_expected).sum())
        row.different += int((is_expected & is_there & ~is_same).sum())
        # Where a filler is expected and nothing is written RocketMQ takes the queue to end.
        row.missing += int((~is_there & ~is_same).sum())
        row.extra += int((~is_expected & is_there).sum())
        if not is_same.all():
            place = int(np.argmin(is_same))
            row.note_first(first + place, _shown(units[place]), _shown(found[place]))
        self._seen[name] = self._seen.get(name, 0) + int(is_there.sum())
        begin, _ = self._ranges.get(name, (first, first))
        self._ranges[name] = (begin, first + len(units))

    def _row(self, name: QueueName) -> QueueDifference:
        return self._rows.setdefault(name, QueueDifference(*name))

    def verify(self) -> None:
        """Nothing was written."""

    def differences(self, led_over: Mapping[QueueName, int]) -> list[QueueDifference]:
        """A row for each queue that there is or would be; so many places of each have a copy of the unit behind."""
        for name, count in led_over.items():
            self._row(name).fillers += count
        for name, queue in self._existing.queues.items():
            count, outside = self._outside(name, queue)
            extra = count - self._seen.get(name, 0)
            if extra > 0:
                self._row(name).extra += extra
            if outside is not None:
                self._row(name).note_first(outside[0], "none", outside[1])
        return [self._rows[name] for name in sorted(self._rows)]

    def _outside(self, name: QueueName, queue: Queue) -> tuple[int, tuple[int, str] | None]:
        """How many units of messages a queue has, and the first that none would take the place of."""
        begin, end = self._ranges.get(name, (0, 0))
        count, first = 0, None
        for file in queue.files:
            place = file.first
            for units in read_units(file):
                real = np.flatnonzero(is_real(units))
                count += len(real)
                places = place + real
                outside = real[(places < begin) | (places >= end)]
                if len(outside) and first is None:
                    first = (place + int(outside[0]), _shown(units[outside[0]]))
                place += len(units)
        return count, first


def is_real(units: Units) -> Flags:
    """Which are units of messages: neither fillers nor unwritten."""
    is_written: Flags = (units["size"] != 0) | (units["commitLogOffset"] != 0) | (units["tagsCode"] != 0)
    return is_written & ~is_filler(units)


def _shown(unit: Any) -> str:
    offset, size, tags_code = unit.tolist()
    as_units = np.array([(offset, size, tags_code)], UNIT_DTYPE)
    if is_filler(as_units)[0]:
        return "a filler"
    if not is_real(as_units)[0]:
        return "nothing written"
    return f"commitLogOffset {offset}, size {size}, tagsCode {tags_code}"


# The index


class _Side(NamedTuple):
    """Keys of one side: where their message stands, their hash, and the number of their file, -1 for the log's."""

    offset: Longs
    key_hash: Longs
    file: Longs

    def take(self, which: npt.NDArray[Any]) -> _Side:
        return _Side(*(values[which] for values in self))

    @property
    def size(self) -> int:
        return len(self.offset)


def _joined(*sides: _Side) -> _Side:
    return _Side(*(np.concatenate(values) for values in zip(*sides, strict=True)))


_NO_KEYS = _Side(*(np.empty(0, np.int64) for _ in range(3)))


class _ComparedKeys:
    """Takes the keys of the log in its order, and the units of the index files beside them."""

    needs_keys = True

    def __init__(self, root: Path, begin: int) -> None:
        self._begin = begin
        self._paths = index_files(root)
        self._headers = [read_header(path) or IndexHeader(0, 0, 0, 0, 0, 1) for path in self._paths]
        self.rows = [IndexDifference(path.name) for path in self._paths]
        self._units = self._all_units()
        self._ahead = _NO_KEYS
        self._is_read = False
        self._missing, self._extra = _NO_KEYS, _NO_KEYS
        self._outside = IndexDifference(None)

    def _all_units(self) -> Iterator[_Side]:
        """The units of all files, in the order in which they were written; what is wrong with a file is in its row."""
        for number, (path, header, row) in enumerate(zip(self._paths, self._headers, self.rows, strict=True)):
            slots = hash_slots(path)
            if slots is None:
                row.problem = "expected hash slots and units that fit the header, found none"
                continue
            row.unlinked = unlinked_units(path, slots, header.index_count)
            for _, units in units_in(path, slots, header.index_count):
                row.keys += len(units)
                offset, key_hash = units["commitLogOffset"].astype(np.int64), units["keyHash"].astype(np.int64)
                is_expired = offset < self._begin
                row.expired += int(is_expired.sum())
                side = _Side(offset, key_hash, np.full(len(units), number, np.int64))
                yield side.take(~is_expired)

    def put(self, taken: TakenUnits) -> None:
        keys = taken.keys
        self._match(_Side(keys.offset, keys.key_hash, np.full(len(keys), -1, np.int64)), taken.end)

    def finish(self, built: Built) -> Built:
        self._match(_NO_KEYS, None)
        self._settle()
        if self._outside.missing:
            self.rows.append(self._outside)
        return replace(built, index_files=len(self._paths))

    def close(self) -> None: ...

    def _match(self, expected: _Side, end: int | None) -> None:
        """Hold the keys of the log up to a position against those of the index up to there; None for all."""
        while not self._is_read and not self._reaches(end):
            read = next(self._units, None)
            self._is_read = read is None
            if read is not None:
                self._ahead = _joined(self._ahead, read)
            if end is None:
                self._hold(_NO_KEYS, self._ahead)
                self._ahead = _NO_KEYS
        is_due = self._ahead.offset < end if end is not None else np.ones(self._ahead.size, bool)
        found, self._ahead = self._ahead.take(is_due), self._ahead.take(~is_due)
        self._hold(expected, found)

    def _reaches(self, end: int | None) -> bool:
        """Whether the units that were read go up to a position, by the last of them: a wrong one is among others."""
        return end is not None and self._ahead.size > 0 and int(self._ahead.offset[-1]) >= end

    def _hold(self, expected: _Side, found: _Side) -> None:
        if expected.size == found.size and all(map(np.array_equal, expected[:2], found[:2])):
            return
        missing, extra = _unmatched(expected, found)
        self._missing, self._extra = _joined(self._missing, missing), _joined(self._extra, extra)
        if max(self._missing.size, self._extra.size) > _MOST_UNMATCHED:
            self._settle()

    def _settle(self) -> None:
        """Count what is on one side only, once what stands out of its order is matched."""
        missing, extra = _unmatched(self._missing, self._extra)
        self._missing = self._extra = _NO_KEYS
        for row, keys in self._by_row(missing, self._files_of(missing.offset)):
            row.missing += keys.size
            _note_first(row, keys)
        for row, keys in self._by_row(extra, extra.file):
            row.extra += keys.size
            _note_first(row, keys)

    def _files_of(self, offsets: Longs) -> Longs:
        """The number of the file in whose range each message is, -1 for none."""
        files = np.full(len(offsets), -1, np.int64)
        for number, header in enumerate(self._headers):
            if header.index_count > 1:
                files[(header.begin_phy_offset <= offsets) & (offsets <= header.end_phy_offset)] = number
        return files

    def _by_row(self, keys: _Side, files: Longs) -> Iterator[tuple[IndexDifference, _Side]]:
        for number in np.unique(files).tolist():
            yield (self.rows[number] if number >= 0 else self._outside), keys.take(files == number)


def _note_first(row: IndexDifference, keys: _Side) -> None:
    first = int(keys.offset.min())
    if row.commit_log_offset is None or first < row.commit_log_offset:
        row.commit_log_offset = first


def _unmatched(expected: _Side, found: _Side) -> tuple[_Side, _Side]:
    """The keys that are only expected, and those that are only found; each stands for one of the other side."""
    if not expected.size or not found.size:
        return expected, found
    both = _joined(expected, found)
    is_found = np.concatenate([np.zeros(expected.size, bool), np.ones(found.size, bool)])
    order = np.lexsort((is_found, both.key_hash, both.offset))
    offset, key_hash, is_found = both.offset[order], both.key_hash[order], is_found[order]
    is_new = np.concatenate([[True], (offset[1:] != offset[:-1]) | (key_hash[1:] != key_hash[:-1])])
    group = np.cumsum(is_new) - 1
    start = np.flatnonzero(is_new)[group]
    counts = np.bincount(group, ~is_found), np.bincount(group, is_found)
    rank = np.arange(len(order)) - start
    expected_count, found_count = (count.astype(np.int64)[group] for count in counts)
    # Of each key the expected ones come first, then those that were found: as many of both are pairs.
    is_missing = ~is_found & (rank >= found_count)
    is_extra = is_found & (rank - expected_count >= expected_count)
    return both.take(order[is_missing]), both.take(order[is_extra])
