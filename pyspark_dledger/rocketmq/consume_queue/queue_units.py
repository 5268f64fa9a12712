"""The ConsumeQueues of a store, and the units of one, found by rank, by queueOffset and by position in the log.

Source: RocketMQ 5.3.3 ``ConsumeQueue``, ``ConsumeQueueExt``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import (
    BATCH_UNIT_SIZE,
    CONSUME_QUEUE_UNIT,
    CONSUME_QUEUE_UNIT_SIZE,
    is_segment_name,
)
from pyspark_dledger.log.io.files import OpenFile, open_file, path_of, unreadable
from pyspark_dledger.log.io.queue_files import (
    BATCH_FOLDER,
    FILLER_SIZE,
    FOLDER,
    UNIT_DTYPE,
    UNITS_AT_ONCE,
    Queue,
    QueueFile,
    Units,
    folder_entries,
    folders_in,
    read_units,
    written_units,
)
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView

# A tagsCode is a hash of 32 bits, the time to deliver in milliseconds, or, up to this, an address in consumequeue_ext.
LAST_EXT_ADDRESS = -(2**31) - 1
# Units to read first when searching; each further read doubles.
_FIRST_READ_UNITS = 64
_NO_UNITS = np.empty(0, UNIT_DTYPE)


def is_written(units: Units) -> npt.NDArray[np.bool_]:
    """Which units are not all zeros."""
    return (units["commitLogOffset"] != 0) | (units["size"] != 0) | (units["tagsCode"] != 0)


def is_filler(units: Units) -> npt.NDArray[np.bool_]:
    """Which units are RocketMQ's fillers."""
    return (units["commitLogOffset"] == 0) & (units["size"] == FILLER_SIZE) & (units["tagsCode"] == 0)


def has_message(units: Units) -> npt.NDArray[np.bool_]:
    """Which units point to a message: written, and no filler."""
    return (units["size"] > 0) & ~is_filler(units)


