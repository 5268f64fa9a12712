"""A broker's ConsumeQueues: their files, their units, and the index that they prove committed.

A broker dispatches only committed messages (`DLedgerCommitLog.getData`), so a unit proves that its message is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.common.java_text import is_utf8
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import ConsumeQueueUnit, EntryHeader, decode_records, record_dtype
from pyspark_dledger.format.layout import (
    BATCH_UNIT_SIZE,
    CONSUME_QUEUE_UNIT,
    CONSUME_QUEUE_UNIT_SIZE,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    is_segment_name,
)
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.format.store_file import OpenFile
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at, segment_at
from pyspark_dledger.log.io.files import (
    FolderEntry,
    OnUnreadable,
    ignore_error,
    last_data,
    map_reads,
    open_file,
    opened_existing,
    path_of,
    raise_error,
    scan_folder,
    unreadable,
)
from pyspark_dledger.log.io.rocks_queues import OpenRocksUnits, rocks_folders, rocks_queues

Units = npt.NDArray[Any]
"""Units as a numpy array with the fields of `layout.CONSUME_QUEUE_UNIT`, big-endian as on disk."""

FOLDER = "consumequeue"
BATCH_FOLDER = "batchconsumequeue"
UNIT_DTYPE = record_dtype(CONSUME_QUEUE_UNIT)
# 1.25 MiB in memory.
UNITS_AT_ONCE = 64 * 1024
# ConsumeQueue.fillPreBlank: (0, this, 0) fills a file before the first unit of a queue that begins in its middle.
FILLER_SIZE = 0x7FFFFFFF
SPARE_FILLERS = 300_000
"""A builder of queues fills gaps that the log has no room for, such as those of an export that closed gaps of the log,
with so many, and with as many bytes as the log has."""
_QUEUE_ID = re.compile(r"[0-9]{1,10}")
# Among the last units that were written, at least one of so many is intact.
_LAST_UNITS = 1024
_NO_UNITS = np.empty(0, UNIT_DTYPE)
# A damaged queue can promise any number of entries.
_MAX_AT_END = 1_000_000


@dataclass(frozen=True)
class QueueFile:
    """One file of a queue: ``first`` is the queue offset of its first unit, ``units`` its capacity in units.

    All units of a queue in a RocksDB are as one file. ``database`` is the folder of that, ``prefix`` begins their keys,
    and no file has the path, which names the queue.
    """

    path: str
    name: str
    first: int
    units: int
    size: int
    database: str = ""
    prefix: bytes = b""

    def offset_of(self, queue_offset: int) -> int | None:
        """The byte where a unit begins; None in a RocksDB."""
        return None if self.database else (queue_offset - self.first) * CONSUME_QUEUE_UNIT_SIZE


class TooLargeError(UnreadableError):
    """A file that no broker wrote: Java maps files whole, so all have less than 2 GiB."""


def skip_too_large(error: UnreadableError) -> None:
    """For a rebuild, which replaces such a file."""
    if not isinstance(error, TooLargeError):
        raise error


@dataclass(frozen=True)
class Queue:
    """One queue of a topic, with its files by name."""

    topic: str
    queue_id: int
    files: tuple[QueueFile, ...]

    @property
    def name(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id


def queues(root: Path, on_unreadable: OnUnreadable = raise_error) -> list[Queue]:
    """The queues of a storePathRootDir that have units, by topic and queue id: those in files, and those in a RocksDB.

    Of a queue that is in both, the one that ends later. `on_unreadable` is as for `file_queues`.
    """
    found = {queue.name: queue for queue in file_queues(root, on_unreadable)}
    for queue in database_queues(root, on_unreadable):
        found[queue.name] = max(found.get(queue.name, queue), queue, key=_end_of)
    return sorted(found.values(), key=lambda queue: queue.name)


def queue_of(root: Path, topic: str, queue_id: int, on_unreadable: OnUnreadable = raise_error) -> Queue:
    """One queue as `queues` finds it; without files if it has no units."""
    files = queue_files(root / FOLDER / topic / str(queue_id), on_unreadable) if "/" not in topic else ()
    found = Queue(topic, queue_id, files)
    others = [queue for queue in database_queues(root, on_unreadable) if queue.name == found.name]
    return max((found, *others), key=_end_of) if others else found


def _end_of(queue: Queue) -> int:
    """The queueOffset after the last written unit; 0 without one that can be read."""
    for file in reversed(queue.files):
        with suppress(UnreadableError):
            if written := written_units(file):
                return file.first + written
    return 0


def database_queues(root: Path, on_unreadable: OnUnreadable = raise_error) -> list[Queue]:
    """The queues of a storePathRootDir that are in a RocksDB."""
    found = []
    for folder in rocks_folders(root):
        try:
            for each in rocks_queues(folder):
                units = each.end - each.first
                path, size = str(folder / each.topic / str(each.queue_id)), units * CONSUME_QUEUE_UNIT_SIZE
                file = QueueFile(path, "", each.first, units, size, str(folder), each.prefix)
                found.append(Queue(each.topic, each.queue_id, (file,)))
        except UnreadableError as error:
            on_unreadable(error)
    return found


def file_queues(root: Path, on_unreadable: OnUnreadable = raise_error) -> list[Queue]:
    """The queues below ``root/consumequeue`` that have files, by topic and queue id.

    Folders that cannot be of a topic or queue are ignored. No file is read. `on_unreadable` is called for what cannot
    be listed, and for a folder or a broken link in place of a file.
    """
    found = []
    folder = root / FOLDER
    for topic in folders_in(folder, on_unreadable):
        if not is_utf8(topic.name):
            continue
        for queue in folders_in(folder / topic.name, on_unreadable):
            is_queue = _QUEUE_ID.fullmatch(queue.name) is not None and int(queue.name) <= INT32_MAX
            files = queue_files(folder / topic.name / queue.name, on_unreadable) if is_queue else ()
            if files:
                found.append(Queue(topic.name, int(queue.name), files))
    return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))


def usual_units(found: Iterable[Queue]) -> int:
    """How many units most files of some queues have; 0 without files."""
    sizes = Counter(file.units for queue in found for file in queue.files if file.units)
    return max(sizes, key=sizes.__getitem__, default=0)


def queue_files(folder: Path, on_unreadable: OnUnreadable = raise_error) -> tuple[QueueFile, ...]:
    """The files of the queue in a folder, in order."""
    files = []
    for entry in folder_entries(folder, on_unreadable):
        size = _file_size(entry, on_unreadable) if is_segment_name(entry.name) else None
        if size is not None:
            first = int(entry.name) // CONSUME_QUEUE_UNIT_SIZE
            files.append(QueueFile(entry.path, entry.name, first, size // CONSUME_QUEUE_UNIT_SIZE, size))
    return tuple(sorted(files, key=lambda file: file.first))


def batch_queues(root: Path, on_unreadable: OnUnreadable = raise_error) -> list[Queue]:
    """The queues of batch messages (``BatchConsumeQueue``); a file's ``units`` are of 46 bytes."""
    files: dict[tuple[str, int], list[QueueFile]] = {}
    topics = folders_in(root / BATCH_FOLDER, on_unreadable)
    folders = [path_of(queue.path) for topic in topics for queue in folders_in(path_of(topic.path), on_unreadable)]
    entries = [entry for folder in folders for entry in folder_entries(folder, on_unreadable)]
    for path in sorted(path_of(entry.path) for entry in entries):
        queue_id = path.parent.name
        if queue_id.isdecimal() and is_segment_name(path.name) and path.is_file():
            size = path.stat().st_size
            file = QueueFile(str(path), path.name, int(path.name) // BATCH_UNIT_SIZE, size // BATCH_UNIT_SIZE, size)
            files.setdefault((path.parent.parent.name, int(queue_id)), []).append(file)
    return [Queue(topic, queue_id, tuple(found)) for (topic, queue_id), found in sorted(files.items())]


def _file_size(entry: FolderEntry, on_unreadable: OnUnreadable) -> int | None:
    """The size of a file in bytes; None for anything else, which is reported."""
    try:
        size = entry.stat().st_size if entry.is_file() else None
    except OSError as error:
        problem = unreadable(entry.path, error)
    else:
        if size is not None and size <= INT32_MAX:
            return size
        if size is None:
            problem = UnreadableError(entry.path, "not a file")
        else:
            problem = TooLargeError(entry.path, f"expected less than 2 GiB, found {size} bytes")
    if problem is not None:
        on_unreadable(problem)
    return None


def read_units(file: QueueFile, start: int = 0, stop: int | None = None) -> Iterator[Units]:
    """The units ``[start, stop)`` of a file, counted from its beginning, in chunks of at most `UNITS_AT_ONCE`.

    Without `stop`, up to the last written unit. Units before it that were never written are zeros. Ends early if the
    file becomes shorter or is deleted. Raises UnreadableError.
    """
    stop = written_units(file) if stop is None else min(stop, file.units)
    with opened_existing(file.path, partial(open_units, file)) as opened:
        while start < stop and opened is not None:
            size = min(UNITS_AT_ONCE, stop - start) * CONSUME_QUEUE_UNIT_SIZE
            units = decode_records(opened.read(start * CONSUME_QUEUE_UNIT_SIZE, size), CONSUME_QUEUE_UNIT)
            if not len(units):
                return
            yield units
            start += len(units)


def open_units(file: QueueFile) -> OpenFile:
    """Open a file of units for reading. Raises OSError, for a remote file StoreError, for a RocksDB UnreadableError."""
    if file.database:
        return OpenRocksUnits(path_of(file.database), file.prefix, file.first, file.units)
    return open_file(file.path)


def readable_units(file: QueueFile, start: int = 0, stop: int | None = None) -> Iterator[Units]:
    """As `read_units`, for a witness: ends early where the file cannot be read."""
    try:
        yield from read_units(file, start, stop)
    except UnreadableError:
        return


def written_units(file: QueueFile) -> int:
    """The number of units up to the last one that is not zeros; 0 for a file that is deleted.

    Searched from the end; holes are skipped. Raises UnreadableError.
    """
    with opened_existing(file.path, partial(open_units, file)) as opened:
        end = last_data(opened, 0, opened.size()) if opened is not None else 0
    return min(-(-end // CONSUME_QUEUE_UNIT_SIZE), file.units)


def proven_index(root: Path, segments: list[Segment], end: int) -> int | None:
    """The highest index below the log's `end` whose message a ConsumeQueue of `root` points to, or None.

    Units without a message are ignored: a queue can be ahead of a truncated log. A queue that cannot be read proves
    nothing.
    """
    found = last_units(root, ignore_error)
    return index_proven_by(((unit.commit_log_offset, unit.size) for unit in found), segments, end)


def index_proven_by(messages: Iterable[tuple[int, int]], segments: list[Segment], end: int) -> int | None:
    """The highest index of the messages (position and size in bytes) that are entries below `end`, or None."""
    for offset, size in sorted(messages, reverse=True):
        pos = offset - ENTRY_HEADER_SIZE
        segment = segment_at(segments, pos) if pos < end else None
        header = entry_at(segment, pos) if segment is not None else None
        if segment is not None and header is not None and header.body_size == size and _has_room(segment, pos, header):
            return header.index
    return None


def _has_room(segment: Segment, pos: int, header: EntryHeader) -> bool:
    """Whether the entries from the first one of the file to the one at a position have room: else damage raised it."""
    first = entry_at(segment, segment.base)
    return first is None or (header.index - first.index) * ENTRY_HEADER_SIZE <= pos - segment.base


def dispatched_after(root: Path, index: DLedgerIndex, last_index: int, end: int) -> int:
    """The highest index that ConsumeQueues and index units have at the same place from `end` on; -1 without one."""
    places = [unit.commit_log_offset - ENTRY_HEADER_SIZE for unit in last_units(root, ignore_error)]
    after = [pos for pos in places if pos >= end]
    if not after or not index.files:
        return -1
    count = index.files[-1].end // INDEX_UNIT_SIZE - last_index - 1
    units = index.read(last_index + 1, max(0, min(count, (max(after) - end) // ENTRY_HEADER_SIZE + 1, _MAX_AT_END)))
    found = units["index"][np.isin(units["pos"], after) & (units["index"] > last_index)]
    return int(found.max(initial=-1))


def last_units(root: Path, on_unreadable: OnUnreadable = raise_error) -> Iterator[ConsumeQueueUnit]:
    """The last written unit of each queue; of one whose end cannot be read, the last before it."""
    found = map_reads(partial(_last_unit, on_unreadable), queues(root, on_unreadable), str(root))
    yield from (unit for unit in found if unit is not None)


def _last_unit(on_unreadable: OnUnreadable, queue: Queue) -> ConsumeQueueUnit | None:
    for file in reversed(queue.files):
        try:
            written = written_units(file)
            units = next(read_units(file, max(0, written - _LAST_UNITS), written), _NO_UNITS)
        except UnreadableError as error:
            on_unreadable(error)
            continue
        units = units[(units["size"] > 0) & (units["size"] < FILLER_SIZE)]
        if len(units):
            return ConsumeQueueUnit(*units[-1].tolist())
    return None


def folders_in(folder: Path, on_unreadable: OnUnreadable = raise_error) -> Iterator[FolderEntry]:
    """The folders in a folder; broken links are reported, files are not."""
    for entry in folder_entries(folder, on_unreadable):
        try:
            is_folder, is_other = entry.is_dir(), entry.is_file()
        except OSError as error:
            is_folder, is_other = False, unreadable(entry.path, error) is None
        if is_folder:
            yield entry
        elif not is_other:
            on_unreadable(UnreadableError(entry.path, "not a folder"))


def folder_entries(folder: Path, on_unreadable: OnUnreadable = raise_error) -> list[FolderEntry]:
    """What a folder has; empty if it does not exist. Raises StoreError for a remote folder."""
    try:
        return scan_folder(folder)
    except OSError as error:
        if problem := unreadable(folder, error):
            on_unreadable(problem)
        return []
