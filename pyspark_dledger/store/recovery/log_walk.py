"""Walking over the end of a log: where it begins, which entries follow each other, and what the index knows of them.

The end is looked for in the last three data files (``DLedgerMmapFileStore.recover``). Nothing is written here.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import EntryHeader, IndexUnit, decode_entry_header, decode_index_unit, record_dtype
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NOOP,
    MAGIC_NORMAL,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.format.spec import DLEDGER, Before, Segment
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import LocalFile, data_extents, last_data
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList

FILES_SCANNED = 3
# Index units of so many bytes of entries are held in memory at once.
_STEP = 64 * 1024 * 1024
_SEARCHED = 8 * 1024 * 1024
_UNITS_AT_ONCE = 256 * 1024
_UNIT = record_dtype(INDEX_UNIT)
BLANK = struct.pack(">i", MAGIC_BLANK)


class NextEntry(NamedTuple):
    """Where the next entry stands or would stand, its index, and the least term that it may have."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    term: int


class FileEntries(NamedTuple):
    """Consecutive entries of one file, from `first` up to position `end`."""

    file: MappedFile
    first: NextEntry
    end: int


class LogWalk:
    """What is found on the way to a log's end: whether entries go on behind it, and what the index does not know."""

    def __init__(self, data: MappedFileList, index: MappedFileList, engine: Engine, checkpoint: Checkpoint) -> None:
        self._data = data
        self._index = index
        self._engine = engine
        self._checkpoint = checkpoint
        self._goes_on = False  # whether entries that continue the log stand behind its end
        self._has_damaged_begin = False
        self._is_early = False  # whether the damage lies before the last files
        self._has_index = True
        self._unindexed: list[FileEntries] = []
        self._last_indexed = -1

    @property
    def _committed(self) -> int:
        return -1 if self._checkpoint.committed_index is None else self._checkpoint.committed_index

    @property
    def _durable(self) -> int:
        """Up to which index everything was durable at the last checkpoint."""
        return -1 if self._checkpoint.end_index is None else self._checkpoint.end_index

    def _find_end(self, begin: NextEntry) -> NextEntry:
        """The place behind the last entry of a log that begins so."""
        files, unit = self._index.files, begin.index * INDEX_UNIT_SIZE
        self._has_index = bool(files) and files[0].base <= unit < files[-1].end
        number, place = self._first_scanned(begin)
        return self._torn_cut(self._walk(number, place))

    def _begin(self) -> NextEntry | None:
        """The first entry. A log that was reset may begin inside of its first file; then the index says where."""
        files = self._data.files
        if not files:
            return None
        first = files[0]
        header = self._header(first, first.base)
        if header is not None:
            return self._checked_begin(first, header)
        unit = self._first_unit()
        if unit is not None and first.base < unit.pos < first.end:
            header = self._header(first, unit.pos)
            if header is not None and header.index == unit.index and not _has_data(first, unit.pos):
                return NextEntry(header.index, header.pos, header.term)
        if len(files) > 1 or self._engine.log_end(segment_of(first, None), first.base, True).entries:
            self._has_damaged_begin = True
            return NextEntry(unit.index if unit is not None else 0, first.base, -1)
        return None

    def _checked_begin(self, file: MappedFile, header: EntryHeader) -> NextEntry:
        """Nothing comes before the first entry; the one behind it tells whether its index can be right."""
        following = self._header(file, header.pos + header.size)
        index = header.index
        if following is not None and following.index != index + 1 and following.term >= header.term:
            self._has_damaged_begin = True
            index = following.index - 1
        return NextEntry(index, header.pos, header.term)

    def _first_unit(self) -> IndexUnit | None:
        """The first unit that was written to the index."""
        files = self._index.files
        if not files:
            return None
        descriptor = os.open(files[0].path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for low, high in data_extents(descriptor, 0, files[0].size):
                data = os.pread(descriptor, min(high - low, _SEARCHED), low)
                written = len(data) - len(data.lstrip(b"\0"))
                if written < len(data):
                    return self._unit((files[0].base + low + written) // INDEX_UNIT_SIZE)
        finally:
            os.close(descriptor)
        return None

    def _first_scanned(self, begin: NextEntry) -> tuple[int, NextEntry]:
        """From which file on the log is walked over, and its first entry.

        That is the third to last, or the first of all earlier ones with entries that the index does not know, or behind
        which the next one does not go on, as the index has it.
        """
        files = self._data.files
        firsts = [begin]
        wanted = max(len(files) - FILES_SCANNED, 0)
        if not self._agrees(files[0], begin):
            return 0, begin
        for number in range(1, wanted + 1):
            header = self._header(files[number], files[number].base)
            if header is None or not self._is_linked(files[number - 1], firsts[-1], header):
                self._is_early = header is None or header.index <= firsts[-1].index or header.term < firsts[-1].term
                return number - 1, firsts[-1]
            if not self._has_units(firsts[-1], header):
                return number - 1, firsts[-1]
            firsts.append(NextEntry(header.index, header.pos, header.term))
        return wanted, firsts[wanted]

    def _agrees(self, file: MappedFile, place: NextEntry) -> bool:
        """Whether the index knows the entry at a place."""
        header, unit = self._header(file, place.pos), self._unit(place.index)
        return header is not None and unit is not None and unit == unit_of(header)

    def _is_linked(self, before: MappedFile, first: NextEntry, header: EntryHeader) -> bool:
        """Whether the file that begins with `header` follows a file, as the index has it, with a blank between."""
        last, unit = self._unit(header.index - 1), self._unit(header.index)
        if unit != unit_of(header) or last is None or not first.pos <= last.pos < before.end:
            return False
        there = self._header(before, last.pos)
        if there is None or unit_of(there) != last or not first.term <= last.term <= header.term:
            return False
        return self._read(before, last.pos + last.size)[:4] == BLANK

    def _has_units(self, first: NextEntry, following: EntryHeader) -> bool:
        """Whether the index has units, one behind the other, for all entries of a file, up to that of the next file.

        Those that were durable at the last checkpoint are not looked at: a loss of power takes others only.
        """
        for start in range(max(first.index, self._durable + 1), following.index, _UNITS_AT_ONCE):
            count = min(_UNITS_AT_ONCE, following.index - start)
            units = np.frombuffer(self._units(start, count), _UNIT)
            ends = units["pos"] + units["size"]
            if (units["index"] != np.arange(start, start + count)).any() or (units["pos"][1:] != ends[:-1]).any():
                return False
        return True

    def _walk(self, number: int, place: NextEntry) -> NextEntry:
        """The place behind the last of the entries that follow each other without a fault."""
        files = self._data.files
        while True:
            file = files[number]
            place = self._walk_file(file, place)
            is_closed = self._read(file, place.pos)[:4] == BLANK
            if not is_closed or number + 1 == len(files):
                break
            following = self._header(files[number + 1], files[number + 1].base)
            if following is None or following.index != place.index or following.term < place.term:
                break
            number += 1
            place = NextEntry(place.index, files[number].base, place.term)
        for later in files[number + 1 :]:
            header = self._header(later, later.base)
            if header is not None and header.index >= place.index and header.term >= place.term:
                self._goes_on = True
        self._is_early = self._is_early or (self._goes_on and number < len(files) - FILES_SCANNED)
        return place

    def _walk_file(self, file: MappedFile, place: NextEntry) -> NextEntry:
        """The place behind the entries of one file that follow each other; which the index does not know is noted."""
        before = Before(place.index - 1, place.term, place.pos)
        segment = segment_of(file, before)
        end = self._engine.log_end(segment, place.pos, False)
        if end.entries == 0:
            return place
        bounds = [place.pos, *self._engine.split(segment, place.pos, end.pos, _STEP), end.pos]
        for _, stop in pairwise(bounds):
            place, is_whole = self._walk_step(file, place, stop)
            if not is_whole:
                self._goes_on = self._goes_on or (end.last_index >= place.index and end.last_term >= place.term)
                break
        return place

    def _walk_step(self, file: MappedFile, place: NextEntry, stop: int) -> tuple[NextEntry, bool]:
        """The place behind the entries up to `stop`, and whether they reach it."""
        view = self._data.view(file)
        try:
            checked = self._engine.check_entries(
                view[place.pos - file.base : stop - file.base], place.index, place.pos, place.term, INT64_MAX
            )
            self._compare(FileEntries(file, place, stop), checked.units)
            return NextEntry(place.index + checked.count, stop, checked.last_term), True
        except ValueError:
            end = self._follow(file, place)
        if end.pos > place.pos:
            self._walk_step(file, place, end.pos)
        return end, False

    def _follow(self, file: MappedFile, place: NextEntry) -> NextEntry:
        """The place behind the entries that follow each other, one by one: only where damage ends them."""
        while True:
            header = self._header(file, place.pos)
            if header is None or header.index != place.index or header.term < place.term:
                return place
            place = NextEntry(place.index + 1, place.pos + header.size, header.term)

    def _compare(self, stretch: FileEntries, units: bytearray) -> None:
        """Remember a stretch that the index does not know as it is, and the last entry that it does know."""
        first, count = stretch.first.index, len(units) // INDEX_UNIT_SIZE
        there = self._units(first, count)
        if there == units:
            self._last_indexed = first + count - 1
            return
        self._unindexed.append(stretch)
        words = INDEX_UNIT_SIZE // 8
        same = np.frombuffer(there, np.uint64).reshape(-1, words) == np.frombuffer(units, np.uint64).reshape(-1, words)
        known = np.flatnonzero(same.all(axis=1))
        if len(known):
            self._last_indexed = first + int(known[-1])

    def _torn_cut(self, end: NextEntry) -> NextEntry:
        """The place of the first entry whose body may not have been written; the end if there is none.

        Index units are written behind their entries, so only what the index does not know can be torn. What is
        committed, or was durable at the last checkpoint, cannot be.
        """
        first = max(self._last_indexed, self._committed, self._durable) + 1
        for stretch in self._unindexed:
            file, view = stretch.file, self._data.view(stretch.file)
            start = self._engine.seek(segment_of(file, None), stretch.first.pos, stretch.end, min(first, INT64_MAX))
            torn = self._engine.find_torn(view[start - file.base : stretch.end - file.base], start - file.base)
            if torn is not None:
                header = decode_entry_header(bytes(view[start + torn - file.base :][:ENTRY_HEADER_SIZE]))
                return NextEntry(header.index, header.pos, header.term)
        return end

    def _units_of(self, stretch: FileEntries) -> bytearray:
        base, first = stretch.file.base, stretch.first
        part = self._data.view(stretch.file)[first.pos - base : stretch.end - base]
        return self._engine.check_entries(part, first.index, first.pos, first.term, INT64_MAX).units

    # Reading.

    def _header(self, file: MappedFile, pos: int) -> EntryHeader | None:
        """The header of the entry that stands at a position, if it is one of ours."""
        data = self._read(file, pos)
        if len(data) < ENTRY_HEADER_SIZE:
            return None
        header = decode_entry_header(data)
        if header.magic == MAGIC_NOOP and header.size == ENTRY_HEADER_SIZE and header.body_size == 0:
            raise StoreError(
                f"{file.path} at byte {pos - file.base}: expected magic {MAGIC_NORMAL}, found an entry without a "
                f"body and magic {MAGIC_NOOP}, which only DLedger 0.4.0 writes: its stores can be read, not be written"
            )
        fits = header.body_size >= 0 and header.size == ENTRY_HEADER_SIZE + header.body_size <= MAX_ENTRY_SIZE
        if header.magic != MAGIC_NORMAL or not fits or header.pos != pos or header.index < 0 or header.term < -1:
            return None
        return header if pos + header.size + MIN_BLANK_SIZE <= file.end else None

    def _read(self, file: MappedFile, pos: int) -> bytes:
        """What stands where a header should; of many files only the first bytes are read, without mapping them."""
        start, size = pos - file.base, min(ENTRY_HEADER_SIZE, file.end - pos)
        return bytes(file.view[start : start + size]) if file.view is not None else read_at(str(file.path), start, size)

    def _unit(self, index: int) -> IndexUnit | None:
        units = self._units(index, 1) if index >= 0 else b""
        return decode_index_unit(units) if units.strip(b"\0") else None

    def _units(self, index: int, count: int) -> bytes:
        """Units as the index has them; zeros where it has none."""
        if not self._has_index:
            return bytes(count * INDEX_UNIT_SIZE)
        pos, end = index * INDEX_UNIT_SIZE, (index + count) * INDEX_UNIT_SIZE
        parts = []
        while pos < end:
            file = self._index.find(pos)
            if file is None:
                parts.append(bytes(end - pos))
                break
            stop = min(end, file.end)
            parts.append(bytes(self._index.view(file)[pos - file.base : stop - file.base]))
            pos = stop
        return b"".join(parts)


def _has_data(file: MappedFile, end: int) -> bool:
    """Whether anything but zeros stands in a file before a position."""
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return last_data(LocalFile(descriptor), 0, end - file.base) > 0
    finally:
        os.close(descriptor)


def segment_of(file: MappedFile, before: Before | None) -> Segment:
    return Segment(str(file.path), file.path.name, file.base, file.size, DLEDGER, before=before)


def unit_of(header: EntryHeader) -> IndexUnit:
    return IndexUnit(header.magic, header.pos, header.size, header.index, header.term)


def text_of(data: bytes) -> str:
    """What stands where an entry should, in a few words."""
    if not data.strip(b"\0"):
        return "zeros"
    if data[:4] == BLANK:
        return "a blank, and no file behind it that goes on"
    if len(data) < ENTRY_HEADER_SIZE:
        return "the end of the file"
    header = decode_entry_header(data)
    names = ("magic", "size", "index", "term", "pos", "body_size")
    return " ".join(f"{name.replace('_s', 'S')}={getattr(header, name)}" for name in names)
