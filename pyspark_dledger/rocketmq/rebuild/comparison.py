"""Compares ConsumeQueues and the index of keys with those that a rebuild would write. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.arrow_functions import distinct
from pyspark_dledger.format.dispatched_rows import Longs, QueueName
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.key_files import IndexHeader, KeyFile, index_files, read_header
from pyspark_dledger.log.io.queue_files import UNIT_DTYPE, Units
from pyspark_dledger.log.io.queue_units import QueueUnits, is_filler, is_written
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import StoredQueues
from pyspark_dledger.rocketmq.jobs import Progress
from pyspark_dledger.rocketmq.rebuild.builder import BuildReport, BuildSettings, QueueSink, queue_writer, read_log
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits
from pyspark_dledger.rocketmq.rebuild.new_queue_files import UnitFiles, ext_addresses

Flags = npt.NDArray[np.bool_]

# A root without queues, so that the writer begins new ones.
_NOWHERE = Path(os.devnull)


@dataclass
class QueueDifference:
    """An existing queue compared with the one that a rebuild would write; numbers of units.

    A rebuild keeps ``equal`` units, changes ``different`` ones, adds ``missing`` ones, and removes ``extra`` ones,
    which are of messages that the log does not have. ``fillers`` counts RocketMQ's fillers and copies of a neighbour
    in the rebuilt queue, for messages that the log does not have. ``queue_offset`` is that of the first difference, or
    None: a unit, or else the first one of a file with another size than most.
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
        return self.queue_offset is None

    def note_first(self, queue_offset: int, expected: str, found: str) -> None:
        if self.queue_offset is None or queue_offset < self.queue_offset:
            self.queue_offset, self.expected, self.found = queue_offset, expected, found


def compare_queues(
    log: StoreView, root: Path, settings: BuildSettings, progress: Progress | None = None
) -> tuple[BuildReport, list[QueueDifference]]:
    """What a rebuild of the ConsumeQueues of a root would change, by queue. Raises StoreError."""
    files = _ComparedFiles(settings.units_per_file * CONSUME_QUEUE_UNIT_SIZE, root)
    writer = queue_writer(log, _NOWHERE, settings.units_per_file, files)
    built = read_log(log, settings, [QueueSink(writer, files, log, root, {})], root, progress=progress)
    return built, files.differences(writer.gap_copies)


class _ComparedFiles(UnitFiles):
    """Compares the units that would be written with the existing ones."""

    def __init__(self, size: int, root: Path) -> None:
        super().__init__(size, ext_addresses(root))
        self._existing = StoredQueues(root)
        self._rows: dict[QueueName, QueueDifference] = {}
        self._seen: dict[QueueName, int] = {}
        self._ranges: dict[QueueName, tuple[int, int]] = {}

    def put_units(self, path: Path, offset: int, name: QueueName, first: int, units: Units) -> None:
        row = self._row(name)
        found = self._existing.units_at(name, first, len(units))
        is_message, exists = points_to_message(units), points_to_message(found)
        is_same = units == found
        row.equal += int((is_same & is_message).sum())
        row.fillers += int((~is_message).sum())
        row.different += int((is_message & exists & ~is_same).sum())
        # Also an unwritten unit instead of a filler: for RocketMQ the queue ends there.
        row.missing += int((~exists & ~is_same).sum())
        row.extra += int((~is_message & exists).sum())
        if not is_same.all():
            number = int(np.argmin(is_same))
            row.note_first(first + number, _shown(units[number]), _shown(found[number]))
        self._seen[name] = self._seen.get(name, 0) + int(exists.sum())
        begin, _ = self._ranges.get(name, (first, first))
        self._ranges[name] = (begin, first + len(units))

    def _row(self, name: QueueName) -> QueueDifference:
        return self._rows.setdefault(name, QueueDifference(*name))

    def verify(self) -> None:
        """Nothing was written."""

    def differences(self, gap_copies: Mapping[QueueName, int]) -> list[QueueDifference]:
        """A row for each queue that exists or would be built. `gap_copies` counts copies of a neighbour by queue."""
        for name, count in gap_copies.items():
            self._row(name).fillers += count
        for queue in self._existing.queues:
            name = queue.name
            count, outside = self._outside(name, queue)
            extra = count - self._seen.get(name, 0)
            if extra > 0:
                self._row(name).extra += extra
            if outside is not None:
                self._row(name).note_first(outside[0], "none", outside[1])
        for queue, file, usual in self._existing.files_of_other_sizes(self._size):
            row = self._row(queue.name)
            if row.queue_offset is None:
                row.note_first(file.first, f"{usual} bytes in {file.name}", f"{file.size}")
        return [self._rows[name] for name in sorted(self._rows)]

    def _outside(self, name: QueueName, queue: QueueUnits) -> tuple[int, tuple[int, str] | None]:
        """The number of units of messages in a queue, and the first one outside the rebuilt queue."""
        begin, end = self._ranges.get(name, (0, 0))
        count, first = 0, None
        for offsets, units in queue.chunks(0, queue.count):
            which = points_to_message(units)
            count += int(np.count_nonzero(which))
            outside = np.flatnonzero(which & ((offsets < begin) | (offsets >= end)))
            if len(outside) and first is None:
                first = (int(offsets[outside[0]]), _shown(units[outside[0]]))
        return count, first


