"""Writes ConsumeQueues: 20 bytes for each message, at queueOffset * 20 of its queue.

Units that a queue already has are not written again, so the same part of the log may be dispatched twice. Source:
RocketMQ 5.3.3 ``ConsumeQueue.putMessagePositionInfo``, ``fillPreBlank``, ``truncateDirtyLogicFiles``,
``deleteExpiredFile``.

A queueOffset without a message gets RocketMQ's filler, a unit that points to position 0. If a broker finds no message
at position 0, it skips all units of the same pull that point into that file: consumers lose these messages. So the gap
before a unit that points into a first file at 0 is filled with copies of that unit, and consumers get its message more
than once. Source: RocketMQ 4.9.8 and 5.3.3 ``DefaultMessageStore.getMessage``, ``CommitLog.rollNextFile``.

A gap is filled if lost messages explain it: the log has room for them since the last message of the queue, or the log
is large enough (see `QueueWriter`). Else a client chose the queueOffset, and the message is in no queue. A queue may
begin with any queueOffset, because earlier messages expire; but not with one that the log had no room for, and that the
next message does not follow.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.durable import PRIVATE_FOLDER, open_own, sync_dir, write_at
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.dispatched_rows import Longs, QueueName
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, MIN_MESSAGE_SIZE, segment_name
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.queue_files import (
    FILLER_SIZE,
    FOLDER,
    SPARE_FILLERS,
    UNIT_DTYPE,
    UNITS_AT_ONCE,
    Queue,
    QueueFile,
    Units,
    file_queues,
    read_units,
    usual_units,
    written_units,
)
from pyspark_dledger.log.io.queue_units import QueueUnits, has_message, is_filler

UNITS_PER_FILE = 300_000
"""RocketMQ's default (``mappedFileSizeConsumeQueue``)."""

_FILLERS_PER_WRITE = 64 * 1024
# A pull that reads a unit begins at most so many units before it: 800 (maxFilterMessageSize), or as many as a consumer
# asks for (pullBatchSize), at most 1,024.
_MAX_PULL_UNITS = 1024


class DispatchedMessage(NamedTuple):
    """A message that a unit points to: its position in the log, and its size in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class DispatchProgress(NamedTuple):
    """How far the queues prove that the log was dispatched.

    ``complete_to``: the last message up to which no queue has a hole; None without one. ``end``: where the last message
    of any queue ends in the log.
    """

    complete_to: DispatchedMessage | None
    end: int


class QueueState:
    """How far a queue is written. ``end`` is the next queueOffset; -1 if the queue may begin with any.

    ``last`` is the message of the last unit that was read, ``last_offset`` where the last message before ``end`` is in
    the log, 0 if unknown. ``before_hole`` is the one before the first unwritten unit, if it `has_hole`. ``written`` is
    the last unit that was written, none before.
    """

    def __init__(self, queue: Queue) -> None:
        self.topic, self.queue_id = queue.topic, queue.queue_id
        self.files = list(queue.files)
        self.end = -1
        self.last: DispatchedMessage | None = None
        self.last_offset = 0
        self.has_hole = False
        self.before_hole: DispatchedMessage | None = None
        self.written = np.empty(0, UNIT_DTYPE)

    @property
    def queue(self) -> Queue:
        return Queue(self.topic, self.queue_id, tuple(self.files))

    def read_last_units(self) -> None:
        """Set ``last``, and look for holes: unwritten units, and units that do not ascend."""
        if not self.files:
            return
        units = QueueUnits(self.queue)
        _, tail = units.read(max(0, units.count - UNITS_AT_ONCE), units.count)
        is_message = has_message(tail)
        is_hole = ~is_message & ~is_filler(tail)
        falls = np.diff(tail["commitLogOffset"].astype(np.int64)) < 0
        is_hole[1:] |= is_message[1:] & is_message[:-1] & falls
        self.last = _last_message(tail)
        self.last_offset = self.last.offset if self.last is not None else 0
        self.has_hole = bool(is_hole.any())
        if self.has_hole:
            self.before_hole = _last_message(tail[: int(np.argmax(is_hole))])


def _last_message(units: Units) -> DispatchedMessage | None:
    units = units[has_message(units)]
    return DispatchedMessage(int(units["commitLogOffset"][-1]), int(units["size"][-1])) if len(units) else None


def units_before(file: QueueFile, log_end: int) -> int:
    """How many units of a file stay if the log ends at `log_end`: up to the last of a message before; 0 for none."""
    written = written_units(file)
    for start in reversed(range(0, written, UNITS_AT_ONCE)):
        units = next(read_units(file, start, min(start + UNITS_AT_ONCE, written)), None)
        if units is None:
            continue
        offsets = units["commitLogOffset"]
        stays = np.flatnonzero(has_message(units) & (offsets >= 0) & (offsets < log_end))
        if len(stays):
            return start + int(stays[-1]) + 1
    return 0


def last_offset(file: QueueFile) -> int | None:
    """The commitLogOffset of a file's last unit; None for a file that is not full, or cannot be read."""
    units = next(read_units(file, max(file.units - 1, 0), file.units), None)
    if units is None or not len(units) or not int(units["size"][0]):
        return None
    return int(units["commitLogOffset"][0])


