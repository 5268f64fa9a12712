"""A summary as a stream of bytes for another member: the summary, sorted runs of identities, and config files.

The stream is a sequence of records: a header of kind, name length, size and CRC-32, then name and content.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from pyspark_dledger.common.summary_part import MAX_SUMMARY_PART
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.encode.encoded import Buffer

SUMMARY, RUN, CONFIG = 1, 2, 3

_RECORD = struct.Struct("<BBQI")


class Record(NamedTuple):
    """One content; only config files have a name."""

    kind: int
    name: str
    content: memoryview


class Snapshot:
    """A stream that is read in parts. Runs are mapped files, so only the rest takes memory."""

    def __init__(self, number: int, summary: bytes, runs: Sequence[Buffer], config: Mapping[str, bytes]) -> None:
        self.number = number
        records = [(SUMMARY, "", summary), *((RUN, "", run) for run in runs)]
        records += [(CONFIG, name, data) for name, data in config.items()]
        self._pieces = [memoryview(piece) for record in records for piece in _pieces(*record)]
        self._ends = list(accumulate(map(len, self._pieces)))
        self.size = self._ends[-1]

    def read(self, offset: int, size: int = MAX_SUMMARY_PART) -> bytes:
        """At most `size` bytes from `offset` on; none outside the stream."""
        found = bytearray()
        if not 0 <= offset < self.size:
            return b""
        number = bisect_right(self._ends, offset)
        while number < len(self._pieces) and len(found) < size:
            start = max(offset - (self._ends[number] - len(self._pieces[number])), 0)
            found += self._pieces[number][start : start + size - len(found)]
            number += 1
        return bytes(found)


def _pieces(kind: int, name: str, content: Buffer) -> tuple[bytes, Buffer]:
    encoded = name.encode()
    return _RECORD.pack(kind, len(encoded), len(content), crc32(content)) + encoded, content


def records_of(stream: memoryview) -> Iterator[Record]:
    """The records of a whole stream. Raises ValueError for one that is damaged."""
    start = 0
    while start < len(stream):
        if start + _RECORD.size > len(stream):
            raise ValueError(f"expected a record at byte {start}, found {len(stream) - start} bytes")
        kind, name_size, size, crc = _RECORD.unpack_from(stream, start)
        begin = start + _RECORD.size + name_size
        start = begin + size
        content = stream[begin:start]
        if start > len(stream) or crc32(content) != crc:
            raise ValueError(f"expected a record of {size} bytes with CRC {crc:08x} at byte {begin}, found another")
        yield Record(kind, bytes(stream[begin - name_size : begin]).decode(), content)
