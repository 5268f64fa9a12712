"""Writing ConsumeQueues: 20 bytes for each message, at queueOffset * 20 of its queue.

A queue is filled in the order of the log, and what it has already is not written again, so that a part of the log may
be gone through twice. Source: RocketMQ 5.3.3 ``ConsumeQueue.putMessagePositionInfo``, ``fillPreBlank``,
``truncateDirtyLogicFiles``, ``deleteExpiredFile``.

A place whose message is gone has RocketMQ's filler, a unit that points to position 0. A broker that finds no message
where a unit points to passes over every unit of the same pull that points into that file, and consumers never get those
messages. So before a unit that points into a first file at 0 a place is a copy of that unit: consumers get its message
once more. Source: RocketMQ 4.9.8 and 5.3.3 ``DefaultMessageStore.getMessage``, ``CommitLog.rollNextFile``.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, SEGMENT_NAME_DIGITS
from pyspark_dledger.format.spec import Segment
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
from pyspark_dledger.rocketmq.consume_queue.queue_units import QueueUnits, is_filler
from pyspark_dledger.rocketmq.message_arrays import Longs, QueueName

UNITS_PER_FILE = 300_000
"""RocketMQ's default (``mappedFileSizeConsumeQueue``)."""

HIGHEST_OFFSET = 2**62 // CONSUME_QUEUE_UNIT_SIZE
"""The last queueOffset that a unit can have: files are named by their first byte."""

# A folder's name in bytes, which is all that a topic has to be here; RocketMQ's own topics are of fewer characters.
_LONGEST_TOPIC = 255
_MOST_OPEN = 256
_FILLED_AT_ONCE = 64 * 1024
# So far before a unit a pull may begin that looks at it: 800 units (maxFilterMessageSize), or as many as a consumer
# asks for (pullBatchSize), which are 1,024 at most.
_LOOKED_AHEAD = 1024


def first_file_end(segments: Sequence[Segment]) -> int:
    """Where the first file of a log ends, if that is its file at position 0; 0 if it is another."""
    return segments[0].end if segments and not segments[0].base else 0


def is_queue(name: QueueName) -> bool:
    """Whether a topic and a queue id can be folders: what stands in a log may come from anybody."""
    topic, queue_id = name
    size = len(topic.encode("utf-8", "surrogatepass"))
    return 0 < size <= _LONGEST_TOPIC and not {"/", "\0"} & set(topic) and topic not in (".", "..") and queue_id >= 0


