"""Reading entries by their index, through mappings of the files (``DLedgerMmapFileStore.get``)."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE
from pyspark_dledger.store.base import Entry, EntryRange
from pyspark_dledger.store.files import FileList, LogFile
from pyspark_dledger.store.waiting import WaitingUnits

_HEADER = record_struct(ENTRY_HEADER)
_UNIT = record_struct(INDEX_UNIT)


class Located(NamedTuple):
    """Where an entry stands, its size in bytes and its term, as the index has it."""

    pos: int
    size: int
    term: int

    @property
    def end(self) -> int:
        return self.pos + self.size


class EntryReader:
    """Reads what data and index files hold, and the units that wait. That the log holds an index has been checked.

    Raises IndexRangeError where the entry's file has expired meanwhile, StoreError where index and data do not agree.
    """

    def __init__(self, data: FileList, index: FileList, waiting: WaitingUnits) -> None:
        self._data = data
        self._index = index
        self._waiting = waiting

    def locate(self, index: int) -> Located:
        """Where an entry stands."""
        unit = self._waiting.find(index)
        if unit is not None:
            return Located(unit[1], unit[2], unit[4])
        offset = index * INDEX_UNIT_SIZE
        file = _there(self._index.find(offset), index)
        _, pos, size, found, term = _UNIT.unpack_from(self._index.view(file), offset - file.base)
        if found != index:
            raise StoreError(
                f"{file.path} at byte {offset - file.base}: expected the unit of index {index}, found that of {found}: "
                "stop the node and delete the files in index/, which are rebuilt from the data"
            )
        return Located(pos, size, term)

    def get(self, index: int) -> Entry:
        """One entry."""
        pos, size, _ = self.locate(index)
        file = _there(self._data.find(pos), index)
        start = pos - file.base
        data = bytes(self._data.view(file)[start : start + size])
        header = _HEADER.unpack_from(data) if len(data) >= ENTRY_HEADER_SIZE else None
        if header is None or header[1:3] != (size, index) or header[4] != pos:
            raise StoreError(
                f"{file.path} at byte {start}: expected the entry of index {index} and {size} bytes that the index "
                f"names, found {header}: stop the node, and either delete the files in index/, which are rebuilt, or "
                "copy its folder from another member of the group"
            )
        return Entry(index, header[3], pos, header[0], data[ENTRY_HEADER_SIZE:])

    def read(self, first: int, max_bytes: int, last: int, end_pos: int) -> EntryRange:
        """Entries of one file from `first` on, of a log that ends with `last` at `end_pos`; see `DLedgerStore.read`."""
        located = self.locate(first)
        pos = located.pos
        file = _there(self._data.find(pos), first)
        limit = min(pos + max(max_bytes, located.size), file.end)
        if not pos < end_pos <= limit:
            last, end_pos = self._last_within(first, last, limit, located.end)
        return EntryRange(first, last, pos, self._data.view(file)[pos - file.base : end_pos - file.base])

    def _last_within(self, first: int, last: int, limit: int, end: int) -> tuple[int, int]:
        """The last entry from `first` on that ends at or before `limit`, and where it ends; `first` ends at `end`."""
        low, high = first, min(last, first + (limit - end) // ENTRY_HEADER_SIZE)
        while low < high:
            middle = (low + high + 1) // 2
            found = self.locate(middle).end
            if found <= limit:
                low, end = middle, found
            else:
                high = middle - 1
        return low, end


def _there(file: LogFile | None, index: int) -> LogFile:
    if file is None:
        raise IndexRangeError(f"expected an index that the log holds, found {index}: its file has expired")
    return file
