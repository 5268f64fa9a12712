"""Where a log ends after whatever ended its writer, and what has to be repaired before it goes on.

The end is looked for in the last three data files (``DLedgerMmapFileStore.recover``). Unlike Java's, this recovery cuts
only a torn or invalid tail above what is known to be committed, and refuses where anything else is wrong. Nothing is
written before that is decided.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import EntryHeader, IndexUnit, decode_entry_header, decode_index_unit
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NOOP,
    MAGIC_NORMAL,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.format.spec import DLEDGER, INT64_MAX, Before, Segment
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.consume_queue import data_extents
from pyspark_dledger.log.entries import read_at
from pyspark_dledger.store.files import FileList, LogFile, sync_dir

FILES_SCANNED = 3
# Index units of so many bytes of entries are held in memory at once.
_STEP = 64 * 1024 * 1024
_COPIED = 8 * 1024 * 1024
_BLANK = struct.pack(">i", MAGIC_BLANK)


class Place(NamedTuple):
    """Where the next entry stands or would stand, its index, and the least term that it may have."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    term: int


class Stretch(NamedTuple):
    """Consecutive entries of one file, from `first` up to position `end`."""

    file: LogFile
    first: Place
    end: int


@dataclass(frozen=True)
class Recovered:
    """A log after recovery; ``begin_index`` and ``end_term`` are -1 without entries, ``cut`` names what was cut."""

    begin_index: int
    next_index: int
    end_term: int
    end_pos: int
    committed_index: int
    cut: str | None = None


