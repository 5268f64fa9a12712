"""Writes RocketMQ's index of message keys, file after file.

Units are written as they come, slots and header with each flush: what a header says is on disk. Source: RocketMQ 5.3.3
``IndexService.buildIndex``, ``retryGetAndCreateIndexFile``, ``IndexFile.putKey``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.clock import now_ms
from pyspark_dledger.common.durable import PRIVATE_FOLDER, open_own, write_at
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.format.codec import record_dtype, record_struct
from pyspark_dledger.format.dispatched_rows import Keys, Longs
from pyspark_dledger.format.layout import (
    INDEX_FILE_HEADER,
    INDEX_FILE_HEADER_SIZE,
    INDEX_FILE_SLOT_SIZE,
    INDEX_FILE_UNIT,
)
from pyspark_dledger.log.io.entry_reads import read_existing
from pyspark_dledger.log.io.key_files import FOLDER, IndexHeader, KeyFile, index_files, read_header, unit_position

_HEADER = record_struct(INDEX_FILE_HEADER)
_UNIT_DTYPE = record_dtype(INDEX_FILE_UNIT)
# Slots that are written together: a page of 4 KiB.
_SLOTS_PER_PAGE = 1024
# Keys of one message: properties have at most 32,767 bytes, and a blank separates two keys.
_MAX_KEYS = 1 << 14

Slots = npt.NDArray[np.int32]
HASH_SLOTS = 5_000_000
INDEX_UNITS = 20_000_000
"""RocketMQ's defaults (``maxHashSlotNum``, ``maxIndexNum``). The unit with number 0 is never used."""


