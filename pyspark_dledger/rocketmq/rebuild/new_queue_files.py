"""Writes new ConsumeQueue files, and reads them back from the disk; reads existing ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.durable import drop_cached
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.dispatched_rows import QueueName, is_valid_queue
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT, CONSUME_QUEUE_UNIT_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.queue_files import FILLER_SIZE, UNIT_DTYPE, Units, file_queues, skip_too_large
from pyspark_dledger.log.io.queue_units import LAST_EXT_ADDRESS, QueueUnits, has_message, is_filler
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import StoredQueues
from pyspark_dledger.rocketmq.broker.queue_writer import QueueWriter, SparseFiles
from pyspark_dledger.rocketmq.dispatch.log_part import stored_at
from pyspark_dledger.rocketmq.jobs.new_files import read_back_error

_BYTES_PER_READ = 8 * 1024 * 1024


class ExtAddresses:
    """Addresses in consumequeue_ext, which existing units have instead of the hash of their tags."""

    def __init__(self, existing: StoredQueues) -> None:
        self._existing = existing
        self.count = 0

    def copy_to(self, units: Units, name: QueueName, first: int) -> Units:
        """The units with the addresses of the existing units of the same messages."""
        existing = self._existing.units_at(name, first, len(units))
        is_same = (existing["commitLogOffset"] == units["commitLogOffset"]) & (existing["size"] == units["size"])
        is_kept = is_same & (existing["tagsCode"] <= LAST_EXT_ADDRESS)
        if not is_kept.any():
            return units
        self.count += int(is_kept.sum())
        kept = units.copy()
        kept["tagsCode"][is_kept] = existing["tagsCode"][is_kept]
        return kept


def ext_addresses(root: Path | None) -> ExtAddresses | None:
    """The addresses in existing units, if the broker used consumequeue_ext (``enableConsumeQueueExt``)."""
    if root is None or not (root / "consumequeue_ext").is_dir():
        return None
    return ExtAddresses(StoredQueues(root))


class UnitFiles(SparseFiles):
    """Files of one size for units; subclasses write or compare these.

    ``units`` counts units that point to a message. ``fillers`` counts those for messages that the log does not have,
    except fillers before the first message of a queue in its first file.
    """

    def __init__(self, size: int, addresses: ExtAddresses | None = None) -> None:
        super().__init__(size)
        self._addresses = addresses
        self._begun: set[Path] = set()
        self._paths: set[Path] = set()
        self.units = self.fillers = 0

    @property
    def count(self) -> int:
        """The number of files."""
        return len(self._paths)

    @property
    def ext_units(self) -> int:
        """The number of units with an address in consumequeue_ext."""
        return self._addresses.count if self._addresses is not None else 0

    def write(self, path: Path, offset: int, data: bytes) -> None:
        topic, queue_id, file_name = path.parts[-3:]
        name = (topic, int(queue_id))
        first = (int(file_name) + offset) // CONSUME_QUEUE_UNIT_SIZE
        units = decode_records(data, CONSUME_QUEUE_UNIT)
        if self._addresses is not None:
            units = self._addresses.copy_to(units, name, first)
        self._paths.add(path)
        self._count(path.parent, units)
        self.put_units(path, offset, name, first, units)

    def _count(self, queue: Path, units: Units) -> None:
        fillers = is_filler(units)
        count = int(np.count_nonzero(fillers))
        self.units += len(units) - count
        if queue in self._begun:
            self.fillers += count
        elif count < len(units):
            self._begun.add(queue)
            self.fillers += count - int(np.argmin(fillers))

    def put_units(self, path: Path, offset: int, name: QueueName, first: int, units: Units) -> None:
        """Write or compare units of a queue, from the queueOffset `first` on, at byte `offset` of a file."""
        raise NotImplementedError

    def verify(self) -> None:
        """Check all units once they are written. Raises StoreError if they differ."""
        raise NotImplementedError


_NANOSECONDS = 1_000_000


class QueueTimes:
    """Gives files the times of their last messages, from the log or, for expired messages, from existing files.

    `keep_from` is the storePathRootDir of these files.
    """

    def __init__(self, log: StoreView, keep_from: Path | None) -> None:
        self._log, self._keep_from = log, keep_from

    def set(self, root: Path, file: Path, last_offset: int) -> None:
        """Set the time of a file below `root` to the storeTimestamp of the message at a position. Raises OSError.

        -1 stands for no message. Without a known time the file is unchanged.
        """
        stored = self._stored_at(last_offset)
        time = stored * _NANOSECONDS if stored > 0 else self._kept(file.relative_to(root))
        if time is not None:
            os.utime(file, ns=(time, time))

    def _stored_at(self, offset: int) -> int:
        segment = segment_at(self._log.segments, offset)
        if segment is None:
            return 0
        header = layout.ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0
        return stored_at(self._log.engine, segment, offset - header) or 0

    def _kept(self, file: Path) -> int | None:
        if self._keep_from is None:
            return None
        try:
            return (self._keep_from / str(file)).stat().st_mtime_ns
        except OSError:
            return None


@dataclass
class _Written:
    """The bytes written to a file, from its start, and their CRC-32.

    ``last_offset`` is the position of the last message that they point to, -1 without one.
    """

    size: int = 0
    crc: int = 0
    last_offset: int = -1


class BuiltFiles(UnitFiles):
    """New files below a root, each written from its start; `verify` reads them back."""

    def __init__(self, root: Path, size: int, times: QueueTimes, addresses: ExtAddresses | None = None) -> None:
        super().__init__(size, addresses)
        self._root, self._times = root, times
        self._written: dict[Path, _Written] = {}

    def put_units(self, path: Path, offset: int, name: QueueName, first: int, units: Units) -> None:
        data = units.tobytes()
        SparseFiles.write(self, path, offset, data)
        written = self._written.setdefault(path, _Written())
        assert offset == written.size, f"{path}: written at {offset}, expected {written.size}"
        written.size, written.crc = offset + len(data), crc32(data, written.crc)
        offsets = units["commitLogOffset"][~is_filler(units)]
        if len(offsets):
            written.last_offset = int(offsets[-1])

    def sync(self) -> None:
        """Make all writes durable, and the modification times of the files."""
        for path, written in self._written.items():
            self._times.set(self._root, path, written.last_offset)
        super().sync()

    def verify(self) -> None:
        """Read all files back from the disk. Raises StoreError if one differs."""
        for path, written in self._written.items():
            crc, missing = 0, written.size
            with path.open("rb", buffering=0) as file:
                drop_cached(file.fileno(), 0, written.size)
                while missing and (data := file.read(min(missing, _BYTES_PER_READ))):
                    crc, missing = crc32(data, crc), missing - len(data)
            if missing or crc != written.crc:
                expected = f"{written.size} bytes with CRC-32 {written.crc:08x}"
                raise read_back_error(str(path), expected, f"{written.size - missing} with {crc:08x}")


_FILLER = np.array((0, FILLER_SIZE, 0), UNIT_DTYPE)


def kept_ends(root: Path, written: Mapping[QueueName, int]) -> Iterator[tuple[QueueName, int]]:
    """The queues of a root that keep their ends, although their last messages are lost (`QueueWriter.keep_end`).

    `written` are the ends by the messages of the log: the last unit before is that of the queue's end.
    """
    for queue in file_queues(root, skip_too_large):
        units, end = QueueUnits(queue), written.get(queue.name, 0)
        if 0 < end < units.end:
            own, last = units.at(end - 1, 1), units.at(units.end - 1, 1)
            if has_message(own)[0] and own[0] == last[0]:
                yield queue.name, units.end


class ExpiredUnits:
    """The units of messages before the position `begin` of the log, by queue.

    They also give the end of a queue whose messages have all expired. Invalid units become fillers.
    """

    def __init__(self, root: Path, begin: int) -> None:
        self._begin = begin
        self._queues = {(queue.topic, queue.queue_id): queue for queue in file_queues(root, skip_too_large)}

    def __contains__(self, name: QueueName) -> bool:
        return name in self._queues

    @property
    def names(self) -> list[QueueName]:
        """The queues that are not written yet."""
        return list(self._queues)

    def write_to(self, writer: QueueWriter, name: QueueName, end: int | None = None) -> int:
        """Write the units of a queue, if not done yet, up to the queueOffset of its first message in the log.

        Returns the number of units of messages.
        """
        queue = self._queues.pop(name, None)
        if queue is None or not is_valid_queue(name):
            return 0
        units = QueueUnits(queue)
        stop = units.lower_bound(self._begin)
        if not any(self._is_expired(found).any() for _, found in units.chunks(0, stop)):
            return 0
        kept = 0
        for offsets, found in units.chunks(0, stop):
            if end is not None:
                offsets, found = offsets[offsets < end], found[offsets < end]
            if not len(offsets):
                break
            is_message = self._is_expired(found)
            kept_units = found.astype(UNIT_DTYPE)
            kept_units[~is_message] = _FILLER
            writer.put([name], [len(offsets)], offsets, kept_units)
            kept += int(is_message.sum())
        return kept

    def _is_expired(self, units: Units) -> npt.NDArray[np.bool_]:
        """Which units are of messages before the log's beginning."""
        offset = units["commitLogOffset"]
        is_message = (units["size"] >= MIN_MESSAGE_SIZE) & ~is_filler(units)
        is_expired: npt.NDArray[np.bool_] = is_message & (offset >= 0) & (offset < self._begin)
        return is_expired
