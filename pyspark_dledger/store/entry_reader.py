"""Reads entries by index from mapped files (``DLedgerMmapFileStore.get``)."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_NORMAL
from pyspark_dledger.store.dledger_store import Entry, EntryRange, ReadCheck
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList
from pyspark_dledger.store.log_files import PendingUnits

_HEADER = record_struct(ENTRY_HEADER)
_UNIT = record_struct(INDEX_UNIT)

# Entries within this many bytes of the log's end are read when a leader pushes what it just appended.
_RECENT_BYTES = 64 << 20


class IndexedEntry(NamedTuple):
    """The position, size and term of an entry, from its index unit."""

    pos: int
    size: int
    term: int

    @property
    def end(self) -> int:
        return self.pos + self.size


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
        _, pos, size, found, term = _UNIT.unpack_from(self._index.view(file), offset - file.base)
        if found != index:
            raise StoreError(
                f"{file.path} at byte {offset - file.base}: expected the unit of index {index}, found that of {found}: "
                "stop the node and delete the files in index/, which are rebuilt from the data"
            )
        return IndexedEntry(pos, size, term)

    def get(self, index: int, check: ReadCheck | None = None) -> Entry:
        """The entry. Raises StoreError if it is damaged, or `check` finds damage."""
        located = self.locate(index)
        file = _existing(self._data.find(located.pos), index)
        data = self._data.view(file)[located.pos - file.base : located.end - file.base]
        term = _check_header(index, located, file, data)
        if check is not None and check(data) is not None:
            raise _wrong_message(index, located.pos, file)
        return Entry(index, term, located.pos, MAGIC_NORMAL, bytes(data[ENTRY_HEADER_SIZE:]))

    def read(
        self, first: int, max_bytes: int, last: int, end_pos: int, own_from: int, check: ReadCheck | None = None
    ) -> EntryRange:
        """Entries of one file from `first` on; see `DLedgerStore.read`. The log ends with index `last` at `end_pos`.

        Entries are checked, also by `check`, and the range ends before a damaged one. Recent entries from position
        `own_from` on are not checked, because this process wrote them.
        """
        located = self.locate(first)
        pos = located.pos
        file = _existing(self._data.find(pos), first)
        limit = min(pos + max(max_bytes, located.size), file.end)
        is_recent = pos >= own_from and end_pos <= file.end and end_pos - pos <= _RECENT_BYTES
        if not pos < end_pos <= limit:
            last, end_pos = self._last_within(first, last, limit, located.end)
        data = self._data.view(file)[pos - file.base : end_pos - file.base]
        if is_recent:
            return EntryRange(first, last, pos, data)
        try:
            is_intact = self._engine.check_entries(data, first, pos, located.term, INT64_MAX).count == last - first + 1
        except ValueError:
            is_intact = False
        if not is_intact:
            found = self._before_damage(file, first, last)
            last, data = found.last_index, memoryview(found.data)
        wrong = check(data) if check is not None else None
        if wrong == 0:
            raise _wrong_message(first, pos, file)
        if wrong is not None:
            last, end_pos = self._last_within(first, last, pos + wrong, located.end)
            data = data[: end_pos - pos]
        return EntryRange(first, last, pos, data)

    def _before_damage(self, file: MappedFile, first: int, last: int) -> EntryRange:
        """The entries before the first damaged one. Raises StoreError if that is `first`."""
        start, view = self.locate(first), self._data.view(file)
        end, term = start.pos, start.term
        for index in range(first, last + 1):
            located = self.locate(index)
            try:
                found = _check_header(index, located, file, view[located.pos - file.base :][:ENTRY_HEADER_SIZE])
                if located.pos != end or found < term:
                    raise StoreError(
                        f"{file.path} at byte {end - file.base}: expected the entry of index {index} with a term of at "
                        f"least {term}, found it at byte {located.pos - file.base} with term {found}: the file is "
                        "damaged; stop this member, and copy its folder from another member of the group"
                    )
            except StoreError:
                if index == first:
                    raise
                last = index - 1
                break
            end, term = located.end, found
        return EntryRange(first, last, start.pos, view[start.pos - file.base : end - file.base])

    def _last_within(self, first: int, last: int, limit: int, end: int) -> tuple[int, int]:
        """Index and end of the last entry that ends at or before `limit`; `first` ends at `end`."""
        low, high = first, min(last, first + (limit - end) // ENTRY_HEADER_SIZE)
        while low < high:
            middle = (low + high + 1) // 2
            found = self.locate(middle).end
            if found <= limit:
                low, end = middle, found
            else:
                high = middle - 1
        return low, end


def _check_header(index: int, located: IndexedEntry, file: MappedFile, data: memoryview) -> int:
    """The term of the entry at the start of `data`. Raises StoreError unless its header agrees with the index."""
    pos, size, _ = located
    names = ("magic", "size", "index", "pos", "bodySize")
    expected = (MAGIC_NORMAL, size, index, pos, size - ENTRY_HEADER_SIZE)
    header = _HEADER.unpack_from(data) if len(data) >= ENTRY_HEADER_SIZE else ()
    found = header[:3] + header[4:5] + header[8:]
    if found == expected:
        return int(header[3])
    expected_text, found_text = (
        " ".join(f"{name}={value}" for name, value in zip(names, values, strict=False)) for values in (expected, found)
    )
    raise StoreError(
        f"{file.path} at byte {pos - file.base}: expected the entry of index {index}, {expected_text}, found "
        f"{found_text or 'the end of the file'}: the file is damaged; stop this member, and copy its folder from "
        "another member of the group (if only files in index/ are damaged, delete those: they are rebuilt)"
    )


def _wrong_message(index: int, pos: int, file: MappedFile) -> StoreError:
    return StoreError(
        f"{file.path} at byte {pos - file.base}: expected the message of index {index} to match its checksum, found "
        "other bytes: the entry is damaged, and is neither served nor pushed; stop this member, and copy its folder "
        "from another member of the group ('dledger diff' names one)"
    )


def _existing(file: MappedFile | None, index: int) -> MappedFile:
    if file is None:
        raise IndexRangeError(f"expected an index of the log, found {index}: its file has expired")
    return file