def first_file_end(segments: Sequence[Segment]) -> int:
    """Where the first file of a log ends if it begins at position 0; else 0."""
    return segments[0].end if segments and not segments[0].base else 0


def _has_room(offsets: Longs, units: Units) -> bool:
    """Whether a log has room for as many messages before the first one as its queueOffset says."""
    return int(offsets[0]) * MIN_MESSAGE_SIZE <= int(units["commitLogOffset"][0])


class QueueWriter:
    """Writes the queues below ``root/consumequeue``, from one thread. Raises OSError if the disk fails.

    Files have as many units as most existing ones, else `units_per_file`. `files` does the writing; by default
    `SparseFiles`. `first_file_end` is that of the log. Raises StoreError if a file is longer than most others.

    Gaps that the log has no room for take fillers of 6 MB, and of as many bytes as the log has (`log_bytes` before the
    first `put`).

    ``gap_copies`` counts, by queue, the units that are copies of a neighbouring unit; ``too_far`` messages are in no
    queue because of the gap before them. Nothing shows that the queueOffset of a message in `doubtful` is right: it
    explains no gap.
    """

    def __init__(
        self,
        root: Path,
        units_per_file: int = UNITS_PER_FILE,
        files: SparseFiles | None = None,
        first_file_end: int = 0,
        log_bytes: int = 0,
        doubtful: Collection[int] = (),
    ) -> None:
        self._root = root
        self._folder = root / FOLDER
        found = file_queues(root)
        self.units_per_file = usual_units(found) or units_per_file
        _check_sizes(found, self.units_per_file)
        self._states = {(queue.topic, queue.queue_id): QueueState(queue) for queue in found}
        self._paths: dict[QueueName, tuple[int, Path]] = {}
        self._files = files or SparseFiles(self.units_per_file * CONSUME_QUEUE_UNIT_SIZE)
        self.first_file_end = first_file_end
        self.gap_copies: Counter[QueueName] = Counter()
        self.too_far = 0
        self._doubtful = doubtful
        self._spare = SPARE_FILLERS + log_bytes // CONSUME_QUEUE_UNIT_SIZE

    @property
    def ends(self) -> dict[QueueName, int]:
        """The next queueOffset of each queue that has one."""
        return {name: state.end for name, state in self._states.items() if state.end >= 0}

    def truncate(self, log_end: int) -> DispatchProgress:
        """Remove the units of messages at or after `log_end`, and files without any other unit.

        Returns what the queues then prove. Holes are only found near the end of a queue.
        """
        states = self._states.values()
        for state in states:
            self._truncate(state, log_end)
        furthest = max((state.last for state in states if state.last is not None), default=None)
        proven = [furthest, *(state.before_hole for state in states if state.has_hole)]
        complete_to = None if None in proven else min(message for message in proven if message is not None)
        return DispatchProgress(complete_to, furthest.end if furthest is not None else 0)

    def _truncate(self, state: QueueState, log_end: int) -> None:
        while state.files:
            file = state.files[-1]
            kept = units_before(file, log_end)
            if kept:
                if kept < written_units(file) or file.units != self.units_per_file:
                    self._files.truncate(Path(file.path), kept * CONSUME_QUEUE_UNIT_SIZE)
                state.end = file.first + kept
                break
            self._files.delete(Path(file.path))
            state.files.pop()
        state.read_last_units()

    def rewind(self, position: int) -> None:
        """Accept units of messages at or after a position of the log once more; until then the old ones stay."""
        for state in self._states.values():
            if state.files:
                units = QueueUnits(state.queue)
                rank = units.lower_bound(position)
                # Files may be missing before the first one: if nothing is kept, the queue may begin with any unit.
                end = units.queue_offset(rank) if rank < units.count else units.end
                end = min(state.end, end) if rank else -1
                if end != state.end:
                    state.end, state.last_offset = end, 0
                    _, before = units.read(max(rank - 1, 0), rank)
                    if len(before) and has_message(before)[0]:
                        state.last_offset = int(before["commitLogOffset"][0])

    def put(
        self, names: list[QueueName], counts: Sequence[int], queue_offset: Longs, units: Units
    ) -> dict[QueueName, int]:
        """Write the units of each queue, in the order of the log. Returns the new end of each queue.

        Of two messages with one queueOffset the first stays, as in RocketMQ, which appends a message with queueOffset 0
        wherever the queue ends. Gaps become fillers, or copies of the following unit, because for RocketMQ a queue ends
        at the first unwritten unit.
        """
        ends, start = {}, 0
        for name, count in zip(names, counts, strict=True):
            part = slice(start, start := start + count)
            ends[name] = self._put(name, queue_offset[part], units[part])
        self._spare += int(units["size"][has_message(units)].sum()) // CONSUME_QUEUE_UNIT_SIZE
        return ends

    def keep_end(self, name: QueueName, end: int, log_end: int) -> None:
        """Let a queue that was written end at `end`, because its last messages are lost; the log ends at `log_end`.

        A queue without any unit stays as it is, and so does one of which the lost messages would be too many.
        """
        state = self._states.get(name)
        if state is None or not len(state.written) or end <= state.end or not self._may_fill(end - state.end, 0):
            return
        # As before a unit of the next message, but the last unit is always a copy.
        own, is_in_first_file = end - end % self.units_per_file, log_end < self.first_file_end
        copies = max(min(end - max(own, state.end), _MAX_PULL_UNITS), 1) if is_in_first_file else 1
        self._write_fillers(name, state.end, end - copies)
        self._write(name, end - copies, np.repeat(state.written, copies))
        self.gap_copies[name] += copies
        state.end = end

    def _put(self, name: QueueName, offsets: Longs, units: Units) -> int:
        if (state := self._states.get(name)) is None:
            state = self._states[name] = QueueState(Queue(*name, ()))
        again = np.flatnonzero(offsets[1:] == 0) + 1
        for start, stop in pairwise((0, *again.tolist(), len(offsets))):
            part = offsets[start:stop]
            if part[0] == 0 and state.end > 0 and 0 < state.last_offset < units["commitLogOffset"][start]:
                part = np.concatenate([[state.end], part[1:]])
            self._put_part(name, state, part, units[start:stop])
        return max(state.end, 0)

    def _put_part(self, name: QueueName, state: QueueState, offsets: Longs, units: Units) -> None:
        if state.end < 0 and len(offsets) > 1 and offsets[0] > offsets[1] and not _has_room(offsets, units):
            self.too_far += 1
            offsets, units = offsets[1:], units[1:]
        cuts = np.flatnonzero(offsets[1:] - offsets[:-1] != 1) + 1
        if len(cuts) or offsets[0] != state.end:
            is_new = self._new(state, offsets, units["commitLogOffset"])
            offsets, units = offsets[is_new], units[is_new]
            cuts = np.flatnonzero(offsets[1:] - offsets[:-1] != 1) + 1
        if not len(offsets):
            return
        for start, stop in pairwise((0, *cuts.tolist(), len(offsets))):
            first, part = int(offsets[start]), units[start:stop]
            if first != state.end:
                self._fill_gap(name, state.end, first, part[:1])
            self._write(name, first, part)
            state.end, state.written = first + len(part), part[-1:]
        state.last_offset = max(state.last_offset, int(units["commitLogOffset"].max()))

    def _new(self, state: QueueState, offsets: Longs, positions: Longs) -> npt.NDArray[np.bool_]:
        """Which messages of a queue get a unit."""
        before = np.maximum.accumulate(np.concatenate([[state.end - 1], offsets[:-1]]))
        is_new: npt.NDArray[np.bool_] = offsets > before
        has_gap = is_new & (offsets > before + 1)
        has_gap[0] &= state.end >= 0 or bool(self._doubtful)
        if not has_gap.any():
            return is_new
        end, last = state.end, state.last_offset
        for number, (offset, position) in enumerate(zip(offsets.tolist(), positions.tolist(), strict=True)):
            if is_doubtful := position in self._doubtful:
                is_new[number] = offset == max(end, 0)
            else:
                is_new[number] = offset >= end and (end < 0 or self._may_fill(offset - end, position - last))
            if is_new[number]:
                end, last = offset + 1, max(last, position)
            elif offset >= end and (position > 0 or is_doubtful):  # no filler
                self.too_far += 1
        return is_new

    def _may_fill(self, gap: int, log_bytes: int) -> bool:
        """Whether to fill a gap of a queue after which the log has so many bytes."""
        if gap * MIN_MESSAGE_SIZE <= log_bytes or not gap:
            return True
        if gap > self._spare:
            return False
        self._spare -= gap
        return True

    def _fill_gap(self, name: QueueName, end: int, first: int, unit: Units) -> None:
        """Fill the gap from the end of a queue, or from its first file's beginning, to its unit at `first`.

        A pull ends with a file, so copies of the unit are only needed in the unit's own file.
        """
        own = first - first % self.units_per_file
        is_in_first_file = int(unit["commitLogOffset"][0]) < self.first_file_end
        copies = min(first - max(own, end), _MAX_PULL_UNITS) if is_in_first_file else 0
        self._write_fillers(name, end if end >= 0 else own, first - copies)
        self._write(name, first - copies, np.repeat(unit, copies))
        self.gap_copies[name] += copies

    def _write_fillers(self, name: QueueName, start: int, stop: int) -> None:
        for first in range(start, stop, _FILLERS_PER_WRITE):
            fillers = np.zeros(min(_FILLERS_PER_WRITE, stop - first), UNIT_DTYPE)
            fillers["size"] = FILLER_SIZE
            self._write(name, first, fillers)

    def _write(self, name: QueueName, first: int, units: Units) -> None:
        """Write consecutive units, across files if needed."""
        while len(units):
            base = first - first % self.units_per_file
            room = base + self.units_per_file - first
            path = self._path(name, base)
            self._files.write(path, (first - base) * CONSUME_QUEUE_UNIT_SIZE, units[:room].tobytes())
            first, units = first + room, units[room:]

    def _path(self, name: QueueName, base: int) -> Path:
        """The file whose first unit is `base`; the last path of each queue is kept, because making one takes long."""
        known = self._paths.get(name)
        if known is None or known[0] != base:
            path = self._folder / name[0] / str(name[1]) / segment_name(base * CONSUME_QUEUE_UNIT_SIZE)
            known = self._paths[name] = base, path
        return known[1]

    def sync(self) -> None:
        """Make all writes durable."""
        self._files.sync()

    def close(self) -> None:
        self._files.close()

    def delete_before(self, min_offset: int) -> int:
        """Delete files of messages before a position of the log, but not a queue's last file. Returns how many."""
        count = 0
        for queue in file_queues(self._root):
            for file in queue.files[:-1]:
                last = last_offset(file)
                if last is None or last >= min_offset:
                    break
                self._files.delete(Path(file.path))
                count += 1
        return count


