"""Encoded entries as they come from a leader: taking them apart and comparing them."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE

# Up to pos.
_HEADER = record_struct(ENTRY_HEADER[:5])
# Channel, which Java compares, ends before the two checksums, which it does not.
_CHECKSUMS = slice(ENTRY_HEADER[6].offset, ENTRY_HEADER[8].offset)


class PushedEntry(NamedTuple):
    """One entry: where it stands in the log, and its bytes within what came."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    start: int
    stop: int


def split(data: Buffer) -> list[PushedEntry]:
    """The entries in `data`. Raises ValueError unless they fill it, one or more, with consecutive indexes."""
    pieces: list[PushedEntry] = []
    start, total = 0, len(data)
    while start < total or not pieces:
        if total - start < ENTRY_HEADER_SIZE:
            raise ValueError(f"expected the {ENTRY_HEADER_SIZE} bytes of a header at {start}, found {total - start}")
        _, size, index, term, pos = _HEADER.unpack_from(data, start)
        if not ENTRY_HEADER_SIZE <= size <= min(MAX_ENTRY_SIZE, total - start):
            raise ValueError(f"expected an entry of at most {total - start} bytes at {start}, found size {size}")
        if index < 0 or pos < 0 or (pieces and index != pieces[-1].index + 1):
            raise ValueError(f"expected consecutive entries, found index {index} and pos {pos} at {start}")
        pieces.append(PushedEntry(index, term, pos, start, start + size))
        start += size
    return pieces


def only_entry(data: Buffer) -> PushedEntry:
    """The one entry in `data`. Raises ValueError where there is another number of them."""
    pieces = split(data)
    if len(pieces) != 1:
        raise ValueError(f"expected one entry, found {len(pieces)}")
    return pieces[0]


def same(one: Buffer, other: Buffer) -> bool:
    """Whether two entries are equal as Java sees it: both checksums aside (``DLedgerEntry.equals``)."""
    one, other = bytes(one), bytes(other)
    if one == other:
        return True
    start, stop = _CHECKSUMS.start, _CHECKSUMS.stop
    return len(one) == len(other) and one[:start] == other[:start] and one[stop:] == other[stop:]
