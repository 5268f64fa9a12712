"""A model of the scan of the last data files that finds the end of a Java store and rewrites its index.

Sources: DLedger 0.1, 0.2.2, 0.2.7, 0.3.1.2, 0.3.2 and 0.4.0, ``DLedgerMmapFileStore.recover``.

Entries that are complete, in order, and agree with the index are passed many at a time, the others one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import EntryHeader, IndexUnit, decode_entry_header, decode_index_unit, decode_records
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NORMAL,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.log.io.files import file_at
from pyspark_dledger.log.recovery.java_files import (
    JavaFile,
    JavaFileList,
    JavaHangs,
    JavaThrows,
    int32,
    int64,
    underflow,
)

_ROWS = 2**18
_COLUMNS = IndexUnit._fields

Units = dict[str, npt.NDArray[np.int64]]
"""The values of the index units of adjacent entries, by name."""


def continuing_entries(
    engine: Engine, segment: Segment, start: int, end: int, last: tuple[int, int], magics: tuple[int, ...]
) -> Iterator[Units]:
    """The entries in ``[start, end)`` that continue index and term `last`, up to the first one that does not."""
    pos, (index, term) = start, last
    request = ScanRequest(segment, start, end, _COLUMNS, verify_crc=False, max_batch_rows=_ROWS)
    for batch, _ in engine.scan(request):
        # A corrupt row has no index; -2 never matches.
        columns = {name: batch.column(name).fill_null(-2).to_numpy().astype(np.int64) for name in _COLUMNS}
        ends = pos + np.cumsum(columns["size"])
        good = np.isin(columns["magic"], magics) & (columns["pos"] == ends - columns["size"])
        good &= np.diff(columns["term"], prepend=term) >= 0
        good &= columns["index"] == np.arange(index + 1, index + 1 + len(ends))
        count = _leading(good)
        if count:
            yield {name: values[:count] for name, values in columns.items()}
            index, term, pos = index + count, int(columns["term"][count - 1]), int(ends[count - 1])
        if count < len(good):
            return


def _unit_at(units: Units, number: int) -> IndexUnit:
    return IndexUnit(*(int(units[name][number]) for name in _COLUMNS))


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """The number of true values before the first false one."""
    return int(np.argmin(good)) if not good.all() else len(good)


# Java's HEADER_SIZE, without the length of the body. An entry must be longer.
_JAVA_HEADER_SIZE = 44
_FILES_SCANNED = 3
# So many entries are passed one by one: in a small log, that is faster than to import Arrow.
_FEW = 512
# Bytes of one step over many entries.
_MIN_STEP, _MAX_STEP = 64 * 1024, 64 * 1024 * 1024


@dataclass(frozen=True)
class JavaRules:
    """The differences between version lines.

    ``committed_from``: what Java reads to find the end of the committed entry, ``entry`` or ``index``; None if it
    keeps no committed index. ``sized_blanks``: a blank has the size in its header, and can be anywhere in a file.
    ``names_begin``: an index below the first one has its own error.
    """

    magics: tuple[int, ...] = (MAGIC_NORMAL,)
    checks_pos: bool = True
    sized_blanks: bool = False
    committed_from: str | None = "index"
    names_begin: bool = True
    first_term: int = 0


class Stop(NamedTuple):
    """The end of the scan: the file, the byte in it, and expected and found as text."""

    file: str
    offset: int
    text: str


class Rewrite(NamedTuple):
    """The index from which the index files are rewritten, and the reason."""

    first: int
    text: str


class JavaScan:
    """One scan. After `run`, ``index`` and ``term`` are those of the last entry, -1 without one.

    ``end`` is the position where Java ends the log. Of the rewritten units, only the last one and that of `kept_index`
    are known afterwards.
    """

    def __init__(
        self, data: JavaFileList, index_files: JavaFileList, rules: JavaRules, kept_index: int | None, engine: Engine
    ) -> None:
        self.index = -1
        self.term = -1
        self.stop: Stop | None = None
        self.rewrite: Rewrite | None = None
        self._rewritten: tuple[IndexUnit, ...] = ()
        self._files = data.files
        self._index_files = index_files
        self._rules = rules
        self._kept_index = kept_index
        self._engine = engine
        self._step = _MIN_STEP
        self._singles = 0
        self._blanks: set[tuple[int, int]] = set()
        self._number = self._first_file()
        self._offset = 0
        self.first_file = self._file.name
        self.end = self._file.base

    @property
    def _file(self) -> JavaFile:
        return self._files[self._number]

    @property
    def _where(self) -> str:
        return f"data/{self._file.name} at byte {self._offset}"

    def run(self) -> None:
        """Scan up to the end. Raises JavaHangs if blanks form a cycle."""
        while self.stop is None:
            if self._magic() == MAGIC_BLANK:
                self._pass_blank()
            elif not self._pass_entries():
                self._pass_entry()

    def _first_file(self) -> int:
        """The third to last file, or the nearest one before whose first entry agrees with the index; else the first."""
        for number in range(max(len(self._files) - _FILES_SCANNED, 0), -1, -1):
            file = self._files[number]
            head = file.read(0, ENTRY_HEADER_SIZE)
            if len(head) == ENTRY_HEADER_SIZE and self._is_known(file, decode_entry_header(head)):
                return number
        return 0

    def _is_known(self, file: JavaFile, header: EntryHeader) -> bool:
        # Before 0.4.0 only the lower bound of the magic is checked here.
        known = header.magic in self._rules.magics if self._rules.sized_blanks else header.magic >= MAGIC_NORMAL
        fits = int32(header.body_size + ENTRY_HEADER_SIZE) == header.size > _JAVA_HEADER_SIZE
        if not known or not fits or (self._rules.checks_pos and header.pos != file.base):
            return False
        try:
            return self._index_fault(header, file.base) is None
        except JavaThrows:
            return False

    def _magic(self) -> int | None:
        head = self._file.read(self._offset, 4)
        return int.from_bytes(head, "big", signed=True) if len(head) == 4 else None

    def _stop(self, text: str) -> None:
        self.stop = Stop(self._file.name, self._offset, text)

    def _pass_blank(self) -> None:
        """After a blank, continue with the next file; in 0.4.0 at the end of the blank."""
        if (self._number, self._offset) in self._blanks:
            raise JavaHangs("", f"{self._where}: expected blanks up to the end, found a cycle")
        self._blanks.add((self._number, self._offset))
        size = remaining = self._file.size - self._offset
        if self._rules.sized_blanks:
            head = self._file.read(self._offset, MIN_BLANK_SIZE)
            if len(head) < MIN_BLANK_SIZE:
                self._stop(f"expected a blank of {MIN_BLANK_SIZE} bytes, found the end of the file")
                return
            size = int.from_bytes(head[4:], "big", signed=True)
        self.end = int64(self.end + size) if self._rules.sized_blanks else self._file.end
        after = int32(self._offset + size)
        if after == self._file.size:
            self._next_file()
        elif 0 <= after <= self._file.size:
            self._offset = after
        else:
            self._stop(f"expected a blank of {remaining} bytes, found {size}")

    def _next_file(self) -> None:
        if self._number + 1 == len(self._files):
            self._stop("expected one more file after the blank, found none")
            return
        self._number += 1
        self._offset = 0
        self.end = self._file.base

    def _pass_entries(self) -> bool:
        """Pass the complete entries that follow, with their index units; whether there were any."""
        before, file = self.end, self._file
        if self.index < 0 or self._singles < _FEW:
            return False
        segment = Segment(file_at(str(file.path)), file.name, file.base, file.size, DLEDGER, self._rules.checks_pos)
        start, last = file.base + self._offset, (self.index, self.term)
        end = min(start + self._step, file.end)
        for units in continuing_entries(self._engine, segment, start, end, last, self._rules.magics):
            count = self._agreeing(units) if self.rewrite is None else self._append(units)
            if count:
                unit = _unit_at(units, count - 1)
                self._passed(unit.index, unit.term, unit.pos + unit.size - (file.base + self._offset))
            if count < len(units["pos"]):
                break
        self._step = min(2 * self._step, _MAX_STEP) if self.end > before else _MIN_STEP
        return self.end > before

    def _agreeing(self, units: Units) -> int:
        """How many of the units are in the index file that has the first of them."""
        place = self._index_files.data_at(int(units["index"][0]) * INDEX_UNIT_SIZE)
        if place is None:
            return 0
        file, offset = place
        found = decode_records(file.read(offset, len(units["pos"]) * INDEX_UNIT_SIZE), INDEX_UNIT)
        return _leading(np.all([found[name] == units[name][: len(found)] for name in _COLUMNS], axis=0))

    def _append(self, units: Units) -> int:
        """Write units at the end of the index. Returns how many fit."""
        count = self._index_files.append_units(len(units["pos"]))
        first = int(units["index"][0])
        known = {first + count - 1, *([] if self._kept_index is None else [self._kept_index])}
        written = [_unit_at(units, index - first) for index in known if 0 <= index - first < count]
        self._rewritten = (*written, *(unit for unit in self._rewritten if unit.index == self._kept_index))
        return count

    def rewritten_unit(self, index: int) -> IndexUnit | None:
        """The rewritten unit of an index, if it is known."""
        return next((unit for unit in self._rewritten if unit.index == index), None)

    def _pass_entry(self) -> None:
        head = self._file.read(self._offset, ENTRY_HEADER_SIZE)
        fault = self._entry_fault(head)
        if fault is None:
            header = decode_entry_header(head)
            fault = self._index_entry(header)
            if fault is None:
                self._passed(header.index, header.term, header.size)
                self._singles += 1
                return
        self._stop(fault)

    def _passed(self, index: int, term: int, size: int) -> None:
        self.index, self.term = index, term
        self._offset += size
        self.end = int64(self.end + size)
        self._blanks.clear()

    def _entry_fault(self, head: bytes) -> str | None:
        """The problem of an entry, in the order of Java's checks; None if it continues the log."""
        remaining = self._file.size - self._offset
        if len(head) >= 8 and not any(head[4:8]):
            return "expected an entry, found a size of 0"
        if len(head) < ENTRY_HEADER_SIZE:
            return (
                f"expected an entry's header of {ENTRY_HEADER_SIZE} bytes, found the end of the file after {remaining}"
            )
        header = decode_entry_header(head)
        size = int32(header.body_size + ENTRY_HEADER_SIZE)
        if self._rules.checks_pos and header.pos != self._file.base + self._offset:
            return f"expected pos {self._file.base + self._offset}, found {header.pos}"
        if size != header.size:
            return f"expected size {size} for a body of {header.body_size} bytes, found {header.size}"
        if not 0 <= int32(self._offset + size) <= self._file.size:
            return f"expected a size of at most {remaining}, found {size}"
        if header.magic not in self._rules.magics:
            return f"expected magic {' or '.join(map(str, self._rules.magics))}, found {header.magic}"
        if self.index not in (-1, header.index - 1):
            return f"expected index {self.index + 1}, found {header.index}"
        if header.term < self.term:
            return f"expected a term of at least {self.term}, found {header.term}"
        if size <= _JAVA_HEADER_SIZE:
            return f"expected a size above {_JAVA_HEADER_SIZE}, found {size}"
        return None

    def _index_fault(self, header: EntryHeader, pos: int) -> str | None:
        """The difference between an entry and its index unit; None if they agree. Raises JavaThrows."""
        found = self._index_files.data_at(int64(header.index * INDEX_UNIT_SIZE))
        if found is None:
            return f"expected an index unit of {header.index}, found no index file with room for it"
        file, offset = found
        where = f"index/{file.name} at byte {offset}"
        data = file.read(offset, min(INDEX_UNIT_SIZE, file.wrote - offset))
        if len(data) < INDEX_UNIT_SIZE:
            raise underflow(f"{where}: expected a unit of {INDEX_UNIT_SIZE} bytes, found {len(data)}")
        unit, of_entry = decode_index_unit(data), unit_of(header, pos)
        for name in ("magic", "size", "index", "term", "pos"):
            expected, actual = getattr(of_entry, name), getattr(unit, name)
            if expected != actual:
                return f"{where}: expected {name} {expected} for entry {header.index}, found {actual}"
        return None

    def _index_entry(self, header: EntryHeader) -> str | None:
        """Compare an entry with its index unit; rewrite the index from the first difference.

        Returns the problem if Java cannot write it, else None.
        """
        pos, index_offset = self._file.base + self._offset, int64(header.index * INDEX_UNIT_SIZE)
        if self.rewrite is None:
            try:
                fault = self._index_fault(header, pos)
            except JavaThrows as thrown:
                fault = thrown.detail
            if fault is None:
                return None
            self._index_files.truncate(index_offset)
            if self._index_files.wrote_end != index_offset and not self._index_files.rebuild(index_offset):
                return f"expected an index that can begin at {index_offset}, found none"
            self.rewrite = Rewrite(header.index, fault)
        try:
            written = self._append({name: np.array([value]) for name, value in unit_of(header, pos)._asdict().items()})
        except JavaThrows as thrown:
            return thrown.detail
        return None if written else f"expected room for an index unit at {index_offset}, found none"


def unit_of(header: EntryHeader, pos: int) -> IndexUnit:
    """The index unit of an entry at `pos`."""
    return IndexUnit(header.magic, pos, header.size, header.index, header.term)
