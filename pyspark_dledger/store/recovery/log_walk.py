"""Finds the begin and the end of a log, and the entries whose index units are missing. Writes nothing.

The end is searched in the last three data files (``DLedgerMmapFileStore.recover``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.codec import (
    EntryHeader,
    IndexUnit,
    decode_entry_header,
    encode_blank,
    record_dtype,
    record_struct,
)
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_NORMAL,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.format.spec import PrecedingEntry
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.store.files.mapped_files import MappedFile
from pyspark_dledger.store.recovery.log_view import BLANK, LogView, has_data_before, segment_of, unit_of

_UNIT = record_dtype(INDEX_UNIT)
_HEADER = record_struct(ENTRY_HEADER[:5])
_SECTOR = 512


class WrongHeader(NamedTuple):
    """The index unit of an entry whose header does not agree with it, and the file of the entry."""

    unit: IndexUnit
    file: MappedFile


def other_term(stored: bytes, units: bytes | bytearray, min_term: int) -> int | None:
    """The number of the first entry that has another term in its stored unit, if that term is possible too.

    `units` are those of the headers. A stored unit with another extent is damaged itself: adjacent entries prove each
    other's extents. So is one with a term that does not fit the terms before (`min_term` before the first) and after.
    """
    old, new = np.frombuffer(stored, _UNIT), np.frombuffer(units, _UNIT)
    terms = new["term"]
    lowest, highest = np.append(min_term, terms[:-1]), np.append(terms[1:], INT64_MAX)
    differs = (old["term"] != terms) & (lowest <= old["term"]) & (old["term"] <= highest)
    for name in ("magic", "pos", "size", "index"):
        differs &= old[name] == new[name]
    rows = np.flatnonzero(differs)
    return int(rows[0]) if len(rows) else None


def is_unwritten(header: bytes, offset: int, unit: IndexUnit) -> bool:
    """Whether a sector of a header at this offset of its file is zeros, which its unit says it should not be."""
    expected = _HEADER.pack(unit.magic, unit.size, unit.index, unit.term, unit.pos).ljust(ENTRY_HEADER_SIZE, b"\1")
    return lacks_sector(header, offset, expected)


def lacks_sector(found: bytes, offset: int, expected: bytes) -> bool:
    """Whether a sector of the bytes at this offset of a file is zeros, and should not be."""
    cut = -offset % _SECTOR
    return any(
        expected[part].strip(b"\0") and not found[part].strip(b"\0") for part in (slice(0, cut), slice(cut, None))
    )


_SCANNED_FILES = 3
# The units of this many bytes of entries are in memory at once.
_STEP_BYTES = 64 * 1024 * 1024
_UNITS_AT_ONCE = 256 * 1024
_UNIT = record_dtype(INDEX_UNIT)
_LOWEST_TERM = -1


class NextEntry(NamedTuple):
    """Index and position of the next entry, and the lowest term that it may have."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: int
    term: int


class FileEntries(NamedTuple):
    """Consecutive entries of one file, from `first` up to position `end`."""

    file: MappedFile
    first: NextEntry
    end: int