class IndexFileWriter:
    """One file; its slots stay in memory, because they change everywhere, and changed pages are written."""

    def __init__(self, descriptor: int, slots: Slots, units: int, header: IndexHeader) -> None:
        self.header = header
        self._descriptor = descriptor
        self._slots = slots
        self._units = units
        self._changed_pages = np.zeros(-(-len(slots) // _SLOTS_PER_PAGE), bool)
        self._is_dirty = True

    @classmethod
    def create(cls, path: Path, slots: int, units: int, before: IndexHeader | None) -> IndexFileWriter:
        """A new file, whose times and offsets begin where the previous file ended."""
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.ftruncate(descriptor, unit_position(slots, units))
        stored, offset = (before.end_timestamp, before.end_phy_offset) if before is not None else (0, 0)
        header = IndexHeader(stored, stored, offset, offset, 0, 1)
        return cls(descriptor, np.zeros(slots, np.int32), units, header)

    @classmethod
    def open(cls, known: KeyFile) -> IndexFileWriter:
        """An existing file that `KeyFile.has_ends`, and whose `slots_of` are known."""
        table = slots_of(known)
        assert table is not None
        file = cls(open_own(known.path, os.O_RDWR), table, known.capacity, known.header)
        file._is_dirty = False
        return file

    @property
    def room(self) -> int:
        """How many more units fit."""
        return self._units - self.header.index_count

    def put(self, keys: Keys) -> None:
        """Add at least one and at most `room` keys."""
        header, count = self.header, len(keys)
        numbers = np.arange(header.index_count, header.index_count + count, dtype=np.int64)
        slot = keys.key_hash % len(self._slots)
        previous, newly_used = self._previous(slot, numbers)
        units: npt.NDArray[Any] = np.empty(count, _UNIT_DTYPE)
        units["keyHash"], units["commitLogOffset"], units["previous"] = keys.key_hash, keys.offset, previous
        units["seconds"] = self._seconds(keys.stored)
        write_at(self._descriptor, units.tobytes(), unit_position(len(self._slots), header.index_count))
        # Only after the write, so that it can be retried. Of several units of a slot the last one counts.
        self._slots[slot] = numbers
        self._changed_pages[slot // _SLOTS_PER_PAGE] = True
        is_first = header.index_count <= 1
        # A message whose time is damaged has none.
        known = keys.stored[keys.stored > 0]
        self.header = IndexHeader(
            int(keys.stored[0]) if is_first else header.begin_timestamp,
            int(known[-1]) if len(known) else header.end_timestamp,
            int(keys.offset[0]) if is_first else header.begin_phy_offset,
            int(keys.offset[-1]),
            header.hash_slot_count + newly_used,
            header.index_count + count,
        )
        self._is_dirty = True

    def _previous(self, slot: Longs, numbers: Longs) -> tuple[Longs, int]:
        """The previous unit of each in its slot, and how many slots were empty."""
        order = np.argsort(slot, kind="stable")
        ordered, in_order = slot[order], numbers[order]
        is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        before = np.where(is_first, self._slots[ordered], np.concatenate([[0], in_order[:-1]]))
        previous = np.empty(len(slot), np.int64)
        previous[order] = before
        return previous, int(np.count_nonzero(before[is_first] == 0))

    def _seconds(self, stored: Longs) -> Longs:
        """Whole seconds since the file's begin; for the first unit, since the end of the previous file."""
        begin = np.array(self.header.begin_timestamp)
        if self.header.index_count <= 1:
            begin = np.concatenate([[begin], np.full(len(stored) - 1, stored[0])])
        return np.clip((stored - begin) // 1000, 0, INT32_MAX) * (begin > 0)

    def flush(self) -> None:
        """Write the slots, then the header; make everything durable."""
        if not self._is_dirty:
            return
        for start, stop in _set_ranges(self._changed_pages):
            part = self._slots[start * _SLOTS_PER_PAGE : stop * _SLOTS_PER_PAGE].astype(">i4")
            offset = INDEX_FILE_HEADER_SIZE + start * _SLOTS_PER_PAGE * INDEX_FILE_SLOT_SIZE
            write_at(self._descriptor, part.tobytes(), offset)
        self._changed_pages[:] = False
        write_at(self._descriptor, _HEADER.pack(*astuple(self.header)), 0)
        os.fsync(self._descriptor)
        self._is_dirty = False

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def slots_of(file: KeyFile) -> Slots | None:
    """The slots of a file as they were when its header was written; None if that is unknown.

    Slots are written before the header. From a newer unit in a slot the chain leads back to an older one.
    """
    slots, count = file.slots, file.header.index_count
    data = read_existing(str(file.path), INDEX_FILE_HEADER_SIZE, slots * INDEX_FILE_SLOT_SIZE)
    if len(data) < slots * INDEX_FILE_SLOT_SIZE:
        return None
    table = np.frombuffer(data, ">i4").astype(np.int32)
    newer = np.flatnonzero(table >= count)
    if len(newer):
        units = file.read(0, min(int(table.max()) + 1, file.capacity))
        while len(newer):
            numbers = table[newer]
            if numbers.max() >= len(units):
                return None
            previous = units["previous"][numbers]
            is_of_slot = units["keyHash"][numbers] % slots == newer
            if not (is_of_slot & (previous < numbers) & (units["commitLogOffset"][numbers] > 0)).all():
                return None
            table[newer] = previous
            newer = newer[table[newer] >= count]
    return None if (table < 0).any() else table


def _set_ranges(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The ranges ``[start, stop)`` of flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


class IndexWriter:
    """Writes the files below ``root/index``, from one thread. Raises OSError if the disk fails.

    The last file keeps its numbers of slots and units; new files get those given. `now` returns the milliseconds since
    1970 that name a new file.
    """

    def __init__(
        self,
        root: Path,
        hash_slots: int = HASH_SLOTS,
        index_units: int = INDEX_UNITS,
        now: Callable[[], int] = now_ms,
    ) -> None:
        self._root = root
        self._slots, self._units = hash_slots, index_units
        self._now = now
        self._file: IndexFileWriter | None = None
        self._full: list[IndexFileWriter] = []  # not flushed yet
        # The last message whose keys are written, and how many of them.
        self._done, self._done_keys = -1, 0

    def sort_out(self, is_wrong: Callable[[IndexHeader], bool]) -> tuple[IndexHeader | None, list[Path]]:
        """The header of the last sound file, and the files after it, which the caller deletes.

        A file is wrong if `is_wrong` says so, or if its header, slots and units do not match; then all later files are
        wrong, too. Files without units are deleted here.
        """
        kept: list[KeyFile] = []
        wrong: list[Path] = []
        for path in index_files(self._root):
            header = read_header(path)
            if header is not None and header.index_count <= 1:
                path.unlink()
                continue
            file = KeyFile.opened(path) if not wrong else None
            if file is None or is_wrong(file.header) or not file.has_ends():
                wrong.append(path)
            else:
                kept.append(file)
        if kept and slots_of(kept[-1]) is None:
            wrong.insert(0, kept.pop().path)
        return (kept[-1].header if kept else None), wrong

    def resume(self) -> None:
        """Continue in the last file, which `sort_out` has found sound, after its last message."""
        files = index_files(self._root)
        if not files:
            return
        known = KeyFile.opened(files[-1])
        assert known is not None
        file = IndexFileWriter.open(known)
        self._done, self._done_keys = file.header.end_phy_offset, _keys_of_last(files)
        if file.room:
            self._file = file
        else:
            self._full.append(file)

    def put(self, keys: Keys) -> None:
        """Add keys in the order of the log, those of a message together; keys that are there already are skipped."""
        low, high = np.searchsorted(keys.offset, [self._done, self._done + 1]).tolist()
        keys = keys[min(low + self._done_keys, high) :]
        while len(keys):
            file = self._writable()
            part, keys = keys[: file.room], keys[file.room :]
            file.put(part)
            last = int(part.offset[-1])
            count = len(part) - int(np.searchsorted(part.offset, last))
            self._done_keys = count + (self._done_keys if last == self._done else 0)
            self._done = last

    def _writable(self) -> IndexFileWriter:
        if self._file is not None and self._file.room:
            return self._file
        if self._file is not None:
            self._full.append(self._file)
        before = self._full[-1].header if self._full else None
        self._file = IndexFileWriter.create(self._new_path(), self._slots, self._units, before)
        return self._file

    def _new_path(self) -> Path:
        """The local time in milliseconds, or the next name after all others."""
        folder = self._root / FOLDER
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        last = max((path.name for path in index_files(self._root)), default="")
        seconds, rest = divmod(self._now(), 1000)
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{rest:03}"
        # A local clock goes back each autumn.
        return folder / (name if name > last else f"{int(last) + 1:0{len(last)}}")

    def flush(self) -> None:
        """Write slots and headers, and make everything durable."""
        for file in self._full:
            file.flush()
        # A new file's header begins with the end of the last full one, which therefore stays open until there is one.
        for file in self._full[:-1] if self._file is None else self._full:
            file.close()
        self._full = self._full[-1:] if self._file is None else []
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        for file in (*self._full, *([self._file] if self._file is not None else [])):
            file.close()
        self._file, self._full = None, []

    def delete_before(self, min_offset: int) -> int:
        """Delete files of messages before a position of the log, but not the last file. Returns how many."""
        count = 0
        for path in index_files(self._root)[:-1]:
            header = read_header(path)
            if header is None or header.end_phy_offset >= min_offset:
                break
            path.unlink()
            count += 1
        return count


def _keys_of_last(files: list[Path]) -> int:
    """How many keys of the last message are in the last files."""
    count, last = 0, None
    for file in map(KeyFile.opened, reversed(files)):
        if file is None or last not in (None, file.header.end_phy_offset):
            break
        last, stop = file.header.end_phy_offset, file.header.index_count
        offsets = file.read(max(1, stop - _MAX_KEYS), stop)["commitLogOffset"]
        others = np.flatnonzero(offsets != last)
        count += len(offsets) - 1 - int(others[-1]) if len(others) else len(offsets)
        if file.header.begin_phy_offset != last:
            break
    return count
