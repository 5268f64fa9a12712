"""Reads entry headers and index units of a log while it is recovered."""

from __future__ import annotations

import os
import struct

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import EntryHeader, IndexUnit, decode_entry_header, decode_index_unit
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAGIC_BLANK,
    MAGIC_NOOP,
    MAGIC_NORMAL,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
)
from pyspark_dledger.format.spec import DLEDGER, PrecedingEntry, Segment
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.files import OpenLocalFile, data_extents, last_data
from pyspark_dledger.store.files.mapped_files import MappedFile, MappedFileList

_SEARCHED_BYTES = 8 * 1024 * 1024
BLANK = struct.pack(">i", MAGIC_BLANK)


class LogView:
    """The data and index files of a log. ``has_index``: the index files contain the unit of the first entry."""

    def __init__(self, data: MappedFileList, index: MappedFileList) -> None:
        self.data = data
        self.index = index
        self.has_index = True

    def header(self, file: MappedFile, pos: int) -> EntryHeader | None:
        """The header of the entry at a position; None if there is no valid one. Raises StoreError for 0.4.0."""
        data = self.read(file, pos)
        if len(data) < ENTRY_HEADER_SIZE:
            return None
        header = decode_entry_header(data)
        if header.magic == MAGIC_NOOP and header.size == ENTRY_HEADER_SIZE and header.body_size == 0:
            raise StoreError(
                f"{file.path} at byte {pos - file.base}: expected magic {MAGIC_NORMAL}, found an entry without a body "
                f"and magic {MAGIC_NOOP}, which only DLedger 0.4.0 writes: its stores can be read, but not written"
            )
        fits = header.body_size >= 0 and header.size == ENTRY_HEADER_SIZE + header.body_size <= MAX_ENTRY_SIZE
        if header.magic != MAGIC_NORMAL or not fits or header.pos != pos or header.index < 0 or header.term < -1:
            return None
        return header if pos + header.size + MIN_BLANK_SIZE <= file.end else None

    def read(self, file: MappedFile, pos: int) -> bytes:
        """The bytes of a header at a position. Files that are not mapped stay so: often only the first bytes matter."""
        stop = min(pos + ENTRY_HEADER_SIZE, file.end)
        if file.bytes is None:
            return read_at(str(file.path), pos - file.base, stop - pos)
        return bytes(self.data.read(file, pos, stop))

    def unit(self, index: int) -> IndexUnit | None:
        units = self.units(index, 1) if index >= 0 else b""
        return decode_index_unit(units) if units.strip(b"\0") else None

    def units(self, index: int, count: int) -> bytes:
        """Index units; zeros for missing ones."""
        if not self.has_index:
            return bytes(count * INDEX_UNIT_SIZE)
        pos, end = index * INDEX_UNIT_SIZE, (index + count) * INDEX_UNIT_SIZE
        parts = []
        while pos < end:
            file = self.index.find(pos)
            if file is None:
                parts.append(bytes(end - pos))
                break
            stop = min(end, file.end)
            parts.append(bytes(self.index.read(file, pos, stop)))
            pos = stop
        return b"".join(parts)

    def first_unit(self) -> IndexUnit | None:
        """The first unit of the index files that is not zeros."""
        files = self.index.files
        if not files:
            return None
        descriptor = os.open(files[0].path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for low, high in data_extents(descriptor, 0, files[0].size):
                data = os.pread(descriptor, min(high - low, _SEARCHED_BYTES), low)
                zeros = len(data) - len(data.lstrip(b"\0"))
                if zeros < len(data):
                    return self.unit((files[0].base + low + zeros) // INDEX_UNIT_SIZE)
        finally:
            os.close(descriptor)
        return None


def has_data_before(file: MappedFile, pos: int) -> bool:
    """Whether a file has nonzero bytes before a position."""
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return last_data(OpenLocalFile(descriptor), 0, pos - file.base) > 0
    finally:
        os.close(descriptor)


def segment_of(file: MappedFile, before: PrecedingEntry | None) -> Segment:
    return Segment.local(str(file.path), file.path.name, file.base, file.size, DLEDGER, before=before)


def unit_of(header: EntryHeader) -> IndexUnit:
    return IndexUnit(header.magic, header.pos, header.size, header.index, header.term)


def describe(data: bytes) -> str:
    """The bytes in place of an entry, in a few words."""
    if not data.strip(b"\0"):
        return "zeros"
    if data[:4] == BLANK:
        return "a blank that no file continues"
    if len(data) < ENTRY_HEADER_SIZE:
        return "the end of the file"
    header = decode_entry_header(data)
    names = ("magic", "size", "index", "term", "pos", "body_size")
    return " ".join(f"{name.replace('_s', 'S')}={getattr(header, name)}" for name in names)