def _check_sizes(found: list[Queue], units: int) -> None:
    """Raises StoreError for a file that is longer than the others. A shorter one was left by a crash."""
    for queue in found:
        for file in queue.files:
            if file.units > units:
                raise StoreError(
                    f"{file.path}: expected a ConsumeQueue file of {units} units like most others, found {file.units}: "
                    "delete the folder consumequeue; all queues are then rebuilt from the log"
                )


_MAX_OPEN_FILES = 256


class SparseFiles:
    """Files of `size` bytes, by path. Raises OSError if the disk fails."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._dirty: set[Path] = set()
        self._changed_dirs: set[Path] = set()

    def write(self, path: Path, offset: int, data: bytes) -> None:
        write_at(self._descriptor(path), data, offset)
        self._dirty.add(path)

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = open_own(path, os.O_RDWR)
        except FileNotFoundError:
            descriptor = self._create(path)
        if os.fstat(descriptor).st_size < self._size:
            os.ftruncate(descriptor, self._size)
        self._open[path] = descriptor
        if len(self._open) > _MAX_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _create(self, path: Path) -> int:
        missing = [folder for folder in path.parents if not folder.is_dir()]
        for folder in reversed(missing):
            folder.mkdir(PRIVATE_FOLDER)
            self._changed_dirs.add(folder.parent)
        self._changed_dirs.add(path.parent)
        return open_own(path, os.O_RDWR | os.O_CREAT)

    def truncate(self, path: Path, size: int) -> None:
        """Zero everything after the first `size` bytes; the file keeps its length."""
        descriptor = self._descriptor(path)
        os.ftruncate(descriptor, size)
        os.ftruncate(descriptor, self._size)
        self._dirty.add(path)

    def delete(self, path: Path) -> None:
        self._dirty.discard(path)
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
        path.unlink(missing_ok=True)
        self._changed_dirs.add(path.parent)

    def sync(self) -> None:
        """Make all writes durable, with the folders of new and deleted files."""
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
