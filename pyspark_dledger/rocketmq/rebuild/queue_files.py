"""ConsumeQueue files that are built anew: what was written to them is known, and read back from the disk."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT, CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.log.io.queue_files import UNIT_DTYPE, Units, queues, read_units
from pyspark_dledger.rocketmq.consume_queue.queue_units import LAST_EXT_ADDRESS, is_filler
from pyspark_dledger.rocketmq.consume_queue.sparse_files import SparseFiles
from pyspark_dledger.rocketmq.message_arrays import QueueName
from pyspark_dledger.rocketmq.rebuild.queue_times import QueueTimes

_READ_AT_ONCE = 8 * 1024 * 1024


class ExistingQueues:
    """The units of a store's ConsumeQueues by their queueOffset."""

    def __init__(self, root: Path) -> None:
        self.queues = {(queue.topic, queue.queue_id): queue for queue in queues(root)}

    def units(self, name: QueueName, first: int, count: int) -> Units:
        """So many units from a queueOffset on; zeros where none is written."""
        found = np.zeros(count, UNIT_DTYPE)
        queue = self.queues.get(name)
        files = queue.files if queue is not None else ()
        before = max(bisect_right(files, first, key=lambda file: file.first) - 1, 0)
        behind = bisect_left(files, first + count, key=lambda file: file.first)
        for file in files[before:behind]:
            start, stop = max(first, file.first), min(first + count, file.first + file.units)
            for units in read_units(file, start - file.first, stop - file.first) if start < stop else ():
                found[start - first : start - first + len(units)] = units
                start += len(units)
        return found


class ExtAddresses:
    """Addresses in consumequeue_ext, which existing units have in place of the hash of their tags.

    `kept_in` gives new units those of the existing units of the same messages.
    """

    def __init__(self, existing: ExistingQueues) -> None:
        self._existing = existing
        self.count = 0

    def kept_in(self, units: Units, name: QueueName, first: int) -> Units:
        existing = self._existing.units(name, first, len(units))
        is_same = (existing["commitLogOffset"] == units["commitLogOffset"]) & (existing["size"] == units["size"])
        is_kept = is_same & (existing["tagsCode"] <= LAST_EXT_ADDRESS)
        if not is_kept.any():
            return units
        self.count += int(is_kept.sum())
        kept = units.copy()
        kept["tagsCode"][is_kept] = existing["tagsCode"][is_kept]
        return kept


class UnitFiles(SparseFiles):
    """Files of one size for units, of which is known what they are given.

    ``units`` counts those that point to a message, ``fillers`` those in place of messages that are not in the log; what
    lies before the first message of a queue in its first file is not counted.
    """

    def __init__(self, size: int, addresses: ExtAddresses | None = None) -> None:
        super().__init__(size)
        self._addresses = addresses
        self._begun: set[Path] = set()
        self._paths: set[Path] = set()
        self.units = self.fillers = 0

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self._paths)

    @property
    def ext_units(self) -> int:
        """How many units have an address in consumequeue_ext."""
        return self._addresses.count if self._addresses is not None else 0

    def write(self, path: Path, offset: int, data: bytes) -> None:
        topic, queue_id, file_name = path.parts[-3:]
        name = (topic, int(queue_id))
        first = (int(file_name) + offset) // CONSUME_QUEUE_UNIT_SIZE
        units = decode_records(data, CONSUME_QUEUE_UNIT)
        if self._addresses is not None:
            units = self._addresses.kept_in(units, name, first)
        self._paths.add(path)
        self._count(path.parent, units)
        self.take(path, offset, name, first, units)

    def _count(self, queue: Path, units: Units) -> None:
        fillers = is_filler(units)
        count = int(np.count_nonzero(fillers))
        self.units += len(units) - count
        if queue in self._begun:
            self.fillers += count
        elif count < len(units):
            self._begun.add(queue)
            self.fillers += count - int(np.argmin(fillers))

    def take(self, path: Path, offset: int, name: QueueName, first: int, units: Units) -> None:
        """Take units of a queue, from the queueOffset `first` on, at a byte of a file."""
        raise NotImplementedError

    def verify(self) -> None:
        """Check what was taken, once all is. Raises StoreError where that is wrong."""
        raise NotImplementedError


@dataclass
class _Written:
    """What was written to a file, which is from its beginning on: bytes, and their CRC-32.

    ``last_offset`` is where the last message stands that it points to, -1 without one.
    """

    size: int = 0
    crc: int = 0
    last_offset: int = -1


class BuiltFiles(UnitFiles):
    """New files below a root, written from their beginnings on; `verify` reads them back."""

    def __init__(self, root: Path, size: int, times: QueueTimes, addresses: ExtAddresses | None = None) -> None:
        super().__init__(size, addresses)
        self._root, self._times = root, times
        self._written: dict[Path, _Written] = {}

    def take(self, path: Path, offset: int, name: QueueName, first: int, units: Units) -> None:
        data = units.tobytes()
        SparseFiles.write(self, path, offset, data)
        written = self._written.setdefault(path, _Written())
        assert offset == written.size, f"{path}: written at {offset}, expected {written.size}"
        written.size, written.crc = offset + len(data), crc32(data, written.crc)
        offsets = units["commitLogOffset"][~is_filler(units)]
        if len(offsets):
            written.last_offset = int(offsets[-1])

    def sync(self) -> None:
        """Make everything that was written durable, and with it the times of the files."""
        for path, written in self._written.items():
            self._times.set(self._root, path, written.last_offset)
        super().sync()

    def verify(self) -> None:
        """Read everything back from the disk. Raises StoreError where it is not what was written."""
        for path, written in self._written.items():
            crc = size = 0
            for data in _from_disk(path, written.size):
                crc, size = crc32(data, crc), size + len(data)
            if (size, crc) != (written.size, written.crc):
                raise StoreError(
                    f"{path}: expected the {written.size} bytes that were written, with CRC {written.crc:08x}, found "
                    f"{size} with {crc:08x}: check the disk, and build once more"
                )


def _from_disk(path: Path, size: int) -> Iterator[bytes]:
    """The first bytes of a file that was synced, not as the page cache has them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
        for start in range(0, size, _READ_AT_ONCE):
            yield os.pread(descriptor, min(_READ_AT_ONCE, size - start), start)
    finally:
        os.close(descriptor)