def points_to_message(units: Units) -> Flags:
    """Which units point to a message: neither fillers nor unwritten ones."""
    return is_written(units) & ~is_filler(units)


def _shown(unit: Any) -> str:
    offset, size, tags_code = unit.tolist()
    as_units = np.array([(offset, size, tags_code)], UNIT_DTYPE)
    if is_filler(as_units)[0]:
        return "a filler"
    if not points_to_message(as_units)[0]:
        return "nothing written"
    return f"commitLogOffset {offset}, size {size}, tagsCode {tags_code}"


# Keys found on one side only, which may be found on the other side later, out of order.
_MAX_UNMATCHED = 2_000_000


@dataclass
class IndexDifference:
    """An existing index file compared with what a rebuild would write; numbers of keys, each of one message.

    ``missing`` keys are of messages in the file's range, and not in the index. ``extra`` keys are of no message of the
    log with that key, or duplicates. ``expired`` keys are of messages before the log's beginning. No hash slot leads to
    ``unlinked`` keys. ``file`` is None for messages outside the ranges of all files. ``problem`` says why a file cannot
    be read. ``commit_log_offset`` is the position of the first message that differs.
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


def compare_index(
    log: StoreView, root: Path, settings: BuildSettings, progress: Progress | None = None
) -> tuple[BuildReport, list[IndexDifference]]:
    """What a rebuild of the index of keys of a root would change, by file. Raises StoreError."""
    sink = _ComparedKeys(root, log.segments[0].base if log.segments else 0)
    built = read_log(log, settings, [sink], root, progress=progress)
    return built, [row for row in sink.rows if row.file is not None or row.missing]


IndexKeys = npt.NDArray[Any]
_KEY = np.dtype([("offset", np.int64), ("key_hash", np.int64), ("file", np.int64)])
"""A key of an index file with this number, or of the log, -1: the position of its message, and its hash."""


def _index_keys(offset: Longs, key_hash: Longs, file: int) -> IndexKeys:
    keys = np.empty(len(offset), _KEY)
    keys["offset"], keys["key_hash"], keys["file"] = offset, key_hash, file
    return keys


class _ComparedKeys:
    """Compares the keys of the log, in its order, with the units of the index files; the last row is of no file."""

    needs_keys = True

    def __init__(self, root: Path, begin: int) -> None:
        self._begin = begin
        self._paths = index_files(root)
        self._headers = [read_header(path) or IndexHeader(0, 0, 0, 0, 0, 1) for path in self._paths]
        self.rows = [*(IndexDifference(path.name) for path in self._paths), IndexDifference(None)]
        self._units = self._all_units()
        self._ahead = self._unmatched = np.empty(0, _KEY)

    def _all_units(self) -> Iterator[IndexKeys]:
        """The units of all files, in the order in which they were written. Sets the problems of files in their rows."""
        for number, (path, row) in enumerate(zip(self._paths, self.rows, strict=False)):
            file = KeyFile.opened(path)
            if file is None:
                row.problem = "expected hash slots and units that fit the header, found none"
                continue
            row.unlinked = file.unlinked()
            for _, units in file.blocks(file.count):
                keys = _index_keys(units["commitLogOffset"], units["keyHash"], number)
                is_expired = keys["offset"] < self._begin
                row.keys += len(keys)
                row.expired += int(is_expired.sum())
                yield keys[~is_expired]

    def put(self, chunk: DispatchedUnits) -> None:
        found = [self._ahead]
        while not len(found[-1]) or found[-1]["offset"][-1] < chunk.end:
            read = next(self._units, None)
            if read is None:
                break
            found.append(read)
        ahead = np.concatenate(found)
        is_due = ahead["offset"] < chunk.end
        self._ahead = ahead[~is_due]
        keys = chunk.rows.keys
        self._match(_index_keys(keys.offset, keys.key_hash, -1), ahead[is_due])

    def finish(self, built: BuildReport) -> BuildReport:
        for found in chain([self._ahead], self._units):
            self._match(self._unmatched[:0], found)
        self._count_unmatched()
        return replace(built, index_files=len(self._paths))

    def close(self) -> None: ...

    def _match(self, expected: IndexKeys, found: IndexKeys) -> None:
        """Match keys of the log with those of the index."""
        if all(np.array_equal(expected[name], found[name]) for name in ("offset", "key_hash")):
            return
        self._unmatched = np.concatenate([self._unmatched, _without_pairs(np.concatenate([expected, found]))])
        if len(self._unmatched) > _MAX_UNMATCHED:
            self._count_unmatched()

    def _count_unmatched(self) -> None:
        """Match the keys that are out of order, and count the others: those of the log are missing in the index."""
        keys = _without_pairs(self._unmatched)
        self._unmatched = keys[:0]
        is_missing = keys["file"] < 0
        files = np.where(is_missing, self._files_of(keys["offset"]), keys["file"])
        for number in distinct(files).tolist():
            row, which = self.rows[number], files == number
            row.missing += int(np.count_nonzero(which & is_missing))
            row.extra += int(np.count_nonzero(which & ~is_missing))
            first = int(keys["offset"][which].min())
            if row.commit_log_offset is None or first < row.commit_log_offset:
                row.commit_log_offset = first

    def _files_of(self, offsets: Longs) -> Longs:
        """The number of the file whose range has each message; -1 for none."""
        files = np.full(len(offsets), -1, np.int64)
        for number, header in enumerate(self._headers):
            if header.index_count > 1:
                files[(header.begin_phy_offset <= offsets) & (offsets <= header.end_phy_offset)] = number
        return files


def _without_pairs(keys: IndexKeys) -> IndexKeys:
    """The keys that are only in the log or only in the index. Duplicates are matched one to one."""
    if not len(keys):
        return keys
    keys = keys[np.lexsort((keys["file"], keys["key_hash"], keys["offset"]))]
    is_new = np.ones(len(keys), bool)
    is_new[1:] = (np.diff(keys["offset"]) != 0) | (np.diff(keys["key_hash"]) != 0)
    group = np.cumsum(is_new) - 1
    rank = np.arange(len(keys)) - np.flatnonzero(is_new)[group]
    is_found = keys["file"] >= 0
    # For each key those of the log come first, then those of the index; equal numbers of both match.
    in_log, in_index = (np.bincount(group, which).astype(np.int64)[group] for which in (~is_found, is_found))
    return keys[np.where(is_found, rank - in_log >= in_log, rank >= in_index)]