class LastUnit(NamedTuple):
    """The unit of a message: where that stands in the log, and its size in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class ProvenQueues(NamedTuple):
    """Up to which message all queues are sound, None for none; and where the last message that any has ends."""

    last: LastUnit | None
    end: int


class QueueWriter:
    """The queues below ``root/consumequeue``; one thread writes. Raises OSError where the disk fails.

    Files have as many units as those that are there, else `units_per_file`. `files` writes them, where that is not to
    be done as usual. `first_file_end` is that of the log. Raises StoreError where files are not of one size.

    ``led_over`` counts the places of each queue that have a copy of the unit behind them.
    """

    def __init__(
        self,
        root: Path,
        units_per_file: int = UNITS_PER_FILE,
        files: OpenFiles | None = None,
        first_file_end: int = 0,
    ) -> None:
        self._root = root
        self._folder = root / FOLDER
        found = queues(root)
        sizes = Counter(file.units for queue in found for file in queue.files if file.units)
        self.units_per_file = sizes.most_common(1)[0][0] if sizes else units_per_file
        _check_sizes(found, self.units_per_file)
        self._states = {(queue.topic, queue.queue_id): _QueueState(queue) for queue in found}
        self._files = files or OpenFiles(self.units_per_file * CONSUME_QUEUE_UNIT_SIZE)
        self.first_file_end = first_file_end
        self.led_over: Counter[QueueName] = Counter()

    @property
    def ends(self) -> dict[QueueName, int]:
        """The queueOffset that comes next in each queue; -1 stands for none yet and is left out."""
        return {name: state.end for name, state in self._states.items() if state.end >= 0}

    def truncate(self, log_end: int) -> ProvenQueues:
        """Remove the units of messages at or behind a position of the log, and files without any others.

        Gives what the queues then prove. What was never written, or does not ascend, near the end of a queue is found.
        """
        states = [self._truncated(name, log_end) for name in list(self._states)]
        highest = max((state.last for state in states if state.last is not None), default=None)
        sound = [highest, *(state.before_hole for state in states if state.has_hole)]
        last = None if None in sound else min(unit for unit in sound if unit is not None)
        return ProvenQueues(last, highest.end if highest is not None else 0)

    def _truncated(self, name: QueueName, log_end: int) -> _QueueState:
        state = self._states[name]
        while state.files:
            file = state.files[-1]
            kept = _kept(file, log_end)
            if kept:
                written = written_units(file)
                if kept < written or file.units != self.units_per_file:
                    self._files.cut(Path(file.path), kept * CONSUME_QUEUE_UNIT_SIZE)
                state.end = file.first + kept
                break
            self._files.delete(Path(file.path))
            state.files.pop()
        state.look_at_tail()
        return state

    def rewind(self, position: int) -> None:
        """Have units of messages at or behind a position of the log written once more; until then they stay."""
        for state in self._states.values():
            if state.files:
                units = QueueUnits(state.queue)
                rank = units.rank_behind(position)
                # Files may be missing before the first that is there: where nothing is kept, any unit may come first.
                behind = units.queue_offset(rank) if rank < units.count else units.end
                state.end = min(state.end, behind) if rank else -1

    def put(self, names: list[QueueName], queue: Longs, queue_offset: Longs, units: Units) -> dict[QueueName, int]:
        """Write units in the order of the log; ``queue`` counts into `names`. The end of each queue that they are of.

        Of two messages with one queueOffset the first stays, as with RocketMQ. Units that no message was there for
        become fillers, or copies of the unit behind, because RocketMQ takes a queue to end where nothing is written.
        """
        if not len(queue):
            return {}
        order = np.argsort(queue, kind="stable")
        sorted_queue = queue[order]
        starts = np.flatnonzero(np.concatenate([[True], sorted_queue[1:] != sorted_queue[:-1]]))
        ends = {}
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            which = order[start:stop]
            name = names[int(sorted_queue[start])]
            ends[name] = self._put(name, queue_offset[which], units[which])
        return ends

    def _put(self, name: QueueName, offsets: Longs, units: Units) -> int:
        state = self._states.setdefault(name, _QueueState(Queue(*name, ())))
        before = np.concatenate([[state.end - 1], offsets[:-1]])
        is_new = offsets > np.maximum.accumulate(before)
        offsets, units = offsets[is_new], units[is_new]
        if not len(offsets):
            return max(state.end, 0)
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        for first, part in zip(offsets[[0, *cuts]].tolist(), np.split(units, cuts), strict=True):
            self._fill(name, state.end, first, part[:1])
            self._write(name, first, part)
            state.end = first + len(part)
        return state.end

    def _fill(self, name: QueueName, end: int, first: int, unit: Units) -> None:
        """Write fillers from the end of a queue to its unit at `first`, in the files of both.

        A pull ends with a file, so where fillers would hide that unit its copies are in its own file only.
        """
        own = first - first % self.units_per_file
        if 0 <= end < own and end % self.units_per_file:
            self._write_fillers(name, end, end - end % self.units_per_file + self.units_per_file)
        start = max(own, end)
        is_hidden = int(unit["commitLogOffset"][0]) < self.first_file_end
        led_over = min(first - start, _LOOKED_AHEAD) if is_hidden else 0
        self._write_fillers(name, start, first - led_over)
        self._write(name, first - led_over, np.repeat(unit, led_over))
        self.led_over[name] += led_over

    def _write_fillers(self, name: QueueName, start: int, stop: int) -> None:
        for first in range(start, stop, _FILLED_AT_ONCE):
            fillers = np.zeros(min(_FILLED_AT_ONCE, stop - first), UNIT_DTYPE)
            fillers["size"] = FILLER_SIZE
            self._write(name, first, fillers)

    def _write(self, name: QueueName, first: int, units: Units) -> None:
        """Write consecutive units, over as many files as it takes."""
        topic, queue_id = name
        folder = self._folder / topic / str(queue_id)
        while len(units):
            base = first - first % self.units_per_file
            part, units = np.split(units, [base + self.units_per_file - first])
            path = folder / f"{base * CONSUME_QUEUE_UNIT_SIZE:0{SEGMENT_NAME_DIGITS}d}"
            self._files.write(path, (first - base) * CONSUME_QUEUE_UNIT_SIZE, part.tobytes())
            first += len(part)

    def sync(self) -> None:
        """Make everything that was written durable."""
        self._files.sync()

    def close(self) -> None:
        self._files.close()

    def delete_before(self, min_offset: int) -> int:
        """Delete files of which every message lies before a position of the log, but the last of a queue; how many."""
        count = 0
        for queue in queues(self._root):
            for file in queue.files[:-1]:
                last = _last_offset(file)
                if last is None or last >= min_offset:
                    break
                self._files.delete(Path(file.path))
                count += 1
        return count


def _check_sizes(found: list[Queue], units: int) -> None:
    """Raises StoreError for a file that is longer than the others. A shorter one was being made."""
    for queue in found:
        for file in queue.files:
            if file.units > units:
                raise StoreError(
                    f"{file.path}: expected a ConsumeQueue file of {units} units as most others, found {file.units}: "
                    "delete the folder consumequeue, and all queues are built anew"
                )


class _QueueState:
    """How far a queue goes. ``end`` is the queueOffset that comes next, -1 where the queue begins with any.

    ``last`` is its last unit, ``before_hole`` the one before something that no message wrote, if it `has_hole`.
    """

    def __init__(self, queue: Queue) -> None:
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self.files = list(queue.files)
        self.end = -1
        self.last: LastUnit | None = None
        self.has_hole = False
        self.before_hole: LastUnit | None = None

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id, tuple(self.files))

    def look_at_tail(self) -> None:
        """Take note of what the last units prove, and of units among them that no message wrote."""
        if not self.files:
            return
        units = QueueUnits(self.queue)
        _, tail = units.read(max(0, units.count - UNITS_AT_ONCE), units.count)
        is_real = (tail["size"] > 0) & ~is_filler(tail)
        is_bad = ~is_real & ~is_filler(tail)
        falls = np.diff(tail["commitLogOffset"].astype(np.int64)) < 0
        is_bad[1:] |= is_real[1:] & is_real[:-1] & falls
        self.last = _last_of(tail[is_real])
        self.has_hole = bool(is_bad.any())
        if self.has_hole:
            before = tail[: int(np.argmax(is_bad))]
            self.before_hole = _last_of(before[(before["size"] > 0) & ~is_filler(before)])


def _last_of(units: Units) -> LastUnit | None:
    return LastUnit(int(units["commitLogOffset"][-1]), int(units["size"][-1])) if len(units) else None


def _kept(file: QueueFile, log_end: int) -> int:
    """How many units of a file stay: up to the last of a message before a position of the log; 0 for none."""
    written = written_units(file)
    for start in reversed(range(0, written, UNITS_AT_ONCE)):
        units = next(read_units(file, start, min(start + UNITS_AT_ONCE, written)), None)
        if units is None:
            continue
        offsets = units["commitLogOffset"]
        stays = np.flatnonzero((units["size"] > 0) & ~is_filler(units) & (offsets >= 0) & (offsets < log_end))
        if len(stays):
            return start + int(stays[-1]) + 1
    return 0


def _last_offset(file: QueueFile) -> int | None:
    """What the last unit of a file points to; None for a file that is not full, or cannot be read."""
    units = next(read_units(file, max(file.units - 1, 0), file.units), None)
    if units is None or not len(units) or not int(units["size"][0]):
        return None
    return int(units["commitLogOffset"][0])


class OpenFiles:
    """Files of one size, made as they are needed and sparse; only so many stay open."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._dirty: set[Path] = set()
        self._changed_dirs: set[Path] = set()

    def write(self, path: Path, offset: int, data: bytes) -> None:
        descriptor = self._descriptor(path)
        view = memoryview(data)
        while view:
            wrote = os.pwrite(descriptor, view, offset)
            view, offset = view[wrote:], offset + wrote
        self._dirty.add(path)

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = self._create(path)
        if os.fstat(descriptor).st_size < self._size:
            os.ftruncate(descriptor, self._size)
        self._open[path] = descriptor
        if len(self._open) > _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _create(self, path: Path) -> int:
        for folder in _missing(path.parent):
            folder.mkdir()
            self._changed_dirs.add(folder.parent)
        self._changed_dirs.add(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def cut(self, path: Path, size: int) -> None:
        """Let everything behind `size` bytes be unwritten."""
        descriptor = self._descriptor(path)
        os.ftruncate(descriptor, size)
        os.ftruncate(descriptor, self._size)
        self._dirty.add(path)

    def delete(self, path: Path) -> None:
        self._forget(path)
        path.unlink(missing_ok=True)
        self._changed_dirs.add(path.parent)

    def _forget(self, path: Path) -> None:
        self._dirty.discard(path)
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def sync(self) -> None:
        for path in list(self._dirty):
            self._dirty.discard(path)
            try:
                os.fsync(self._descriptor(path))
            except BaseException:
                self._dirty.add(path)
                raise
        while self._changed_dirs:
            folder = self._changed_dirs.pop()
            if folder.is_dir():
                sync_dir(folder)

    def close(self) -> None:
        for descriptor in self._open.values():
            with suppress(OSError):
                os.close(descriptor)
        self._open.clear()


def _missing(folder: Path) -> Iterator[Path]:
    """The folders above and with this one that are not there, from above."""
    if not folder.is_dir():
        yield from _missing(folder.parent)
        yield folder


def units_of(offset: Longs, size: Longs, tags_code: Longs) -> Units:
    """Units as they stand on disk."""
    units: npt.NDArray[Any] = np.empty(len(offset), UNIT_DTYPE)
    units["commitLogOffset"], units["size"], units["tagsCode"] = offset, size, tags_code
    return units