class QueueUnits:
    """The units of a queue by rank: 0 is the first unit of the first file, ranks continue over gaps between files.

    Counted are all units that its files have room for, up to the last written one.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        files = list(queue.files)
        written = 0
        while files and not (written := written_units(files[-1])):
            files.pop()
        self.files = files
        sizes = [*(file.units for file in files[:-1]), written] if files else []
        self._ranks = [0, *accumulate(sizes)]
        self.count = self._ranks[-1]

    @property
    def end(self) -> int:
        """The queueOffset after the last unit; 0 for a queue without units (RocketMQ's maxOffset)."""
        return self.queue_offset(self.count - 1) + 1 if self.count else 0

    def queue_offset(self, rank: int) -> int:
        """The queueOffset of the unit with a rank."""
        number = self._file_of(rank)
        return self.files[number].first + rank - self._ranks[number]

    def _file_of(self, rank: int) -> int:
        return min(bisect_right(self._ranks, rank) - 1, len(self.files) - 1)

    def bounds(self, min_offset: int) -> tuple[int, int]:
        """The first queueOffset whose message is at or after `min_offset` in the log, and the end of the queue."""
        rank = self.lower_bound(min_offset)
        return self.queue_offset(rank) if rank < self.count else self.end, self.end

    def rank_of(self, queue_offset: int) -> int | None:
        """The rank of the unit at `queue_offset`, None if no file has room for it."""
        for file, first, end in zip(self.files, self._ranks, self._ranks[1:], strict=False):
            if file.first <= queue_offset < file.first + end - first:
                return first + queue_offset - file.first
        return None

    def read(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], Units]:
        """The queueOffsets and units of the ranks ``[start, stop)``, including unwritten ones."""
        numbers, parts = [np.empty(0, np.int64)], [_NO_UNITS]
        for file, first, end in zip(self.files, self._ranks, self._ranks[1:], strict=False):
            low, high = max(start, first) - first, min(stop, end) - first
            at = low
            for units in read_units(file, low, high) if low < high else ():
                parts.append(units)
                numbers.append(np.arange(file.first + at, file.first + at + len(units), dtype=np.int64))
                at += len(units)
        return np.concatenate(numbers), np.concatenate(parts)

    def lower_bound(self, offset: int) -> int:
        """The rank of the first unit of a message at or after `offset` in the log; leading fillers are skipped.

        A binary search, because the units of a queue ascend. The result never falls as `offset` rises, even if the
        units do not ascend.
        """
        high = self.count
        with ExitStack() as opened:
            files: dict[int, OpenFile] = {}

            def file(number: int) -> OpenFile:
                if number not in files:
                    files[number] = opened.enter_context(open_file(self.files[number].path))
                return files[number]

            low = self._leading_fillers(file)
            while low < high:
                middle = (low + high) // 2
                found = self._next_message(middle, file)
                if found is not None and found[1] < offset:
                    low = found[0] + 1
                else:
                    high = middle
        return low

    def _leading_fillers(self, file: Callable[[int], OpenFile]) -> int:
        """How many fillers precede all other units."""
        rank, count = 0, _FIRST_READ_UNITS
        while rank < self.count:
            units = self._read_in_file(rank, count, file)
            others = np.flatnonzero(~is_filler(units))
            if len(others):
                return rank + int(others[0])
            if not len(units):
                return rank
            rank, count = rank + len(units), min(2 * count, UNITS_AT_ONCE)
        return rank

    def _next_message(self, rank: int, file: Callable[[int], OpenFile]) -> tuple[int, int] | None:
        """The rank and commitLogOffset of the first unit from `rank` on that points to a message."""
        count = _FIRST_READ_UNITS
        while rank < self.count:
            units = self._read_in_file(rank, count, file)
            found = np.flatnonzero(has_message(units))
            if len(found):
                return rank + int(found[0]), int(units["commitLogOffset"][found[0]])
            if not len(units):
                return None
            rank, count = rank + len(units), min(2 * count, UNITS_AT_ONCE)
        return None

    def _read_in_file(self, rank: int, count: int, file: Callable[[int], OpenFile]) -> Units:
        """Up to `count` units of one file, from a rank on; none if it was deleted. Raises UnreadableError."""
        number = self._file_of(rank)
        first, end = self._ranks[number], self._ranks[number + 1]
        at, wanted = (rank - first) * CONSUME_QUEUE_UNIT_SIZE, min(count, end - rank) * CONSUME_QUEUE_UNIT_SIZE
        try:
            data = file(number).read(at, wanted)
        except OSError as error:
            if problem := unreadable(self.files[number].path, error, at):
                raise problem from None
            return _NO_UNITS
        return decode_records(data, CONSUME_QUEUE_UNIT)


def queue_root(log: StoreView) -> Path:
    """The storePathRootDir that has the queues. Raises StoreError if it is unknown, or if they are in RocksDB."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir with the folder {FOLDER}, found a log folder without its root: "
            "give the root's path"
        )
    if (root / FOLDER / "CURRENT").is_file():
        raise StoreError(
            f"{root / FOLDER}: expected ConsumeQueue files, found a RocksDB (storeType=defaultRocksDB): its queues "
            "cannot be read"
        )
    return root


def is_selected(topic: str, queue_id: int, options: ReadOptions) -> bool:
    """Whether the options topic and queueId select a queue."""
    return (options.topic is None or topic in options.topic) and (
        options.queue_id is None or queue_id in options.queue_id
    )


def batch_queues(root: Path) -> list[Queue]:
    """The queues of batch messages (``BatchConsumeQueue``); a file's ``units`` are of 46 bytes.

    Raises UnreadableError for a folder that cannot be listed.
    """
    files: dict[tuple[str, int], list[QueueFile]] = {}
    folders = [
        path_of(queue.path) for topic in folders_in(root / BATCH_FOLDER) for queue in folders_in(path_of(topic.path))
    ]
    for path in sorted(path_of(entry.path) for folder in folders for entry in folder_entries(folder)):
        queue_id = path.parent.name
        if queue_id.isdecimal() and is_segment_name(path.name) and path.is_file():
            units = path.stat().st_size // BATCH_UNIT_SIZE
            file = QueueFile(str(path), path.name, int(path.name) // BATCH_UNIT_SIZE, units)
            files.setdefault((path.parent.parent.name, int(queue_id)), []).append(file)
    return [Queue(topic, queue_id, tuple(found)) for (topic, queue_id), found in sorted(files.items())]
