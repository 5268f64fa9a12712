"""Writing RocketMQ's index of keys: files of hash slots, and units that are chained in each slot.

Units are written as they come. Slots and header follow with each `IndexWriter.flush`: what a file says of itself is on
disk. Source: RocketMQ 5.3.3 ``IndexFile.putKey``, ``IndexService.buildIndex``, ``retryGetAndCreateIndexFile``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.format.codec import decode_records, record_dtype, record_struct
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    INDEX_FILE_HEADER,
    INDEX_FILE_HEADER_SIZE,
    INDEX_FILE_SLOT_SIZE,
    INDEX_FILE_UNIT,
    INDEX_FILE_UNIT_SIZE,
)
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.rocketmq.index_file.index_file import (
    FOLDER,
    IndexHeader,
    hash_slots,
    index_files,
    read_header,
)
from pyspark_dledger.rocketmq.message_arrays import Longs

HASH_SLOTS = 5_000_000
INDEX_UNITS = 20_000_000
"""RocketMQ's defaults (``maxHashSlotNum``, ``maxIndexNum``). The unit with number 0 is never used."""

_HEADER = record_struct(INDEX_FILE_HEADER)
_UNIT_DTYPE = record_dtype(INDEX_FILE_UNIT)
_HIGHEST = 2**31 - 1
# Slots that are written together: a page of 4 KiB.
_PAGE = 1024
# Of one message: its properties have 32,767 bytes at most, and a blank stands between two keys.
_MOST_KEYS = 1 << 14

Ints = npt.NDArray[np.int32]


class Keys:
    """Keys in the order of the log: ``offset`` of their message in it, ``stored`` in ms, ``key_hash`` as units have."""

    def __init__(self, offset: Longs, stored: Longs, key_hash: Longs) -> None:
        self.offset, self.stored, self.key_hash = offset, stored, key_hash

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, which: slice) -> Keys:
        return Keys(self.offset[which], self.stored[which], self.key_hash[which])


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an Arrow column without a copy; what stands where it is null is anything.

    Arrow's own way to numpy loads pandas as soon as there are nulls or truth values.
    """
    dtype = np.dtype(f"i{column.type.bit_width // 8}")
    return np.frombuffer(column.buffers()[1] or b"", dtype)[column.offset : column.offset + len(column)]


def is_valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a column is not null."""
    bits = column.buffers()[0]
    if bits is None or not column.null_count:
        return np.full(len(column), column.null_count == 0)
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return flags[column.offset : column.offset + len(column)].astype(bool)


def keys_of(engine: Engine, rows: pa.RecordBatch, offset: Longs, stored: Longs) -> Keys:
    """The keys of messages with the columns topic, uniqKey and keys: of each its UNIQ_KEY, then those of KEYS."""
    topics, unique, joined = rows["topic"], rows["uniqKey"], rows["keys"]
    row, text = np.flatnonzero(is_valid(unique)), unique.drop_null()
    if joined.null_count < len(joined):
        words, of = _words(joined)
        row = np.concatenate([row, of])
        order = np.argsort(row, kind="stable")
        row, text = row[order], pa.concat_arrays([text, words]).take(pa.array(order))
    if not len(row):
        return Keys(*(np.empty(0, np.int64) for _ in range(3)))
    named = pc.binary_join_element_wise(topics.take(pa.array(row)), text, "#")
    hashes = np.abs(np.asarray(engine.java_hashes(named)).astype(np.int64))
    # Math.abs leaves Integer.MIN_VALUE negative, and what is negative becomes 0 (IndexFile.indexKeyHashMethod).
    hashes[hashes > _HIGHEST] = 0
    return Keys(offset[row], stored[row], hashes)


def _words(joined: pa.Array) -> tuple[pa.Array, Longs]:
    """The keys in each row's KEYS, which blanks part, and the rows that they are of."""
    has_keys = np.flatnonzero(is_valid(joined))
    lists = pc.split_pattern(joined.drop_null(), " ")
    words, of = lists.flatten(), values_of(pc.list_parent_indices(lists))
    is_word = values_of(pc.binary_length(words)) > 0
    return words.filter(pa.array(is_word)), has_keys[of[is_word]]


