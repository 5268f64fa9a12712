"""The ``consumeQueue`` table, and where a position of the log lies in a queue.

A ConsumeQueue is a broker's index of one queue of a topic: 20 bytes for each message, at queueOffset * 20. Sources:
RocketMQ 5.3.3 ``ConsumeQueue``, ``ConsumeQueueExt``, ``BatchConsumeQueue``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import (
    BATCH_UNIT,
    BATCH_UNIT_SIZE,
    CONSUME_QUEUE_UNIT,
    CONSUME_QUEUE_UNIT_SIZE,
    MIN_MESSAGE_SIZE,
    SEGMENT_NAME_DIGITS,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import OpenFile, open_file
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    UNIT_DTYPE,
    UNITS_AT_ONCE,
    Queue,
    QueueFile,
    Units,
    queues,
    read_units,
    written_units,
)
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, relative_file, table_schema

BATCH_FOLDER = "batchconsumequeue"

SCHEDULE_TOPIC = layout.SCHEDULE_TOPIC
# A tagsCode is a hash of 32 bits, the time to deliver in milliseconds, or, up to this, an address in consumequeue_ext.
LAST_EXT_ADDRESS = -(2**31) - 1
_LAST_HASH = 2**31 - 1

KINDS = ("unit", "delay", "ext", "filler", "batch")
_UNIT, _DELAY, _EXT, _FILLER, _BATCH = range(len(KINDS))

# Units of one task: about a second of Spark's transport.
_PART_UNITS = 2_000_000
# Units that are read at once while a place is looked for.
_AROUND = 64
_NO_UNITS = np.empty(0, UNIT_DTYPE)

COLUMNS = (
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("queueOffset", pa.int64(), "number of the unit; of a batch the first message's"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
    TableColumn("size", pa.int32(), "bytes of the message"),
    TableColumn("tagsCode", pa.int64(), "depends on kind"),
    TableColumn(
        "kind",
        pa.string(),
        "`unit` (tagsCode: hash of the tags), `delay` (delivery time in ms), `ext` (address in consumequeue_ext), "
        "`filler` (no message), `batch`",
    ),
    TableColumn("file", pa.string(), "relative to the store's root"),
    TableColumn("problem", pa.string(), "what was expected and found; null if sound"),
)
_SCHEMA = table_schema(COLUMNS)


# The table


@dataclass(frozen=True)
class FileUnits:
    """The units of one file of a queue; ``before`` is the file before it in the queue."""

    topic: str
    queue_id: int
    file: QueueFile
    before: QueueFile | None
    shown: str
    is_batch: bool = False


@dataclass(frozen=True)
class QueuePart:
    """Files that one task reads."""

    files: tuple[FileUnits, ...]
    batch_rows: int


def plan(log: StoreView, options: ReadOptions) -> list[QueuePart]:
    """Parts of about two million units; files without a unit are left out. Raises StoreError where no root is known."""
    root = queue_root(log)
    packs: list[list[FileUnits]] = []
    room = 0
    for file in _wanted_files(log.paths, root, options):
        units = written_units(file.file) if not file.is_batch else file.file.units
        if not units:
            continue
        if not packs or units > room:
            packs.append([])
            room = _PART_UNITS
        packs[-1].append(file)
        room -= units
    return [QueuePart(tuple(pack), options.max_batch_rows) for pack in packs]


def queue_root(log: StoreView) -> Path:
    """The store's root, which has the queues. Raises StoreError where it is not known, or they are in RocksDB."""
    root = log.paths.root
    if root is None:
        raise StoreError(
            f"{log.path}: expected a storePathRootDir, whose consumequeue/ lies beside the log, found a folder alone: "
            "give the root's path"
        )
    if (root / FOLDER / "CURRENT").is_file():
        raise StoreError(
            f"{root / FOLDER}: expected ConsumeQueue files, found a RocksDB (storeType=defaultRocksDB): its queues "
            "cannot be read"
        )
    return root


def _wanted_files(paths: StorePaths, root: Path, options: ReadOptions) -> Iterator[FileUnits]:
    for queue in queues(root):
        if is_wanted(queue.topic, queue.queue_id, options):
            for before, file in zip((None, *queue.files), queue.files, strict=False):
                yield FileUnits(queue.topic, queue.queue_id, file, before, relative_file(paths, file.path))
    for queue in batch_queues(root):
        if is_wanted(queue.topic, queue.queue_id, options):
            for file in queue.files:
                shown = relative_file(paths, file.path)
                yield FileUnits(queue.topic, queue.queue_id, file, None, shown, is_batch=True)


def is_wanted(topic: str, queue_id: int, options: ReadOptions) -> bool:
    """Whether the options topic and queueId keep a queue."""
    return (options.topic is None or topic in options.topic) and (
        options.queue_id is None or queue_id in options.queue_id
    )