class LogWalk:
    """Walks over the entries of a log: `find_begin`, then `find_end`.

    ``has_later_entries``: entries after the end would continue the log. ``is_damaged_early``: the damage is before the
    last files. ``unindexed``: entries whose index units are missing or wrong. ``wrong_header``: the first entry whose
    header and index unit cannot both be right. ``has_torn_unit``: the end is an entry that has its unit.

    `is_sync`: units were written only after their entries were durable. `is_rebooted`: without that, the machine was
    restarted since, so entries that were not durable at the last checkpoint need a checksum. `is_same_boot`: the
    machine was certainly not restarted, so entries that have their units were written completely.
    """

    def __init__(
        self,
        view: LogView,
        engine: Engine,
        checkpoint: Checkpoint,
        *,
        is_sync: bool,
        is_rebooted: bool,
        is_same_boot: bool,
    ) -> None:
        self._view = view
        self._engine = engine
        self._is_sync = is_sync
        self._is_rebooted = is_rebooted
        self._is_same_boot = is_same_boot
        # The indexes up to which entries were committed, and durable, at the last checkpoint.
        self.committed = -1 if checkpoint.committed_index is None else checkpoint.committed_index
        self.durable = -1 if checkpoint.end_index is None else checkpoint.end_index
        self.has_damaged_begin = False
        self.has_later_entries = False
        self.is_damaged_early = False
        self.unindexed: list[FileEntries] = []
        self.wrong_header: WrongHeader | None = None
        self.has_torn_unit = False
        self._walked: list[FileEntries] = []
        self._last_indexed = -1

    def find_begin(self) -> NextEntry | None:
        """The first entry. After a reset it may be inside the first file; its index unit has the position then."""
        view, files = self._view, self._view.data.files
        if not files:
            return None
        first = files[0]
        header = view.header(first, first.base)
        if header is not None:
            return self._checked_begin(first, header)
        unit = view.first_unit()
        if unit is not None and first.base < unit.pos < first.end:
            header = view.header(first, unit.pos)
            if header is not None and header.index == unit.index and not has_data_before(first, unit.pos):
                return NextEntry(header.index, header.pos, _LOWEST_TERM)
        if (
            len(files) > 1
            or self._proven_begin(first) is not None
            or self._engine.log_end(segment_of(first, None), first.base, True).entries
        ):
            self.has_damaged_begin = True
            return NextEntry(unit.index if unit is not None else 0, first.base, _LOWEST_TERM)
        return None

    def _checked_begin(self, file: MappedFile, header: EntryHeader) -> NextEntry:
        """Nothing precedes the first entry, so its index is checked against the second one, or its unit."""
        following = self._view.header(file, header.pos + header.size)
        index = header.index
        proven = self._proven_begin(file) if following is None else None
        if proven is not None and proven.pos == header.pos and proven.index != index:
            self.has_damaged_begin = True
            index = proven.index
        if following is not None and following.index != index + 1 and following.term >= header.term:
            self.has_damaged_begin = True
            index = following.index - 1
        return NextEntry(index, header.pos, _LOWEST_TERM)

    def _proven_begin(self, file: MappedFile) -> IndexUnit | None:
        """The first unit, if its entry was certainly written to this file."""
        unit = self._view.first_unit()
        is_proof = unit is not None and (self._is_sync or self._is_same_boot) and file.base <= unit.pos < file.end
        return unit if unit is not None and is_proof and self._view.unit(unit.index) == unit else None

    def find_end(self, begin: NextEntry) -> NextEntry:
        """The end of a log with this begin, before any torn entry."""
        files, unit = self._view.index.files, begin.index * INDEX_UNIT_SIZE
        self._view.has_index = bool(files) and files[0].base <= unit < files[-1].end
        number, first = self._first_scanned(begin)
        end = self._walk(number, first)
        if self.wrong_header is None:
            self.wrong_header = self._end_without_header(end)
        return self._torn_end(end)

    def _first_scanned(self, begin: NextEntry) -> tuple[int, NextEntry]:
        """The number of the first scanned file, and its first entry.

        This is the third last file, or the first earlier file whose entries have no units or that the next file does
        not continue.
        """
        view, files = self._view, self._view.data.files
        firsts = [begin]
        wanted = max(len(files) - _SCANNED_FILES, 0)
        if not self._is_indexed(files[0], begin):
            return 0, begin
        for number in range(1, wanted + 1):
            header = view.header(files[number], files[number].base)
            if header is None or not self._is_linked(files[number - 1], firsts[-1], header):
                self.is_damaged_early = (
                    header is None or header.index <= firsts[-1].index or header.term < firsts[-1].term
                )
                return number - 1, firsts[-1]
            if not self._has_units(firsts[-1], header):
                return number - 1, firsts[-1]
            firsts.append(NextEntry(header.index, header.pos, header.term))
        return wanted, firsts[wanted]

    def _is_indexed(self, file: MappedFile, entry: NextEntry) -> bool:
        header, unit = self._view.header(file, entry.pos), self._view.unit(entry.index)
        return header is not None and unit is not None and unit == unit_of(header)

    def _is_linked(self, before: MappedFile, first: NextEntry, header: EntryHeader) -> bool:
        """Whether the index says that the file with `header` follows `before`, with a blank between the entries."""
        view = self._view
        last, unit = view.unit(header.index - 1), view.unit(header.index)
        if unit != unit_of(header) or last is None or not first.pos <= last.pos < before.end:
            return False
        last_header = view.header(before, last.pos)
        if last_header is None or unit_of(last_header) != last or not first.term <= last.term <= header.term:
            return False
        return view.read(before, last.pos + last.size)[:4] == BLANK

    def _has_units(self, first: NextEntry, following: EntryHeader) -> bool:
        """Whether the index has contiguous units for all entries of a file, up to the first of the next file.

        Units that were durable at the last checkpoint are skipped: a power loss cannot take them.
        """
        for start in range(max(first.index, self.durable + 1), following.index, _UNITS_AT_ONCE):
            count = min(_UNITS_AT_ONCE, following.index - start)
            units = np.frombuffer(self._view.units(start, count), _UNIT)
            ends = units["pos"] + units["size"]
            if (units["index"] != np.arange(start, start + count)).any() or (units["pos"][1:] != ends[:-1]).any():
                return False
        return True

    def _walk(self, number: int, entry: NextEntry) -> NextEntry:
        """The end of the valid entries that follow each other from `entry` on."""
        view, files = self._view, self._view.data.files
        while True:
            file = files[number]
            entry = self._walk_file(file, entry)
            is_closed = view.read(file, entry.pos)[:4] == BLANK
            if not is_closed or number + 1 == len(files):
                break
            following = view.header(files[number + 1], files[number + 1].base)
            if following is None or following.index != entry.index or following.term < entry.term:
                break
            number += 1
            entry = NextEntry(entry.index, files[number].base, entry.term)
        for later in files[number + 1 :]:
            header = view.header(later, later.base)
            if header is not None and header.index >= entry.index and header.term >= entry.term:
                self.has_later_entries = True
        is_early = self.has_later_entries and number < len(files) - _SCANNED_FILES
        self.is_damaged_early = self.is_damaged_early or is_early
        return entry

    def _walk_file(self, file: MappedFile, entry: NextEntry) -> NextEntry:
        """The end of the valid entries of one file. Entries without units are added to ``unindexed``."""
        segment = segment_of(file, PrecedingEntry(entry.index - 1, entry.term, entry.pos))
        end = self._engine.log_end(segment, entry.pos, False)
        if end.entries == 0:
            return entry
        bounds = [entry.pos, *self._engine.split(segment, entry.pos, end.pos, _STEP_BYTES), end.pos]
        for _, stop in pairwise(bounds):
            entry, is_intact = self._walk_step(file, entry, stop)
            if not is_intact:
                continues = end.last_index >= entry.index and end.last_term >= entry.term
                self.has_later_entries = self.has_later_entries or continues
                break
        return entry

    def _walk_step(self, file: MappedFile, entry: NextEntry, stop: int) -> tuple[NextEntry, bool]:
        """The end of the valid entries before `stop`, and whether they reach it."""
        data = self._view.data.read(file, entry.pos, stop)
        try:
            checked = self._engine.check_entries(data, entry.index, entry.pos, entry.term, INT64_MAX)
            self._compare_units(FileEntries(file, entry, stop), checked.units)
            return NextEntry(entry.index + checked.count, stop, checked.last_term), True
        except ValueError:
            end = self._walk_headers(file, entry)
        if end.pos > entry.pos:
            self._walk_step(file, entry, end.pos)
        return end, False

    def _walk_headers(self, file: MappedFile, entry: NextEntry) -> NextEntry:
        """The end of the valid entries, one by one; used only to find the damage."""
        while True:
            header = self._view.header(file, entry.pos)
            if header is None or header.index != entry.index or header.term < entry.term:
                return entry
            entry = NextEntry(entry.index + 1, entry.pos + header.size, header.term)

    def _compare_units(self, entries: FileEntries, units: bytearray) -> None:
        """Compare the units of entries with those in the index files."""
        first, count = entries.first.index, len(units) // INDEX_UNIT_SIZE
        if first + count > max(self.committed, self.durable) + 1:
            self._walked.append(entries)
        stored = self._view.units(first, count)
        if stored == units:
            self._last_indexed = first + count - 1
            return
        self.unindexed.append(entries)
        words = INDEX_UNIT_SIZE // 8
        same = np.frombuffer(stored, np.uint64).reshape(-1, words) == np.frombuffer(units, np.uint64).reshape(-1, words)
        indexed = np.flatnonzero(same.all(axis=1))
        if len(indexed):
            self._last_indexed = first + int(indexed[-1])
        number = other_term(stored, units, entries.first.term)
        if number is not None and self.wrong_header is None:
            unit = self._view.unit(first + number)
            assert unit is not None
            self.wrong_header = WrongHeader(unit, entries.file)

    def _end_without_header(self, end: NextEntry) -> WrongHeader | None:
        """The end, if an index unit says that an entry is there which a power loss cannot have taken."""
        unit = self._view.unit(end.index)
        file = None if unit is None else self._view.data.find(unit.pos)
        if unit is None or file is None or unit.pos not in (end.pos, file.base) or unit.pos < end.pos:
            return None
        fits = unit.index == end.index and unit.term >= end.term and unit.pos + unit.size + MIN_BLANK_SIZE <= file.end
        if not fits or unit.magic != MAGIC_NORMAL or unit.size < ENTRY_HEADER_SIZE:
            return None
        is_torn = is_unwritten(self._view.read(file, unit.pos), unit.pos - file.base, unit)
        if not self._is_sync and (is_torn or self._is_torn_file(end, unit)):
            return None
        return WrongHeader(unit, file)

    def _is_torn_file(self, end: NextEntry, unit: IndexUnit) -> bool:
        """Whether a file lacks its last blank, or has it, and the unit is of an append that was undone."""
        file = self._view.data.find(end.pos)
        if file is None:
            return False
        found, blank = self._view.read(file, end.pos)[:MIN_BLANK_SIZE], encode_blank(file.end - end.pos)
        return found == blank if unit.pos == end.pos else lacks_sector(found, end.pos - file.base, blank)

    def _torn_end(self, end: NextEntry) -> NextEntry:
        """The first entry whose body may not have been written completely, else `end`.

        An entry is complete if it was committed or durable at the last checkpoint, and, if index units are written
        after their entries are durable, if it has its unit. The same without a restart of the machine. Otherwise units
        prove nothing, and checksums decide.
        """
        first = max(self.committed, self.durable) + 1
        unindexed = max(first, self._last_indexed + 1)
        torn = self._first_torn(self.unindexed, unindexed, self._engine.find_torn)
        if not self._is_sync:
            start = unindexed if self._is_same_boot else first
            wrong = self._first_torn(
                self._walked, start, lambda data, _: self._engine.find_wrong_body(data, self._is_rebooted)
            )
            lost = self._first_torn(self._walked, start, self._engine.find_torn) if self._is_rebooted else None
            torn = min(filter(None, (torn, wrong, lost)), default=None)
        self.has_torn_unit = torn is not None and torn.index <= self._last_indexed
        return torn or end

    def _first_torn(
        self, walked: list[FileEntries], first: int, find: Callable[[memoryview, int], int | None]
    ) -> NextEntry | None:
        """The first entry from index `first` on that `find` finds."""
        for entries in walked:
            file = entries.file
            start = self._engine.seek(segment_of(file, None), entries.first.pos, entries.end, min(first, INT64_MAX))
            data = self._view.data.read(file, start, entries.end)
            torn = find(data, start - file.base)
            if torn is not None:
                header = decode_entry_header(bytes(data[torn : torn + ENTRY_HEADER_SIZE]))
                return NextEntry(header.index, header.pos, header.term)
        return None