class IndexWriter:
    """The files below ``root/index``; one thread writes. Raises OSError where the disk fails.

    The last file is continued with as many slots and units as it has; new ones get those given. `now` gives the
    milliseconds since 1970 that a new file is named by.
    """

    def __init__(
        self,
        root: Path,
        hash_slots: int = HASH_SLOTS,
        index_units: int = INDEX_UNITS,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._root = root
        self._slots, self._units = hash_slots, index_units
        self._now = now
        self._file: _IndexFile | None = None
        self._filled: list[_IndexFile] = []  # full files that a flush is due for
        # Up to which message keys are written, and how many keys of that one.
        self._done, self._done_keys = -1, 0

    def sort_out(self, is_wrong: Callable[[IndexHeader], bool]) -> tuple[IndexHeader | None, list[Path]]:
        """The header of the last file that can be continued, and what is to be deleted behind it.

        That is the first file for which `is_wrong` holds, or whose header, slots and units do not belong together, and
        all others behind it. Files without units are deleted here.
        """
        kept: list[tuple[Path, IndexHeader]] = []
        wrong: list[Path] = []
        for path in index_files(self._root):
            header = read_header(path)
            if header is not None and header.index_count <= 1:
                path.unlink()
            elif wrong or header is None or is_wrong(header) or not _has_units(path, header):
                wrong.append(path)
            else:
                kept.append((path, header))
        if kept and _slots_of(*kept[-1]) is None:
            wrong.insert(0, kept.pop()[0])
        return (kept[-1][1] if kept else None), wrong

    def resume(self) -> None:
        """Go on in the last file, behind its last message. To be called when `sort_out` has found it good."""
        files = index_files(self._root)
        if not files:
            return
        file = _IndexFile.opened(files[-1])
        self._done, self._done_keys = file.header.end_phy_offset, file.count_last()
        self._done_keys += _count_before(files[:-1], file)
        if file.room:
            self._file = file
        else:
            self._filled.append(file)

    def put(self, keys: Keys) -> None:
        """Add keys, in the order of the log, those of a message together; what is there already is passed over."""
        low, high = np.searchsorted(keys.offset, [self._done, self._done + 1]).tolist()
        keys = keys[min(low + self._done_keys, high) :]
        while len(keys):
            file = self._writable()
            part, keys = keys[: file.room], keys[file.room :]
            file.put(part)
            self._note_done(part)

    def _note_done(self, part: Keys) -> None:
        last = int(part.offset[-1])
        count = len(part) - int(np.searchsorted(part.offset, last))
        self._done_keys = count + (self._done_keys if last == self._done else 0)
        self._done = last

    def _writable(self) -> _IndexFile:
        if self._file is not None and self._file.room:
            return self._file
        if self._file is not None:
            self._filled.append(self._file)
        before = self._filled[-1].header if self._filled else None
        self._file = _IndexFile.created(self._new_path(), self._slots, self._units, before)
        return self._file

    def _new_path(self) -> Path:
        """A name behind all others: the local time in milliseconds."""
        folder = self._root / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        last = max((path.name for path in index_files(self._root)), default="")
        name = _file_name(self._now())
        # A clock goes back, as local ones do each autumn.
        return folder / (name if name > last else f"{int(last) + 1:0{len(last)}}")

    def flush(self) -> None:
        """Write slots and headers, and make everything durable."""
        for file in self._filled:
            file.flush()
        # The last full one tells the next file where it ended.
        for file in self._filled[:-1] if self._file is None else self._filled:
            file.close()
        self._filled = self._filled[-1:] if self._file is None else []
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        for file in (*self._filled, *([self._file] if self._file is not None else [])):
            file.close()
        self._file, self._filled = None, []

    def delete_before(self, min_offset: int) -> int:
        """Delete files of which every message lies before a position of the log, but the last; how many."""
        count = 0
        for path in index_files(self._root)[:-1]:
            header = read_header(path)
            if header is None or header.end_phy_offset >= min_offset:
                break
            path.unlink()
            count += 1
        return count


def _count_before(files: list[Path], last: _IndexFile) -> int:
    """How many keys of the last message stand before the last file: those that did not fit begin the next one."""
    count, offset, is_rest = 0, last.header.end_phy_offset, last.has_one_message
    for path in reversed(files):
        header = read_header(path)
        if not is_rest or header is None or header.end_phy_offset != offset:
            break
        before = _IndexFile.opened(path)
        count, is_rest = count + before.count_last(), before.has_one_message
        before.close()
    return count


def _file_name(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y%m%d%H%M%S", time.localtime(seconds)) + f"{rest:03}"


class _IndexFile:
    """One file, with its slots in memory: they are changed all over, and written by pages."""

    def __init__(self, path: Path, descriptor: int, slots: Ints, units: int, header: IndexHeader) -> None:
        self.header = header
        self._path = path
        self._descriptor = descriptor
        self._slots = slots
        self._units = units
        self._changed = np.zeros(-(-len(slots) // _PAGE), bool)
        self._is_dirty = True

    @classmethod
    def created(cls, path: Path, slots: int, units: int, before: IndexHeader | None) -> _IndexFile:
        """A new file, whose times and offsets begin where the one before ended."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        size = INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE + units * INDEX_FILE_UNIT_SIZE
        os.ftruncate(descriptor, size)
        header = IndexHeader(0, 0, 0, 0, 0, 1)
        if before is not None:
            time_, offset = before.end_timestamp, before.end_phy_offset
            header = IndexHeader(time_, time_, offset, offset, 0, 1)
        return cls(path, descriptor, np.zeros(slots, np.int32), units, header)

    @classmethod
    def opened(cls, path: Path) -> _IndexFile:
        """A file that is there, and was found good."""
        header = read_header(path)
        assert header is not None
        table = _slots_of(path, header)
        assert table is not None
        units = index_capacity(path, len(table))
        file = cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), table, units, header)
        file._is_dirty = False
        return file

    @property
    def room(self) -> int:
        """For how many units there is room."""
        return self._units - self.header.index_count

    @property
    def has_one_message(self) -> bool:
        """Whether all its units are of one message."""
        return self.header.begin_phy_offset == self.header.end_phy_offset

    def count_last(self) -> int:
        """How many units its last message has in it."""
        count = self.header.index_count
        start = max(1, count - _MOST_KEYS)
        at = self._unit_at(start)
        data = read_at(str(self._path), at, (count - start) * INDEX_FILE_UNIT_SIZE)
        units = np.frombuffer(data, _UNIT_DTYPE)
        others = np.flatnonzero(units["commitLogOffset"] != self.header.end_phy_offset)
        return len(units) - 1 - int(others[-1]) if len(others) else len(units)

    def put(self, keys: Keys) -> None:
        """Add at least one and at most `room` keys."""
        header, count = self.header, len(keys)
        numbers = np.arange(header.index_count, header.index_count + count, dtype=np.int64)
        slot = keys.key_hash % len(self._slots)
        previous, used = self._previous(slot, numbers)
        units: npt.NDArray[Any] = np.empty(count, _UNIT_DTYPE)
        units["keyHash"], units["commitLogOffset"], units["previous"] = keys.key_hash, keys.offset, previous
        units["seconds"] = self._seconds(keys.stored)
        self._write(self._unit_at(header.index_count), units.tobytes())
        # Only now: what could not be written comes again. Of several units of a slot the last one counts.
        self._slots[slot] = numbers
        self._changed[slot // _PAGE] = True
        is_first = header.index_count <= 1
        self.header = IndexHeader(
            int(keys.stored[0]) if is_first else header.begin_timestamp,
            int(keys.stored[-1]),
            int(keys.offset[0]) if is_first else header.begin_phy_offset,
            int(keys.offset[-1]),
            header.hash_slot_count + used,
            header.index_count + count,
        )
        self._is_dirty = True

    def _previous(self, slot: Longs, numbers: Longs) -> tuple[Longs, int]:
        """The unit before each in its slot, and how many slots were empty."""
        order = np.argsort(slot, kind="stable")
        ordered, in_order = slot[order], numbers[order]
        is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        before = np.where(is_first, self._slots[ordered], np.concatenate([[0], in_order[:-1]]))
        previous = np.empty(len(slot), np.int64)
        previous[order] = before
        return previous, int(np.count_nonzero(before[is_first] == 0))

    def _seconds(self, stored: Longs) -> Longs:
        """Whole seconds since the file's begin, which is the end of the one before until the first unit is written."""
        begin = self.header.begin_timestamp
        seconds = np.zeros(len(stored), np.int64)
        if self.header.index_count <= 1:
            seconds[1:] = _seconds_since(int(stored[0]), stored[1:])
            seconds[:1] = _seconds_since(begin, stored[:1])
            return seconds
        return _seconds_since(begin, stored)

    def _unit_at(self, number: int) -> int:
        return INDEX_FILE_HEADER_SIZE + len(self._slots) * INDEX_FILE_SLOT_SIZE + number * INDEX_FILE_UNIT_SIZE

    def flush(self) -> None:
        """Write the slots and, behind them, the header; make everything durable."""
        if not self._is_dirty:
            return
        for start, stop in _runs(self._changed):
            part = self._slots[start * _PAGE : stop * _PAGE].astype(">i4")
            self._write(INDEX_FILE_HEADER_SIZE + start * _PAGE * INDEX_FILE_SLOT_SIZE, part.tobytes())
        self._changed[:] = False
        header = self.header
        self._write(0, _HEADER.pack(*(getattr(header, name) for name in IndexHeader.__dataclass_fields__)))
        os.fsync(self._descriptor)
        self._is_dirty = False

    def _write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            wrote = os.pwrite(self._descriptor, view, offset)
            view, offset = view[wrote:], offset + wrote

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def index_capacity(path: Path, slots: int) -> int:
    """How many units a file has room for, the one with number 0 among them."""
    size = path.stat().st_size
    return (size - INDEX_FILE_HEADER_SIZE - slots * INDEX_FILE_SLOT_SIZE) // INDEX_FILE_UNIT_SIZE


def _read_units(path: Path, slots: int, start: int, stop: int) -> npt.NDArray[Any]:
    at = INDEX_FILE_HEADER_SIZE + slots * INDEX_FILE_SLOT_SIZE + start * INDEX_FILE_UNIT_SIZE
    return decode_records(read_at(str(path), at, (stop - start) * INDEX_FILE_UNIT_SIZE), INDEX_FILE_UNIT)


def _has_units(path: Path, header: IndexHeader) -> bool:
    """Whether the first and the last unit are those that the header tells of."""
    slots, last = hash_slots(path), header.index_count - 1
    if slots is None or last >= index_capacity(path, slots):
        return False
    ends = [_read_units(path, slots, number, number + 1)["commitLogOffset"].tolist() for number in (1, last)]
    return ends == [[header.begin_phy_offset], [header.end_phy_offset]]


def _slots_of(path: Path, header: IndexHeader) -> Ints | None:
    """The slots of a file as they were when its header was written; None where that cannot be told any more.

    They are written before the header. A slot that has a newer unit leads back over those to an older one.
    """
    slots = hash_slots(path)
    data = read_at(str(path), INDEX_FILE_HEADER_SIZE, (slots or 0) * INDEX_FILE_SLOT_SIZE)
    if slots is None or len(data) < slots * INDEX_FILE_SLOT_SIZE:
        return None
    table = np.frombuffer(data, ">i4").astype(np.int32)
    newer = np.flatnonzero(table >= header.index_count)
    if len(newer):
        units = _read_units(path, slots, 0, min(int(table.max()) + 1, index_capacity(path, slots)))
        while len(newer):
            numbers = table[newer]
            if numbers.max() >= len(units):
                return None
            before = units["previous"][numbers]
            is_of_slot = units["keyHash"][numbers] % slots == newer
            if not (is_of_slot & (before < numbers) & (units["commitLogOffset"][numbers] > 0)).all():
                return None
            table[newer] = before
            newer = newer[table[newer] >= header.index_count]
    return None if (table < 0).any() else table


def _seconds_since(begin: int, stored: Longs) -> Longs:
    return np.clip((stored - begin) // 1000, 0, _HIGHEST) if begin > 0 else np.zeros(len(stored), np.int64)


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The ``[start, stop)`` of consecutive flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