def batch_queues(root: Path) -> list[Queue]:
    """The queues of messages that hold several (``BatchConsumeQueue``); a file's ``units`` are of 46 bytes."""
    files: dict[tuple[str, int], list[QueueFile]] = {}
    for path in sorted(root.glob(f"{BATCH_FOLDER}/*/*/*")):
        queue_id = path.parent.name
        if queue_id.isdecimal() and len(path.name) == SEGMENT_NAME_DIGITS and path.name.isdecimal() and path.is_file():
            units = path.stat().st_size // BATCH_UNIT_SIZE
            file = QueueFile(str(path), path.name, int(path.name) // BATCH_UNIT_SIZE, units)
            files.setdefault((path.parent.parent.name, int(queue_id)), []).append(file)
    return [Queue(topic, queue_id, tuple(found)) for (topic, queue_id), found in sorted(files.items())]


def read(part: QueuePart) -> Iterator[pa.RecordBatch]:
    """The written units of a part."""
    for file in part.files:
        for batch in _batch_units(file) if file.is_batch else _units(file):
            for start in range(0, batch.num_rows, part.batch_rows):
                yield batch.slice(start, part.batch_rows)


def _units(file: FileUnits) -> Iterator[pa.RecordBatch]:
    before = _last_offset(file.before)
    first = file.file.first
    for units in read_units(file.file):
        numbers = np.flatnonzero(_is_written(units))
        written = units[numbers]
        kinds = _kinds(written, file.topic == SCHEDULE_TOPIC)
        problems, before = _problems(written, kinds, before)
        if len(written):
            yield _record_batch(file, first + numbers, written, kinds, problems)
        first += len(units)


def _is_written(units: Units) -> npt.NDArray[np.bool_]:
    return (units["commitLogOffset"] != 0) | (units["size"] != 0) | (units["tagsCode"] != 0)


def is_filler(units: Units) -> npt.NDArray[np.bool_]:
    return (units["commitLogOffset"] == 0) & (units["size"] == FILLER_SIZE) & (units["tagsCode"] == 0)


def _kinds(units: Units, is_delay: bool) -> npt.NDArray[np.int8]:
    codes = units["tagsCode"]
    kinds = np.full(len(units), _UNIT, np.int8)
    if is_delay:
        kinds[codes > _LAST_HASH] = _DELAY
    kinds[codes <= LAST_EXT_ADDRESS] = _EXT
    kinds[is_filler(units)] = _FILLER
    return kinds


def _last_offset(file: QueueFile | None) -> int:
    """The commitLogOffset of a file's last unit, -1 without one."""
    if file is None:
        return -1
    stop = written_units(file)
    units = next(read_units(file, max(stop - 1, 0), stop), _NO_UNITS)
    return int(units["commitLogOffset"][-1]) if len(units) and not is_filler(units)[-1] else -1


def _problems(units: Units, kinds: npt.NDArray[np.int8], before: int) -> tuple[list[str | None], int]:
    """What is wrong with each unit in itself, and the last offset; a queue's units ascend in commitLogOffset."""
    problems: list[str | None] = [None] * len(units)
    real = np.flatnonzero(kinds != _FILLER)
    offsets = units["commitLogOffset"][real].astype(np.int64)
    if not len(real):
        return problems, before
    previous = np.concatenate([[before], offsets[:-1]])
    sizes = units["size"][real]
    for place in np.flatnonzero((offsets <= previous) | (sizes < MIN_MESSAGE_SIZE)).tolist():
        problems[real[place]] = _problem(int(offsets[place]), int(sizes[place]), int(previous[place]))
    return problems, int(offsets[-1])


def _problem(offset: int, size: int, before: int) -> str:
    if size < MIN_MESSAGE_SIZE:
        return f"expected a size of at least {MIN_MESSAGE_SIZE}, found {size}"
    if offset < 0:
        return f"expected a commitLogOffset, found {offset}"
    return f"expected a commitLogOffset above {before}, as the unit before has, found {offset}"


def _batch_units(file: FileUnits) -> Iterator[pa.RecordBatch]:
    at_once = 64 * 1024
    for start in range(0, file.file.units, at_once):
        data = read_at(file.file.path, start * BATCH_UNIT_SIZE, at_once * BATCH_UNIT_SIZE)
        units = decode_records(data, BATCH_UNIT)
        units = units[units["size"] > 0]
        if len(units):
            kinds = np.full(len(units), _BATCH, np.int8)
            yield _record_batch(file, units["baseOffset"], units, kinds, [None] * len(units))


def _record_batch(
    file: FileUnits,
    queue_offsets: npt.NDArray[Any],
    units: Units,
    kinds: npt.NDArray[np.int8],
    problems: list[str | None],
) -> pa.RecordBatch:
    columns = {
        "topic": pa.repeat(pa.scalar(file.topic, pa.string()), len(units)),
        "queueId": pa.repeat(pa.scalar(file.queue_id, pa.int32()), len(units)),
        "queueOffset": pa.array(queue_offsets.astype(np.int64)),
        "commitLogOffset": pa.array(units["commitLogOffset"].astype(np.int64)),
        "size": pa.array(units["size"].astype(np.int32)),
        "tagsCode": pa.array(units["tagsCode"].astype(np.int64)),
        "kind": pa.DictionaryArray.from_arrays(pa.array(kinds), pa.array(KINDS)).cast(pa.string()),
        "file": pa.repeat(pa.scalar(file.shown, pa.string()), len(units)),
        "problem": pa.array(problems, pa.string()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


TABLE = Table(
    "consumeQueue",
    "one row per written ConsumeQueue unit",
    COLUMNS,
    plan,
    read,
    frozenset({"topic", "queueId"}),
)


# Places in a queue


class QueueUnits:
    """The units of a queue by their rank: all units that its files have room for, up to the last written one."""

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
        """The queue offset behind the last unit; 0 for a queue without units (RocketMQ's maxOffset)."""
        return self.queue_offset(self.count - 1) + 1 if self.count else 0

    def queue_offset(self, rank: int) -> int:
        place = self._file_of(rank)
        return self.files[place].first + rank - self._ranks[place]

    def _file_of(self, rank: int) -> int:
        return min(bisect_right(self._ranks, rank) - 1, len(self.files) - 1)

    def rank_of(self, queue_offset: int) -> int | None:
        """The rank of the unit at `queue_offset`, None where no file has room for it."""
        for file, first, end in zip(self.files, self._ranks, self._ranks[1:], strict=False):
            if file.first <= queue_offset < file.first + end - first:
                return first + queue_offset - file.first
        return None

    def read(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], Units]:
        """The units of the ranks ``[start, stop)``, unwritten ones among them, and their queue offsets."""
        numbers, parts = [np.empty(0, np.int64)], [_NO_UNITS]
        for file, first, end in zip(self.files, self._ranks, self._ranks[1:], strict=False):
            low, high = max(start, first) - first, min(stop, end) - first
            at = low
            for units in read_units(file, low, high) if low < high else ():
                parts.append(units)
                numbers.append(np.arange(file.first + at, file.first + at + len(units), dtype=np.int64))
                at += len(units)
        return np.concatenate(numbers), np.concatenate(parts)

    def rank_behind(self, offset: int) -> int:
        """The rank behind the last unit of a message below `offset` of the log, and behind fillers in front of it.

        Found by halving, because the units of a queue ascend; it never falls as `offset` rises, even where they do not.
        """
        high = self.count
        with ExitStack() as opened:
            files: dict[int, OpenFile] = {}

            def file(place: int) -> OpenFile:
                if place not in files:
                    files[place] = opened.enter_context(open_file(self.files[place].path))
                return files[place]

            low = self._fillers_in_front(file)
            while low < high:
                middle = (low + high) // 2
                rank = self._real_from(middle, file)
                if rank is not None and rank[1] < offset:
                    low = rank[0] + 1
                else:
                    high = middle
        return low

    def _fillers_in_front(self, file: Callable[[int], OpenFile]) -> int:
        """How many fillers stand before everything else."""
        rank, around = 0, _AROUND
        while rank < self.count:
            units = self._around(rank, around, file)
            others = np.flatnonzero(~is_filler(units))
            if len(others):
                return rank + int(others[0])
            if not len(units):
                return rank
            rank, around = rank + len(units), min(2 * around, UNITS_AT_ONCE)
        return rank

    def _real_from(self, rank: int, file: Callable[[int], OpenFile]) -> tuple[int, int] | None:
        """The rank of the first unit of a message from `rank` on, and what it points to."""
        around = _AROUND
        while rank < self.count:
            units = self._around(rank, around, file)
            real = np.flatnonzero((units["size"] > 0) & ~is_filler(units))
            if len(real):
                return rank + int(real[0]), int(units["commitLogOffset"][real[0]])
            if not len(units):
                return None
            rank, around = rank + len(units), min(2 * around, UNITS_AT_ONCE)
        return None

    def _around(self, rank: int, count: int, file: Callable[[int], OpenFile]) -> Units:
        """Up to so many units of one file, from a rank on; none where it cannot be read."""
        place = self._file_of(rank)
        first, end = self._ranks[place], self._ranks[place + 1]
        wanted = min(count, end - rank) * CONSUME_QUEUE_UNIT_SIZE
        try:
            data = file(place).read((rank - first) * CONSUME_QUEUE_UNIT_SIZE, wanted)
        except OSError:
            return _NO_UNITS
        return decode_records(data, CONSUME_QUEUE_UNIT)
