"""Reads entries by index from mapped files (``DLedgerMmapFileStore.get``)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pyspark_dledger.common.durable import open_own, write_at
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import IndexRangeError, StoreError, UnreadableError
from pyspark_dledger.format.codec import (
    EntryHeader,
    IndexUnit,
    control_kind_at,
    decode_entry_header,
    decode_index_unit,
    encode_index_unit,
    record_struct,
)
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    BODY_CRC_OFFSET,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NORMAL,
)
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.store.dledger_store import Entry, EntryRange, OtherEntryError, ReadCheck
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList
from pyspark_dledger.store.files.pending_units import PendingUnits
from pyspark_dledger.store.scrub import entry_problem, unit_in

_HEADER = record_struct(ENTRY_HEADER)
_BODY_CRC = slice(BODY_CRC_OFFSET, BODY_CRC_OFFSET + 4)
_UNIT = record_struct(INDEX_UNIT)

# Entries within this many bytes of the log's end are read when a leader pushes what it just appended. They are in the
# system's page cache.
_RECENT_BYTES = 64 << 20
_MARK_BYTES = 4 << 20
# Bytes that are read at a time, and those of index units.
_LOADED_BYTES = 256 << 10
_LOADED_UNITS = 512 * INDEX_UNIT_SIZE


class IndexedEntry(NamedTuple):
    """The position, size and term of an entry, from its index unit."""

    pos: int
    size: int
    term: int

    @property
    def end(self) -> int:
        return self.pos + self.size


class RecentEntries:
    """The last entries that this process wrote: about `_RECENT_BYTES`. The log ends before an index, at a position.

    ``first_index`` is the first of them. This process wrote all entries from index ``own_from`` on.
    """

    def __init__(self, next_index: int, end_pos: int) -> None:
        self.first_index = self.own_from = next_index
        # An entry every few MiB: index and position.
        self._marks = deque([(next_index, end_pos)])
        self._next_mark = end_pos + _MARK_BYTES

    def appended(self, next_index: int, end_pos: int) -> None:
        """The log ends there."""
        if end_pos < self._next_mark:
            return
        marks = self._marks
        marks.append((next_index, end_pos))
        self._next_mark = end_pos + _MARK_BYTES
        while marks[0][1] < end_pos - _RECENT_BYTES:
            marks.popleft()
        self.first_index = marks[0][0]

    def truncated(self, next_index: int, end_pos: int) -> None:
        """The log ends there, and later entries are gone."""
        marks = self._marks
        while marks and marks[-1][0] > next_index:
            marks.pop()
        if not marks:
            marks.append((next_index, end_pos))
        self.first_index, self._next_mark = marks[0][0], end_pos + _MARK_BYTES


class EntryReader:
    """Reads entries of data files through index files and pending units. The caller has checked the index.

    Raises IndexRangeError if the entry's file expired in the meantime, StoreError if index and data differ.
    """

    def __init__(self, engine: Engine, data: MappedFileList, index: MappedFileList, pending: PendingUnits) -> None:
        self._engine = engine
        self._data = data
        self._index = index
        self._pending = pending

    def locate(self, index: int) -> IndexedEntry:
        unit = self._pending.find(index)
        if unit is not None:
            return IndexedEntry(unit[1], unit[2], unit[4])
        offset = index * INDEX_UNIT_SIZE
        file = _existing(self._index.find(offset), index)
        end = offset + INDEX_UNIT_SIZE
        magic, pos, size, found, term = _UNIT.unpack(self._index.peek(file, offset, end))
        if found != index or magic != MAGIC_NORMAL:
            magic, pos, size, found, term = _UNIT.unpack(self._index.read(file, offset, end))
        if found != index or magic != MAGIC_NORMAL:
            raise StoreError(
                f"{file.path} at byte {offset - file.base}: expected the unit of index {index}, found "
                f"{f'that of {found}' if magic == MAGIC_NORMAL else 'other bytes'}: "
                "stop the node and delete the files in index/, which are rebuilt from the data"
            )
        return IndexedEntry(pos, size, term)

    def find(self, index: int) -> IndexedEntry:
        """As `locate`, and raises StoreError unless the entry's header agrees with the index unit."""
        located = self.locate(index)
        file = _existing(self._data.find(located.pos), index)
        header = self._data.read(file, located.pos, min(located.pos + ENTRY_HEADER_SIZE, file.end))
        _check_header(index, located, file, header)
        return located

    def load(self, first: int, last: int, max_bytes: int, end_pos: int) -> int:
        """Read what `read` needs from disk into the page cache. Returns the last index that can end within `max_bytes`.

        A page fault in a mapping stops all threads of this process, because it keeps the interpreter's lock.
        """
        limit, number = -1, first
        while number <= last and self._pending.find(number) is None:
            offset = number * INDEX_UNIT_SIZE
            file = _existing(self._index.find(offset), number)
            stop = min(offset + _LOADED_UNITS, file.end, (last + 1) * INDEX_UNIT_SIZE)
            units = _load(file, offset, stop)
            if len(units) < stop - offset:
                break
            if limit < 0:
                _, pos, size, _, _ = _UNIT.unpack_from(units)
                data_file = self._data.find(pos)
                if data_file is None:
                    break
                limit = min(pos + max(max_bytes, size), data_file.end)
                _load(data_file, pos, min(limit, max(end_pos, pos)))
            _, pos, size, _, _ = _UNIT.unpack_from(units, len(units) - INDEX_UNIT_SIZE)
            number = stop // INDEX_UNIT_SIZE
            if pos + size >= limit:
                return number - 1
        return last

    def get(self, index: int, check: ReadCheck | None = None) -> Entry:
        """The entry. Raises StoreError if it is damaged, or `check` finds damage."""
        located = self.locate(index)
        file = _existing(self._data.find(located.pos), index)
        data = self._data.read(file, located.pos, min(located.end, file.end))
        _check_header(index, located, file, data)
        if check is not None and check(data) is not None:
            raise _wrong_body(index, located.pos, file)
        body = bytes(data[ENTRY_HEADER_SIZE:])
        return Entry(index, located.term, located.pos, MAGIC_NORMAL, body, control_kind_at(data))

    def read(
        self, first: int, max_bytes: int, last: int, end_pos: int, recent: RecentEntries, check: ReadCheck | None = None
    ) -> EntryRange:
        """Entries of one file from `first` on; see `DLedgerStore.read`. The log ends with index `last` at `end_pos`.

        Entries are checked, also by `check`, and the range ends before a damaged one. `recent` entries are not checked,
        because this process wrote them.
        """
        high = last
        if first < recent.first_index:
            try:
                high = self.load(first, last, max_bytes, end_pos)
            except UnreadableError:
                # The first entry may be before the bytes that the disk cannot read.
                high, max_bytes = self.load(first, first, 1, end_pos), 1
        located = self.locate(first)
        pos = located.pos
        file = _existing(self._data.find(pos), first)
        limit = min(pos + max(max_bytes, located.size), file.end)
        is_recent = first >= recent.own_from and pos < end_pos <= file.end and end_pos - pos <= _RECENT_BYTES
        if not pos < end_pos <= limit:
            last, end_pos = self._last_within(first, high, limit, located.end)
        try:
            data = self._data.read(file, pos, min(end_pos, file.end))
            if is_recent:
                return EntryRange(first, last, pos, data)
            units = self._engine.check_entries(data, first, pos, located.term, INT64_MAX).units
            is_intact = units == self._units(first, last)
        except (ValueError, UnreadableError):
            is_intact = False
        if not is_intact:
            last, data = self._before_damage(file, first, last)
        wrong = check(data) if check is not None else None
        if wrong == 0:
            raise _wrong_body(first, pos, file)
        if wrong is not None:
            last, end_pos = self._last_within(first, last, pos + wrong, located.end)
            data = data[: end_pos - pos]
        return EntryRange(first, last, pos, data)

    def repair(self, index: int, data: Buffer, begin: int, end: int) -> None:
        """Overwrite an entry of the log ``[begin, end]`` with an intact copy; see `DLedgerStore.repair`.

        If the entry equals the copy, its damaged index unit is overwritten. Raises OSError if the disk fails.
        """
        header = decode_entry_header(bytes(data[:ENTRY_HEADER_SIZE])) if len(data) >= ENTRY_HEADER_SIZE else None
        if header is None or header.index != index:
            raise ValueError(f"expected a copy of entry {index}, found {header}")
        unit = IndexUnit(header.magic, header.pos, header.size, index, header.term)
        self._check_copy(unit, data)
        self._check_same(unit)
        self._check_body(unit, data)
        size = self._data.file_size
        is_after = index == begin or self._fits(
            index - 1, unit, lambda before: unit.pos == before.end or unit.pos % size == 0
        )
        is_before = index == end or self._fits(
            index + 1, unit, lambda after: after.pos == unit.pos + unit.size or after.pos % size == 0
        )
        file, expected = _existing(self._data.find(unit.pos), index), bytes(self._units(index, index))
        if encode_index_unit(unit) == expected and (is_after or is_before):
            _overwrite(file, unit.pos, data)
        elif self._data.read(file, unit.pos, min(unit.pos + unit.size, file.end)) == data:
            offset = index * INDEX_UNIT_SIZE
            _overwrite(_existing(self._index.find(offset), index), offset, encode_index_unit(unit))
        else:
            raise ValueError(f"expected an entry as its index unit {decode_index_unit(expected)}, found {unit}")

    def rebuild_unit(self, index: int, begin: int, end: int) -> bool:
        """Overwrite a wrong index unit if the entry's checksum and its neighbours prove it. Raises OSError.

        Returns whether it was overwritten.
        """
        try:
            pos = self._data.files[0].base if index == begin else self._following(self.locate(index - 1).end, index)
            file = _existing(self._data.find(pos), index)
            header = self._header(file, pos)
            unit = IndexUnit(MAGIC_NORMAL, pos, header.size, index, header.term)
            low = self.locate(index - 1).term if index > begin else header.term
            high = self.locate(index + 1).term if index < end else header.term
            if bytes(self._units(index, index)) == encode_index_unit(unit) or not low <= header.term <= high:
                return False
            self.repair(index, self._data.read(file, pos, min(pos + header.size, file.end)), begin, end)
        except (IndexError, StoreError, ValueError):
            return False
        return True

    def _following(self, end: int, index: int) -> int:
        """Where the entry with that index begins, if the one before ends at `end`: there, or in the next file."""
        file = _existing(self._data.find(end), index)
        is_closed = end + ENTRY_HEADER_SIZE > file.end or self._header(file, end).magic == MAGIC_BLANK
        return file.end if is_closed else end

    def _header(self, file: MappedFile, pos: int) -> EntryHeader:
        return decode_entry_header(bytes(self._data.read(file, pos, min(pos + ENTRY_HEADER_SIZE, file.end))))

    def _fits(self, neighbour: int, unit: IndexUnit, fits: Callable[[IndexedEntry], bool]) -> bool:
        """Whether a neighbour's index unit fits; False if it is damaged. Raises ValueError if only this one can be."""
        try:
            if fits(self.locate(neighbour)):
                return True
            self.find(neighbour)
        except StoreError:
            return False
        raise ValueError(f"expected the index unit of {unit.index} to continue its neighbours, found {unit}")

    def _check_same(self, given: IndexUnit) -> None:
        """Raises OtherEntryError if neither the index unit nor the header of an entry fits the copy's unit."""
        unit = decode_index_unit(bytes(self._units(given.index, given.index)))
        if given not in (unit, self._unit_at(unit.pos), self._unit_at(given.pos)):
            raise OtherEntryError(f"expected a copy of the entry {unit}, found another entry: {given}")

    def _check_body(self, unit: IndexUnit, data: Buffer) -> None:
        """Raises ValueError if the copy has another body than the entry's header says, and than is in the log.

        A peer can send another body with its checksum. If only the log's checksum is damaged, the bodies are equal.
        """
        file = self._data.find(unit.pos)
        own = b"" if file is None else read_at(str(file.path), unit.pos - file.base, unit.size)
        copy = bytes(data)
        has_crc = own[_BODY_CRC] != bytes(4) and own[: _BODY_CRC.start] == copy[: _BODY_CRC.start]
        is_other = own[_BODY_CRC] != copy[_BODY_CRC] and own[_BODY_CRC.stop :] != copy[_BODY_CRC.stop :]
        if has_crc and is_other:
            raise ValueError(f"expected a body with CRC {own[_BODY_CRC].hex()}, found {copy[_BODY_CRC].hex()}")

    def _unit_at(self, pos: int) -> IndexUnit | None:
        """The index unit that fits the header at a position."""
        file = self._data.find(pos)
        return None if file is None else unit_in(self._data.read(file, pos, min(pos + ENTRY_HEADER_SIZE, file.end)))

    def _check_copy(self, unit: IndexUnit, data: Buffer) -> None:
        """Raises ValueError unless the bytes are one intact entry with a checksum."""
        problem = entry_problem(self._engine, data, unit)
        has_checksum = problem is not None or (
            self._engine.find_wrong_body(data, True) is None
            or has_message_magic(bytes(data), ENTRY_HEADER_SIZE, len(data))
        )
        if not has_checksum:
            problem = "expected a checksum, found none"
        if problem is not None or len(data) != unit.size:
            raise ValueError(problem or f"expected {unit.size} bytes, found {len(data)}")

    def _before_damage(self, file: MappedFile, first: int, last: int) -> tuple[int, memoryview]:
        """The last index before a damaged entry, and the bytes up to there. Raises StoreError if that is `first`."""
        start = self.locate(first)
        end, term = start.pos, start.term
        for index in range(first, last + 1):
            try:
                located = self.locate(index)
                _check_header(index, located, file, self._data.read(file, located.pos, min(located.end, file.end)))
                if located.pos != end or located.term < term:
                    raise StoreError(
                        f"{file.path} at byte {end - file.base}: expected the entry of index {index} with a term of at "
                        f"least {term}, found it at byte {located.pos - file.base} with term {located.term}: the file "
                        "is damaged; stop this member, and copy its folder from another member of the group"
                    )
            except StoreError:
                if index == first:
                    raise
                last = index - 1
                break
            end, term = located.end, located.term
        return last, self._data.read(file, start.pos, end)

    def _units(self, first: int, last: int) -> bytes:
        """The index units of entries ``[first, last]``."""
        own, pending = self._pending.between(first, last)
        own = own if pending else last + 1
        pos, end = first * INDEX_UNIT_SIZE, own * INDEX_UNIT_SIZE
        parts: list[Buffer] = []
        while pos < end:
            file = _existing(self._index.find(pos), pos // INDEX_UNIT_SIZE)
            stop = min(end, file.end)
            parts.append(self._index.read(file, pos, stop))
            pos = stop
        return b"".join([*parts, pending])

    def _last_within(self, first: int, last: int, limit: int, end: int) -> tuple[int, int]:
        """Index and end of the last entry that ends at or before `limit`; `first` ends at `end`.

        It can be an earlier one if a later entry's index unit is damaged.
        """
        low, high = first, min(last, first + (limit - end) // ENTRY_HEADER_SIZE)
        while low < high:
            middle = (low + high + 1) // 2
            try:
                found = self.locate(middle).end
            except IndexRangeError:
                raise
            except StoreError:
                found = limit + 1
            if found <= limit:
                low, end = middle, found
            else:
                high = middle - 1
        return low, end


def _overwrite(file: MappedFile, pos: int, data: Buffer) -> None:
    """Write bytes at a position, durably."""
    descriptor = open_own(file.path, os.O_WRONLY)
    try:
        write_at(descriptor, data, pos - file.base)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load(file: MappedFile, start: int, stop: int) -> bytes:
    """Read the positions ``[start, stop)`` and return the first bytes. Raises StoreError, IndexRangeError."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise IndexRangeError(f"{file.path}: the file has expired") from None
    first = b""
    try:
        for pos in range(start, stop, _LOADED_BYTES):
            data = os.pread(descriptor, min(_LOADED_BYTES, stop - pos), pos - file.base)
            first = first or data
    except OSError as error:
        raise UnreadableError(str(file.path), str(error), start - file.base) from error
    finally:
        os.close(descriptor)
    return first


def _check_header(index: int, located: IndexedEntry, file: MappedFile, data: memoryview) -> None:
    """Raises StoreError unless the header at the start of `data` agrees with the index unit."""
    pos, size, term = located
    names = ("magic", "size", "index", "term", "pos", "bodySize")
    expected = (MAGIC_NORMAL, size, index, term, pos, size - ENTRY_HEADER_SIZE)
    header = _HEADER.unpack_from(data) if len(data) >= ENTRY_HEADER_SIZE else ()
    found = header[:5] + header[8:]
    if found == expected:
        return
    expected_text, found_text = (
        " ".join(f"{name}={value}" for name, value in zip(names, values, strict=False)) for values in (expected, found)
    )
    raise StoreError(
        f"{file.path} at byte {pos - file.base}: expected the entry of index {index}, {expected_text}, found "
        f"{found_text or 'the end of the file'}: the file is damaged; stop this member, and copy its folder from "
        "another member of the group (if only files in index/ are damaged, delete those: they are rebuilt)"
    )


def _wrong_body(index: int, pos: int, file: MappedFile) -> StoreError:
    return StoreError(
        f"{file.path} at byte {pos - file.base}: expected the body of index {index} to match its checksum, found "
        "other bytes: the entry is damaged, and is neither served nor pushed; stop this member, and copy its folder "
        "from another member of the group ('dledger diff' names one)"
    )


def _existing(file: MappedFile | None, index: int) -> MappedFile:
    if file is None:
        raise IndexRangeError(f"expected an index of the log, found {index}: its file has expired")
    return file