class Recovery:
    """One recovery: `run` looks, then refuses or repairs, and says where the log stands.

    `useless` are index files that are to be deleted. Raises StoreError where the store is damaged at or below what is
    committed, or beyond what a torn tail can be.
    """

    def __init__(
        self,
        node_dir: Path,
        data: FileList,
        index: FileList,
        engine: Engine,
        checkpoint: Checkpoint,
        truncate_at: int | None,
        useless: list[Path],
    ) -> None:
        self._node_dir = node_dir
        self._data = data
        self._index = index
        self._engine = engine
        self._checkpoint = checkpoint
        self._truncate_at = truncate_at
        self._useless = useless
        self._goes_on = False  # whether entries that continue the log stand behind its end
        self._has_damaged_begin = False
        self._is_early = False  # whether the damage lies before the last files
        self._has_index = True
        self._unindexed: list[Stretch] = []
        self._last_indexed = -1

    @property
    def _committed(self) -> int:
        return -1 if self._checkpoint.committed_index is None else self._checkpoint.committed_index

    def run(self) -> Recovered:
        begin = self._begin()
        if begin is None:
            return self._without_entries()
        if self._has_damaged_begin:
            return self._give_up_all(begin)
        files, unit = self._index.files, begin.index * INDEX_UNIT_SIZE
        self._has_index = bool(files) and files[0].base <= unit < files[-1].end
        number, place = self._first_scanned(begin)
        end = self._torn_cut(self._walk(number, place))
        if self._truncate_at is not None:
            end = self._asked_cut(self._truncate_at, begin, end)
        else:
            self._check_end(begin, end)
        return self._repair(begin, end)

    # Looking.

    def _without_entries(self) -> Recovered:
        """A store in which nothing was ever written, or whose files are gone."""
        if self._committed >= 0 and self._truncate_at != 0:
            raise StoreError(
                f"{self._node_dir}: expected entries up to index {self._committed}, which is committed, found none: "
                "copy the folder from another member of the group, or accept the loss with --truncate-at 0"
            )
        return self._empty(0, None)

    def _give_up_all(self, begin: Place) -> Recovered:
        """The log begins with damage. Raises StoreError unless the operator gives all of it up."""
        file = self._data.files[0]
        if self._truncate_at != begin.index:
            self._refuse(file, begin.pos, begin.index, f"{_found(self._read(file, begin.pos))}, and entries behind it")
        return self._empty(begin.index, self._keep_cut(begin.pos))

    def _empty(self, next_index: int, cut: str | None) -> Recovered:
        files = self._data.files
        pos = files[0].base if files else 0
        if files:
            self._data.cut(pos)
        self._has_index = False
        self._drop_index()
        self._data.sync()
        return Recovered(-1, next_index, -1, pos, -1, cut)

    def _begin(self) -> Place | None:
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
            if header is not None and header.index == unit.index and not self._has_data(first.base, unit.pos):
                return Place(header.index, header.pos, header.term)
        if len(files) > 1 or self._engine.log_end(_segment(first, None), first.base, True).entries:
            self._has_damaged_begin = True
            return Place(unit.index if unit is not None else 0, first.base, -1)
        return None

    def _checked_begin(self, file: LogFile, header: EntryHeader) -> Place:
        """Nothing comes before the first entry; the one behind it tells whether its index can be right."""
        following = self._header(file, header.pos + header.size)
        index = header.index
        if following is not None and following.index != index + 1 and following.term >= header.term:
            self._has_damaged_begin = True
            index = following.index - 1
        return Place(index, header.pos, header.term)

    def _first_unit(self) -> IndexUnit | None:
        """The first unit that was written to the index."""
        files = self._index.files
        if not files:
            return None
        descriptor = os.open(files[0].path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for low, high in data_extents(descriptor, 0, files[0].size):
                data = os.pread(descriptor, min(high - low, _COPIED), low)
                written = len(data) - len(data.lstrip(b"\0"))
                if written < len(data):
                    return self._unit((files[0].base + low + written) // INDEX_UNIT_SIZE)
        finally:
            os.close(descriptor)
        return None

    def _has_data(self, start: int, end: int) -> bool:
        file = self._data.find(start)
        return file is not None and bool(bytes(self._data.view(file)[start - file.base : end - file.base]).strip(b"\0"))

    def _first_scanned(self, begin: Place) -> tuple[int, Place]:
        """From which file on the log is walked over, and its first entry.

        That is the third to last, or the one before the first of all earlier ones that does not begin where the one
        before it ends, as the index has it.
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
            firsts.append(Place(header.index, header.pos, header.term))
        return wanted, firsts[wanted]

    def _agrees(self, file: LogFile, place: Place) -> bool:
        """Whether the index knows the entry at a place."""
        header, unit = self._header(file, place.pos), self._unit(place.index)
        return header is not None and unit is not None and unit == _unit_of(header)

    def _is_linked(self, before: LogFile, first: Place, header: EntryHeader) -> bool:
        """Whether the file that begins with `header` follows a file, as the index has it, with a blank between."""
        last, unit = self._unit(header.index - 1), self._unit(header.index)
        if unit != _unit_of(header) or last is None or not first.pos <= last.pos < before.end:
            return False
        there = self._header(before, last.pos)
        if there is None or _unit_of(there) != last or not first.term <= last.term <= header.term:
            return False
        return self._read(before, last.pos + last.size)[:4] == _BLANK

    def _walk(self, number: int, place: Place) -> Place:
        """The place behind the last of the entries that follow each other without a fault."""
        files = self._data.files
        while True:
            file = files[number]
            place = self._walk_file(file, place)
            is_closed = self._read(file, place.pos)[:4] == _BLANK
            if not is_closed or number + 1 == len(files):
                break
            following = self._header(files[number + 1], files[number + 1].base)
            if following is None or following.index != place.index or following.term < place.term:
                break
            number += 1
            place = Place(place.index, files[number].base, place.term)
        for later in files[number + 1 :]:
            header = self._header(later, later.base)
            if header is not None and header.index >= place.index and header.term >= place.term:
                self._goes_on = True
        return place

    def _walk_file(self, file: LogFile, place: Place) -> Place:
        """The place behind the entries of one file that follow each other; which the index does not know is noted."""
        before = Before(place.index - 1, place.term, place.pos)
        segment = _segment(file, before)
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

    def _walk_step(self, file: LogFile, place: Place, stop: int) -> tuple[Place, bool]:
        """The place behind the entries up to `stop`, and whether they reach it."""
        view = self._data.view(file)
        try:
            checked = self._engine.check_entries(
                view[place.pos - file.base : stop - file.base], place.index, place.pos, place.term, INT64_MAX
            )
            self._compare(Stretch(file, place, stop), checked.units)
            return Place(place.index + checked.count, stop, checked.last_term), True
        except ValueError:
            end = self._follow(file, place)
        if end.pos > place.pos:
            self._walk_step(file, place, end.pos)
        return end, False

    def _follow(self, file: LogFile, place: Place) -> Place:
        """The place behind the entries that follow each other, one by one: only where damage ends them."""
        while True:
            header = self._header(file, place.pos)
            if header is None or header.index != place.index or header.term < place.term:
                return place
            place = Place(place.index + 1, place.pos + header.size, header.term)

    def _compare(self, stretch: Stretch, units: bytearray) -> None:
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

    def _torn_cut(self, end: Place) -> Place:
        """The place of the first entry whose body may not have been written; the end if there is none.

        Index units are written behind their entries, so only what the index does not know can be torn. What is
        committed, or was durable at the last checkpoint, cannot be.
        """
        first = max(self._last_indexed, self._committed, self._checkpoint.end_index or -1) + 1
        for stretch in self._unindexed:
            view = self._data.view(stretch.file)
            for start in self._positions(stretch, first):
                base = stretch.file.base
                torn = self._engine.find_torn(view[start - base : stretch.end - base], start)
                if torn is not None:
                    header = decode_entry_header(bytes(view[start + torn - base : start + torn - base + 48]))
                    return Place(header.index, header.pos, header.term)
        return end

    def _positions(self, stretch: Stretch, index: int) -> list[int]:
        """Where in a stretch the entry of that index stands, or the first behind it; empty if all come before it."""
        units = self._units_of(stretch)
        number = max(index - stretch.first.index, 0)
        if number * INDEX_UNIT_SIZE >= len(units):
            return []
        return [decode_index_unit(bytes(units[number * INDEX_UNIT_SIZE :][:INDEX_UNIT_SIZE])).pos]

    def _units_of(self, stretch: Stretch) -> bytearray:
        base, first = stretch.file.base, stretch.first
        part = self._data.view(stretch.file)[first.pos - base : stretch.end - base]
        return self._engine.check_entries(part, first.index, first.pos, first.term, INT64_MAX).units

    # Deciding.

    def _check_end(self, begin: Place, end: Place) -> None:
        """Raises StoreError where more than a torn tail would be lost."""
        is_unknown = self._goes_on and self._checkpoint.committed_index is None
        if end.index <= self._committed or self._is_early or is_unknown or (self._goes_on and end.pos == begin.pos):
            file, pos = self._stop(end)
            self._refuse(file, pos, end.index, _found(self._read(file, pos)))

    def _stop(self, end: Place) -> tuple[LogFile, int]:
        """The file and the position where an entry is missing."""
        file = self._data.find(end.pos)
        assert file is not None
        following = self._data.find(file.end)
        if following is not None and self._read(file, end.pos)[:4] == _BLANK:
            return following, following.base
        return file, end.pos

    def _refuse(self, file: LogFile, pos: int, index: int, found: str) -> NoReturn:
        known = f"{self._committed} is committed"
        if self._checkpoint.committed_index is None:
            known = f"what is committed is not known ({self._checkpoint.problem})"
        raise StoreError(
            f"{file.path} at byte {pos - file.base}: expected the entry of index {index}, found {found}; {known}: "
            f"copy the folder {self._node_dir.name} from another member of the group, or give up index {index} and all "
            f"behind it with --truncate-at {index}"
        )

    def _asked_cut(self, index: int, begin: Place, end: Place) -> Place:
        """The place of the entry that the operator gives up. Raises StoreError unless the store needs that."""
        if end.index > self._committed and not self._goes_on and not self._is_early:
            raise StoreError(
                f"{self._node_dir}: expected damage for --truncate-at {index} to repair, found none up to the end at "
                f"{end.index - 1}: start without it"
            )
        if not begin.index <= index <= end.index:
            raise StoreError(
                f"{self._node_dir}: expected an index from {begin.index} to {end.index} for --truncate-at, found "
                f"{index}: the damage stands at {end.index}"
            )
        self._goes_on = True  # what is cut is kept
        return self._place_of(index) if index < end.index else end

    def _place_of(self, index: int) -> Place:
        for file in reversed(self._data.files):
            header = self._header(file, file.base)
            if header is not None and header.index <= index:
                pos = self._engine.seek(_segment(file, None), file.base, file.end, index)
                found = self._header(file, pos)
                if found is not None and found.index == index:
                    return Place(index, pos, found.term)
        raise StoreError(f"{self._node_dir}: expected the entry of index {index}, found none: check --truncate-at")

    # Repairing.

    def _repair(self, begin: Place, end: Place) -> Recovered:
        cut = self._keep_cut(end.pos) if self._goes_on else None
        self._data.cut(end.pos)
        self._write_index(begin, end)
        self._data.sync()
        self._index.sync()
        if end.index == begin.index:
            return Recovered(-1, end.index, -1, end.pos, -1, cut)
        last = self._unit(end.index - 1)
        assert last is not None, "every unit up to the end was compared or written"
        committed = min(self._committed, end.index - 1)
        return Recovered(begin.index, end.index, last.term, end.pos, committed if committed >= begin.index else -1, cut)

    def _write_index(self, begin: Place, end: Place) -> None:
        """Make the index say what the data says, and nothing beyond."""
        self._drop_index()
        self._index.drop_before(begin.index * INDEX_UNIT_SIZE)
        for stretch in self._unindexed:
            if stretch.first.pos < end.pos:
                units = self._units_of(stretch._replace(end=min(stretch.end, end.pos)))
                self._index.write(stretch.first.index * INDEX_UNIT_SIZE, units)
        if self._index.files:
            self._index.cut(end.index * INDEX_UNIT_SIZE)

    def _drop_index(self) -> None:
        """Delete index files that cannot be used: all of them where they do not hold the first entry's unit."""
        for path in self._useless:
            path.unlink()
        if not self._has_index:
            self._index.delete(self._index.release())
            self._has_index = True

    def _keep_cut(self, pos: int) -> str:
        """Copy what stands from a position on into a side file, durably, holes as holes; its path."""
        number = 0
        while (path := self._node_dir / f"cut-{pos}-{number}.bin").exists():
            number += 1
        with path.open("wb") as side:
            for file in self._data.files:
                if file.end > pos:
                    _copy(file, max(pos, file.base), side.fileno(), pos)
            os.fsync(side.fileno())
        sync_dir(self._node_dir)
        return str(path)

    # Reading.

    def _header(self, file: LogFile, pos: int) -> EntryHeader | None:
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

    def _read(self, file: LogFile, pos: int) -> bytes:
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


def _segment(file: LogFile, before: Before | None) -> Segment:
    return Segment(str(file.path), file.path.name, file.base, file.size, DLEDGER, before=before)


def _unit_of(header: EntryHeader) -> IndexUnit:
    return IndexUnit(header.magic, header.pos, header.size, header.index, header.term)


def _found(data: bytes) -> str:
    """What stands where an entry should, in a few words."""
    if not data.strip(b"\0"):
        return "zeros"
    if data[:4] == _BLANK:
        return "a blank, and no file behind it that goes on"
    if len(data) < ENTRY_HEADER_SIZE:
        return "the end of the file"
    header = decode_entry_header(data)
    names = ("magic", "size", "index", "term", "pos", "body_size")
    return " ".join(f"{name.replace('_s', 'S')}={getattr(header, name)}" for name in names)


def _copy(file: LogFile, start: int, target: int, origin: int) -> None:
    """Copy a file's data from a position on to where it stands behind `origin`."""
    source = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for low, high in data_extents(source, start - file.base, file.size):
            for offset in range(low, high, _COPIED):
                data = os.pread(source, min(_COPIED, high - offset), offset)
                os.pwrite(target, data, file.base + offset - origin)
    finally:
        os.close(source)
