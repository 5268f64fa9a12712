"""Index units that wait in memory until the data of their entries is durable."""

from __future__ import annotations

import threading

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.layout import INDEX_UNIT, INDEX_UNIT_SIZE

_UNIT = record_struct(INDEX_UNIT)


class WaitingUnits:
    """The units of consecutive entries, the last ones of a log.

    One thread appends, cuts and looks up; another one may take what has become durable meanwhile. It writes units to
    the index before it forgets them here, so that what is not found here is there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = 0
        self._units = bytearray()

    def append(self, first: int, units: bytes | bytearray) -> None:
        """Add the units of entries from index `first` on, which follow those that are there."""
        with self._lock:
            if not self._units:
                self._first = first
            self._units += units

    def find(self, index: int) -> tuple[int, ...] | None:
        """The fields of the unit of an index, None where it does not wait."""
        with self._lock:
            offset = (index - self._first) * INDEX_UNIT_SIZE
            return _UNIT.unpack_from(self._units, offset) if 0 <= offset < len(self._units) else None

    def up_to(self, last: int) -> tuple[int, bytes]:
        """The first index, and the units up to that of index `last`; none where none wait."""
        with self._lock:
            return self._first, bytes(self._units[: self._size_to(last + 1)])

    def forget_up_to(self, last: int) -> None:
        """These units are in the index now."""
        with self._lock:
            size = self._size_to(last + 1)
            del self._units[:size]
            self._first += size // INDEX_UNIT_SIZE

    def cut(self, index: int) -> None:
        """Forget the unit of that index and all behind it."""
        with self._lock:
            del self._units[self._size_to(index) :]

    def _size_to(self, index: int) -> int:
        """How many bytes of units there are before that of an index."""
        return min(max(index - self._first, 0) * INDEX_UNIT_SIZE, len(self._units))
