"""A model of the scan of the last data files that finds the end of a Java store and rewrites its index.

Sources: DLedger 0.1, 0.2.2, 0.2.7, 0.3.1.2, 0.3.2 and 0.4.0, ``DLedgerMmapFileStore.recover``.

Entries that are complete, in order, and agree with the index are found many at a time. While Java rewrites the index,
there is none to compare with; then the engine walks over the entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import (
    EntryHeader,
    IndexUnit,
    decode_entry_header,
    decode_index_unit,
    decode_records,
    encode_index_unit,
)
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NORMAL,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment
from pyspark_dledger.log.recovery.java_files import (
    JavaFile,
    JavaFileList,
    JavaHangs,
    JavaThrows,
    int32,
    int64,
    underflow,
)

_MAX_UNITS = 4096
# Bytes. Above this mean size of an entry, headers are read one by one.
_MAX_MEAN_SIZE = 4096
_ROWS = 2**18

_COLUMNS = ("magic", "size", "index", "term", "pos")

Records = npt.NDArray[Any]


class AgreedEntries:
    """Adjacent entries, numbered from 0."""

    def __init__(self, columns: dict[str, Records], count: int) -> None:
        self.count = count
        self._columns = columns

    def unit(self, number: int) -> bytes:
        """The index unit of an entry."""
        magic, size, index, term, pos = (int(self._columns[name][number]) for name in _COLUMNS)
        return encode_index_unit(IndexUnit(magic, pos, size, index, term))

    def term(self, number: int) -> int:
        return int(self._columns["term"][number])

    def end(self, number: int) -> int:
        """The position after an entry."""
        return int(self._columns["pos"][number] + self._columns["size"][number])


def continuing_entries(
    engine: Engine, segment: Segment, start: int, end: int, last: tuple[int, int], magics: tuple[int, ...]
) -> Iterator[AgreedEntries]:
    """The entries in ``[start, end)`` that continue index and term `last`, up to the first one that does not."""
    pos, (index, term) = start, last
    request = ScanRequest(segment, start, end, _COLUMNS, verify_crc=False, max_batch_rows=_ROWS)
    for batch, _ in engine.scan(request):
        # A corrupt row has no index; -2 never matches.
        columns = {name: batch.column(name).fill_null(-2).to_numpy().astype(np.int64) for name in _COLUMNS}
        starts = pos + np.concatenate(([0], np.cumsum(columns["size"])[:-1]))
        terms = np.concatenate(([term], columns["term"]))
        good = np.isin(columns["magic"], magics) & (columns["pos"] == starts) & (terms[1:] >= terms[:-1])
        good &= columns["index"] == np.arange(index + 1, index + 1 + len(starts))
        found = AgreedEntries(columns, _leading(good))
        if found.count:
            yield found
            index, term, pos = index + found.count, found.term(found.count - 1), found.end(found.count - 1)
        if found.count < len(good):
            return


def agreeing_entries(
    file: JavaFile,
    offset: int,
    index: JavaFileList,
    last_index: int,
    last_term: int,
    magics: tuple[int, ...],
    checks_pos: bool,
) -> tuple[int, int, int] | None:
    """Last index, last term and size in bytes of the valid entries from `offset`; None without any.

    They follow `last_index` and `last_term`. With `checks_pos`, their headers must have their position.
    """
    units = _following_units(file, offset, index, last_index, last_term, magics)
    if len(units) == 0:
        return None
    headers = _headers(file, units)
    same = headers["bodySize"].astype(np.int64) + ENTRY_HEADER_SIZE == units["size"]
    for name in ("magic", "size", "index", "term", *(["pos"] if checks_pos else [])):
        same &= headers[name] == units[name]
    count = _leading(same)
    if count == 0:
        return None
    last = units[count - 1]
    return int(last["index"]), int(last["term"]), int(last["pos"] + last["size"] - units[0]["pos"])


def _following_units(
    file: JavaFile, offset: int, index: JavaFileList, last_index: int, last_term: int, magics: tuple[int, ...]
) -> Records:
    """The index units after `last_index` whose entries are adjacent from `offset`, up to the end of the data file."""
    none = decode_records(b"", INDEX_UNIT)
    index_offset = (last_index + 1) * INDEX_UNIT_SIZE
    found = index.find(index_offset) if last_index >= 0 else None
    if found is None or not found.is_untouched or found.wrote != found.size or not file.is_untouched:
        return none
    at = index_offset - found.base
    units = decode_records(found.read_disk(at, min(_MAX_UNITS * INDEX_UNIT_SIZE, found.size - at)), INDEX_UNIT)
    sizes = units["size"].astype(np.int64)
    starts = file.base + offset + np.concatenate(([0], np.cumsum(np.maximum(sizes, 0))[:-1])) if len(units) else sizes
    terms = np.concatenate(([last_term], units["term"].astype(np.int64)))
    good = np.isin(units["magic"], magics) & (sizes >= ENTRY_HEADER_SIZE) & (units["pos"] == starts)
    good &= units["index"] == np.arange(last_index + 1, last_index + 1 + len(units))
    good &= (terms[1:] >= terms[:-1]) & (starts + sizes <= file.end)
    return units[: _leading(good)]


def _headers(file: JavaFile, units: Records) -> Records:
    """The entry headers at the positions of the units."""
    starts = units["pos"].astype(np.int64) - file.base
    end = int(starts[-1]) + int(units["size"][-1])
    if end - int(starts[0]) > _MAX_MEAN_SIZE * len(units):
        return decode_records(b"".join(file.read_disk(int(at), ENTRY_HEADER_SIZE) for at in starts), ENTRY_HEADER)
    data = np.frombuffer(file.read_disk(int(starts[0]), end - int(starts[0])), np.uint8)
    rows = (starts - starts[0])[:, None] + np.arange(ENTRY_HEADER_SIZE)
    return decode_records(data[rows].tobytes(), ENTRY_HEADER)


def _leading(good: npt.NDArray[np.bool_]) -> int:
    """The number of true values before the first false one."""
    return int(np.argmin(good)) if not good.all() else len(good)


# Java's HEADER_SIZE, without the length of the body. An entry must be longer.
_JAVA_HEADER_SIZE = 44
_FILES_SCANNED = 3
# Bytes of one step while the index is rewritten.
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
    can be read afterwards.
    """

    def __init__(
        self, data: JavaFileList, index_files: JavaFileList, rules: JavaRules, kept_index: int | None, engine: Engine
    ) -> None:
        self.index = -1
        self.term = -1
        self.stop: Stop | None = None
        self.rewrite: Rewrite | None = None
        self._files = data.files
        self._index_files = index_files
        self._rules = rules
        self._kept_index = kept_index
        self._engine = engine
        self._step = _MIN_STEP
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
        """Pass many entries at once; whether there were any."""
        before = self.end
        if self.rewrite is None:
            magics, checks_pos = self._rules.magics, self._rules.checks_pos
            found = agreeing_entries(
                self._file, self._offset, self._index_files, self.index, self.term, magics, checks_pos
            )
            if found is not None:
                self._passed(*found)
        elif self._file.path is not None and self.index >= 0:
            self._pass_unindexed(self._file.path)
            self._step = min(2 * self._step, _MAX_STEP) if self.end > before else _MIN_STEP
        return self.end > before

    def _pass_unindexed(self, path: Path) -> None:
        """Pass the complete entries that follow, and write their index units."""
        file, start = self._file, self._file.base + self._offset
        segment = Segment.local(str(path), file.name, file.base, file.size, DLEDGER, self._rules.checks_pos)
        end, last = min(start + self._step, file.end), (self.index, self.term)
        for found in continuing_entries(self._engine, segment, start, end, last, self._rules.magics):
            kept = self._kept_index - self.index - 1 if self._kept_index is not None else None
            written = self._index_files.append_units(found.count, found.unit, kept)
            if written:
                pos = file.base + self._offset
                self._passed(self.index + written, found.term(written - 1), found.end(written - 1) - pos)
            if written < found.count:
                return

    def _pass_entry(self) -> None:
        head = self._file.read(self._offset, ENTRY_HEADER_SIZE)
        fault = self._entry_fault(head)
        if fault is None:
            header = decode_entry_header(head)
            fault = self._index_entry(header)
            if fault is None:
                self._passed(header.index, header.term, header.size)
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
        unit = encode_index_unit(unit_of(header, pos))
        kept = 0 if header.index == self._kept_index else None
        try:
            written = self._index_files.append_units(1, lambda _: unit, kept)
        except JavaThrows as thrown:
            return thrown.detail
        return None if written else f"expected room for an index unit at {index_offset}, found none"


def unit_of(header: EntryHeader, pos: int) -> IndexUnit:
    """The index unit of an entry at `pos`."""
    return IndexUnit(header.magic, pos, header.size, header.index, header.term)
