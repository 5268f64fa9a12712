"""Compares ConsumeQueues with those that a rebuild would write. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.dispatched_rows import QueueName
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.queue_files import UNIT_DTYPE, Units
from pyspark_dledger.log.io.queue_units import QueueUnits, is_filler, is_written
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import StoredQueues
from pyspark_dledger.rocketmq.rebuild.builder import (
    BuildReport,
    BuildSettings,
    Progress,
    QueueSink,
    queue_writer,
    read_log,
)
from pyspark_dledger.rocketmq.rebuild.new_queue_files import UnitFiles, ext_addresses

Flags = npt.NDArray[np.bool_]

# A root without queues, so that the writer begins new ones.
_NOWHERE = Path(os.devnull)


@dataclass
class QueueDifference:
    """An existing queue compared with the one that a rebuild would write; numbers of units.

    A rebuild keeps ``equal`` units, changes ``different`` ones, adds ``missing`` ones, and removes ``extra`` ones,
    which are of messages that the log does not have. ``fillers`` counts RocketMQ's fillers and copies of the next unit
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
    built = read_log(log, settings, [QueueSink(writer, files, log, root)], root, progress=progress)
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
        """A row for each queue that exists or would be built. `gap_copies` counts copies of the next unit by queue."""
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
        for queue, file, usual in self._existing.files_of_other_sizes():
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
