"""Index units that wait in memory until the data of their entries is durable."""

from __future__ import annotations

import threading

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import INDEX_UNIT, INDEX_UNIT_SIZE

_UNIT = record_struct(INDEX_UNIT)
# With more bytes, an append first waits until entries are durable. One append adds at most 26 MB.
_FULL_BYTES = 16 * 1024 * 1024


class PendingUnits:
    """The units of the last entries of a log.

    One thread appends, truncates and finds. Another thread moves durable units to the index. It writes them there
    before it forgets them here, so a unit that is not found here is in the index.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = 0
        self._units = bytearray()

    def append(self, first: int, units: bytes | bytearray) -> None:
        """Add the units of the next entries, from index `first` on."""
        with self._lock:
            if not self._units:
                self._first = first
            self._units += units

    def find(self, index: int) -> tuple[int, ...] | None:
        """The fields of a unit; None if it is not pending."""
        with self._lock:
            offset = (index - self._first) * INDEX_UNIT_SIZE
            return _UNIT.unpack_from(self._units, offset) if 0 <= offset < len(self._units) else None

    def last_before(self, last: int) -> int:
        """The last index up to `last` whose unit is not pending."""
        with self._lock:
            return min(last, self._first - 1) if self._units else last

    @property
    def is_full(self) -> bool:
        """Whether units have to be written before more are added."""
        return len(self._units) > _FULL_BYTES

    def first_ones(self, last: int, count: int) -> tuple[int, bytes] | None:
        """The first pending index, and at most `count` units from there on, up to index `last`; None without any."""
        with self._lock:
            units = self._bytes(self._first, min(last, self._first + count - 1))
            return (self._first, units) if units else None

    def between(self, first: int, last: int) -> tuple[int, bytes]:
        """The pending units with indexes in ``[first, last]``, and the index of the first one."""
        with self._lock:
            return max(self._first, first), self._bytes(first, last)

    def _bytes(self, first: int, last: int) -> bytes:
        with memoryview(self._units) as view:
            return bytes(view[self._size_to(first) : self._size_to(last + 1)])

    def forget_up_to(self, last: int) -> None:
        """Drop the units up to index `last`, which are in the index files."""
        with self._lock:
            size = self._size_to(last + 1)
            del self._units[:size]
            self._first += size // INDEX_UNIT_SIZE

    def truncate(self, index: int) -> None:
        """Drop the unit of `index` and all later ones."""
        with self._lock:
            del self._units[self._size_to(index) :]

    def _size_to(self, index: int) -> int:
        """The size in bytes of the units before `index`."""
        return min(max(index - self._first, 0) * INDEX_UNIT_SIZE, len(self._units))
