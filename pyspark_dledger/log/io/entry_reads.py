"""Reads single entries and index units without a scan."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from pathlib import Path

from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.codec import EntryHeader, IndexUnit, decode_entry_header, decode_index_unit, decode_records
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS, INDEX_UNIT_SIZE, MESSAGE_HEADER
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.files import file_at, open_file, unreadable
from pyspark_dledger.log.io.segment_listing import Listing, listing
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE


def read_at(path: str, offset: int, size: int) -> bytes:
    """The bytes of a file at `offset`, see `StoreFile.read`."""
    return file_at(path).read(offset, size)


def read_existing(path: str, offset: int, size: int) -> bytes:
    """The bytes of a file at `offset`; fewer at its end, none if the file does not exist.

    Raises UnreadableError if it exists but cannot be read, StoreError for a remote file.
    """
    file = file_at(path)
    if file.is_remote:
        return file.read(offset, size)
    try:
        opened = open_file(path)
    except OSError as error:
        if problem := unreadable(path, error):
            raise problem from None
        return b""
    with opened:
        try:
            return opened.read(offset, size)
        except OSError as error:
            raise UnreadableError(path, error.strerror or str(error), offset) from None


def entry_at(segment: Segment, pos: int) -> EntryHeader | None:
    """The header of the DLedger entry at `pos`, or None if there is no entry with that position."""
    if not segment.base <= pos < segment.end:
        return None
    return entry_in(segment.read(pos, ENTRY_HEADER_SIZE), segment, pos)


def entry_in(data: bytes, segment: Segment, pos: int) -> EntryHeader | None:
    """The header of the DLedger entry that begins with `data`, read at `pos` of a segment, or None."""
    if len(data) < ENTRY_HEADER_SIZE:
        return None
    header = decode_entry_header(data)
    fits = (
        header.magic in ENTRY_MAGICS and header.body_size >= 0 and header.size == ENTRY_HEADER_SIZE + header.body_size
    )
    if not fits or pos + header.size > segment.end or header.index < 0 or header.term < -1:
        return None
    return header if header.pos == pos or not segment.check_pos else None


def segment_at(segments: list[Segment], pos: int) -> Segment | None:
    """The segment with position `pos`, or None; `segments` are in order."""
    place = bisect_right(segments, pos, key=lambda segment: segment.base) - 1
    return segments[place] if place >= 0 and pos < segments[place].end else None


class DLedgerIndex:
    """The DLedger index of a node: 32 bytes for each entry, in mostly sparse files. Reads single units."""

    def __init__(self, folder: Path | None, before: DLedgerIndex | None = None) -> None:
        self._folder = folder
        self.listing: Listing | None = before.listing if before is not None else None

    @cached_property
    def files(self) -> list[Segment]:
        """The index files in order; empty where they cannot be listed, and then the log itself is searched."""
        try:
            if self._folder is not None and self._folder.is_dir():
                self.listing = listing([self._folder], "index", True, self.listing)
                return list(self.listing.segments)
        except (OSError, StoreError):
            pass
        return []

    @property
    def first_index(self) -> int:
        """The index of the first unit; -1 if it was not written."""
        index = self.files[0].base // INDEX_UNIT_SIZE if self.files else -1
        return index if index >= 0 and self.unit(index) is not None else -1

    def unit(self, index: int) -> IndexUnit | None:
        """The unit of `index`, or None if none was written."""
        file = segment_at(self.files, index * INDEX_UNIT_SIZE)
        if file is None:
            return None
        data = file.read(index * INDEX_UNIT_SIZE, INDEX_UNIT_SIZE)
        if len(data) < INDEX_UNIT_SIZE:
            return None
        unit = decode_index_unit(data)
        return unit if unit.magic in ENTRY_MAGICS and unit.index == index else None

    def confirmed_unit(self, segment: Segment, index: int) -> IndexUnit | None:
        """The unit of `index` if `segment` has an entry with its index, size and term at its position, else None."""
        unit = self.unit(index) if index >= 0 and segment.check_pos else None
        header = entry_at(segment, unit.pos) if unit is not None else None
        if unit is None or header is None or (header.index, header.size, header.term) != (index, unit.size, unit.term):
            return None
        return unit


def unnamed_segment(file: Path, source: str) -> Segment:
    """A file without a segment's name, as a segment: its base is the position in its first entry or message."""
    data = read_at(str(file), 0, ENTRY_HEADER_SIZE)
    size = file.stat().st_size
    base = -1
    if len(data) == ENTRY_HEADER_SIZE and source == COMMITLOG:
        base = int(decode_records(data, MESSAGE_HEADER)["physicalOffset"][0])
    elif len(data) == ENTRY_HEADER_SIZE and decode_entry_header(data).magic in ENTRY_MAGICS:
        base = decode_entry_header(data).pos
    segment = Segment.local(str(file), file.name, base, size, source)
    if not 0 <= base <= HIGHEST_BASE or (source == DLEDGER and entry_at(segment, base) is None):
        raise StoreError(
            f"{file}: expected a segment, whose name has 20 digits or which begins with an entry or a message, found "
            "neither: check the path"
        )
    return segment
