"""Whether lost entries can have been at positions of damaged files, by the bytes of their headers that are left."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS
from tests.support.log_writer import Written

Terms = npt.NDArray[np.int64]
"""By position: the lowest term that the log can have there, or NO_TERM where no entry can begin."""

NO_TERM = np.iinfo(np.int64).max


@dataclass
class LogBytes:
    """Files of a log by base, and the positions of the bytes that were damaged; ``written`` are its entries."""

    files: dict[int, bytes]
    damaged: list[tuple[int, int]]
    written: dict[int, Written]

    def allows(self, last: Written, entry: Written) -> bool:
        """Whether entries with all indexes between the two can be lost between them."""
        lost, begin, end = entry.index - last.index - 1, last.pos + last.size, entry.pos
        if lost < 0 or end < begin or entry.term < last.term:
            return False
        terms = np.full(end - begin + 1, NO_TERM, np.int64)
        terms[0] = last.term
        self._pass_blanks(terms, begin)
        for index in range(last.index + 1, entry.index):
            terms = self._after_lost(terms, begin, index)
            self._pass_blanks(terms, begin)
        return bool(terms[-1] <= entry.term)

    def gap_end(self, last: Written) -> int:
        """The end of the damaged bytes that begin at the end of an entry or before it; else that end."""
        end = last.pos + last.size
        return next((high for low, high in self.damaged if low <= end < high), end)

    def _after_lost(self, terms: Terms, begin: int, index: int) -> Terms:
        """Where the next entry can begin if one with this index is lost."""
        after = np.full_like(terms, NO_TERM)
        is_free = self._has_no_header(begin, len(terms))
        if len(terms) > ENTRY_HEADER_SIZE:
            # Its size can be any.
            lowest = np.minimum.accumulate(np.where(is_free, terms, NO_TERM))
            after[ENTRY_HEADER_SIZE:] = lowest[:-ENTRY_HEADER_SIZE]
        for at in np.flatnonzero(~is_free & (terms != NO_TERM)).tolist():
            term = self._visible_term(begin + at, index, int(terms[at]))
            for size in self._sizes(begin + at, len(terms) - 1 - at) if term is not None else ():
                after[at + size] = min(after[at + size], term)
        return after

    def _pass_blanks(self, terms: Terms, begin: int) -> None:
        for base in self.files:
            blank = self._blank_before.get(base)
            if blank is not None and begin <= blank and base < begin + len(terms):
                terms[base - begin] = min(terms[base - begin], terms[blank - begin])

    @cached_property
    def _blank_before(self) -> dict[int, int]:
        """The position of the blank that was written before each base."""
        ends = {base: [e.pos + e.size for e in self.written.values() if e.pos < base] for base in self.files}
        return {base: max(found) for base, found in ends.items() if found}

    def _has_no_header(self, begin: int, count: int) -> npt.NDArray[np.bool_]:
        """The positions at which all bytes of a header are damaged."""
        found = np.zeros(count, bool)
        for low, high in self.damaged:
            found[max(low - begin, 0) : max(high - ENTRY_HEADER_SIZE + 1 - begin, 0)] = True
        return found

    def _header(self, pos: int) -> tuple[bytes, list[bool]]:
        """A header, and which of its bytes are left; both empty if a file ends in it."""
        base = max((one for one in self.files if one <= pos), default=None)
        data = b"" if base is None else self.files[base][pos - base : pos - base + ENTRY_HEADER_SIZE]
        if len(data) < ENTRY_HEADER_SIZE:
            return b"", []
        return data, [not any(low <= at < high for low, high in self.damaged) for at in range(pos, pos + len(data))]

    def _visible_term(self, pos: int, index: int, min_term: int) -> int | None:
        """The term of the entry with this index at a position; None if what is left of its header contradicts that."""
        data, left = self._header(pos)
        if not data:
            return None
        header = decode_entry_header(data)
        term = header.term if all(left[16:24]) else min_term
        magics = [magic.to_bytes(4, "big", signed=True) for magic in ENTRY_MAGICS]
        values = [(8, index), (16, term), (24, self._pos_at(pos, header.pos)), (32, 0)]
        is_own = all(_is_left(data, left, at, value.to_bytes(8, "big", signed=True)) for at, value in values)
        is_entry = is_own and any(_is_left(data, left, 0, magic) for magic in magics)
        return term if is_entry and term >= min_term else None

    def _pos_at(self, pos: int, found: int) -> int:
        """The position that a header has: that of an entry that was written there can be any."""
        return found if pos in self.written else pos

    def _sizes(self, pos: int, most: int) -> list[int]:
        data, left = self._header(pos)
        return [
            size
            for size in range(ENTRY_HEADER_SIZE, most + 1)
            if _is_left(data, left, 4, size.to_bytes(4, "big"))
            and _is_left(data, left, 44, (size - ENTRY_HEADER_SIZE).to_bytes(4, "big"))
        ]


def _is_left(data: bytes, left: list[bool], at: int, value: bytes) -> bool:
    return all(not left[at + i] or data[at + i] == byte for i, byte in enumerate(value))
