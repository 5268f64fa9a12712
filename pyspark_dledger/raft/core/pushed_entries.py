"""Splits and compares the encoded entries that a leader pushes."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE

# Up to pos.
_HEADER = record_struct(ENTRY_HEADER[:5])
# Java compares the channel, which ends before the two checksums, but not the checksums.
_CHECKSUMS = slice(ENTRY_HEADER[6].offset, ENTRY_HEADER[8].offset)


class PushedEntry(NamedTuple):
    """One entry: its index, term and position, and its bytes ``[start, stop)`` in the pushed data."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    start: int
    stop: int


def split(data: Buffer) -> list[PushedEntry]:
    """The entries in `data`. Raises ValueError unless it is one or more complete entries with consecutive indexes."""
    entries: list[PushedEntry] = []
    start, total = 0, len(data)
    while start < total or not entries:
        if total - start < ENTRY_HEADER_SIZE:
            raise ValueError(f"expected the {ENTRY_HEADER_SIZE} bytes of a header at {start}, found {total - start}")
        _, size, index, term, pos = _HEADER.unpack_from(data, start)
        if not ENTRY_HEADER_SIZE <= size <= min(MAX_ENTRY_SIZE, total - start):
            raise ValueError(f"expected an entry of at most {total - start} bytes at {start}, found size {size}")
        if index < 0 or pos < 0 or (entries and index != entries[-1].index + 1):
            raise ValueError(f"expected consecutive entries, found index {index} and pos {pos} at {start}")
        entries.append(PushedEntry(index, term, pos, start, start + size))
        start += size
    return entries


def only_entry(data: Buffer) -> PushedEntry:
    """The single entry in `data`. Raises ValueError for another number of entries."""
    entries = split(data)
    if len(entries) != 1:
        raise ValueError(f"expected one entry, found {len(entries)}")
    return entries[0]


def are_equal(one: Buffer, other: Buffer) -> bool:
    """Whether two entries are equal for Java, which ignores both checksums (``DLedgerEntry.equals``)."""
    one, other = bytes(one), bytes(other)
    if one == other:
        return True
    start, stop = _CHECKSUMS.start, _CHECKSUMS.stop
    return len(one) == len(other) and one[:start] == other[:start] and one[stop:] == other[stop:]
