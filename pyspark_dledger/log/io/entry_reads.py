"""Reads single entries and index units without a scan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.codec import (
    EntryHeader,
    IndexUnit,
    decode_blank,
    decode_entry_header,
    decode_index_unit,
    decode_records,
)
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    ENTRY_MAGICS,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MESSAGE_HEADER,
    MIN_MESSAGE_SIZE,
)
from pyspark_dledger.format.message import Message, has_message_magic, message_in
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.io.files import OnUnreadable, file_at, ignore_error, opened_existing
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE, Listing, listing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Most messages are shorter.
_HEAD_BYTES = 4096
_BLOCK_BYTES = 64 * 1024 * INDEX_UNIT_SIZE


def read_at(path: str, offset: int, size: int) -> bytes:
    """The bytes of a file at `offset`, see `StoreFile.read`."""
    return file_at(path).read(offset, size)


def read_existing(path: str, offset: int, size: int) -> bytes:
    """The bytes of a file at `offset`; fewer at its end, none if the file does not exist.

    Raises UnreadableError if it exists but cannot be read, StoreError for a remote file.
    """
    if is_remote(path):
        return file_at(path).read(offset, size)
    with opened_existing(path) as file:
        return file.read(offset, size) if file is not None else b""


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


class StoredRow(NamedTuple):
    """An entry with its ``header``, or a message of a CommitLog without one; ``size`` is in bytes."""

    segment: Segment
    pos: int
    size: int
    header: EntryHeader | None

    @property
    def end(self) -> int:
        return self.pos + self.size

    def read(self) -> bytes:
        """All bytes, with the header."""
        return self.segment.read(self.pos, self.size)


def row_at(segment: Segment | None, pos: int) -> StoredRow | None:
    """The entry or message at a position of a segment, by its header; None without one."""
    if segment is None:
        return None
    if segment.source == DLEDGER:
        header = entry_at(segment, pos)
        return None if header is None else StoredRow(segment, pos, header.size, header)
    head = segment.read(pos, MIN_MESSAGE_SIZE) if segment.base <= pos < segment.end else b""
    size = int.from_bytes(head[:4], "big", signed=True)
    is_message = len(head) == MIN_MESSAGE_SIZE and has_message_magic(head, 0, len(head))
    return StoredRow(segment, pos, size, None) if is_message and MIN_MESSAGE_SIZE <= size <= segment.end - pos else None


def message_at(segments: list[Segment], offset: int, end_of: Callable[[Segment], int] | None = None) -> Message | None:
    """The message at an offset of the log, in DLedger that of an entry's body; None without one.

    The log ends in a segment at `end_of` it, by default at the segment's end.
    """
    for source, header_size in ((DLEDGER, ENTRY_HEADER_SIZE), (COMMITLOG, 0)):
        pos = offset - header_size
        segment = segment_at(segments, pos)
        if segment is None or segment.source != source or (end_of is not None and pos >= end_of(segment)):
            continue
        head = segment.read(pos, _HEAD_BYTES)
        body = head[header_size:]
        size = int.from_bytes(body[:4], "big", signed=True)
        header = entry_in(head, segment, pos) if header_size else None
        is_entry = not header_size or (header is not None and header.body_size == size)
        if not is_entry or not MIN_MESSAGE_SIZE <= size <= segment.end - offset:
            return None
        return message_in(body[:size] if size <= len(body) else segment.read(offset, size))
    return None


def segment_at(segments: list[Segment], pos: int) -> Segment | None:
    """The segment with position `pos`, or None; `segments` are in order."""
    place = bisect_right(segments, pos, key=lambda segment: segment.base) - 1
    return segments[place] if place >= 0 and pos < segments[place].end else None


class UnitBlock(NamedTuple):
    """Adjacent units of a file of a DLedger index, as records from index ``first`` on."""

    file: Segment
    first: int
    units: npt.NDArray[Any]

    @property
    def is_written(self) -> npt.NDArray[np.bool_]:
        """Which units are neither zeros nor the blank that 0.4.0 writes at the begin of an index."""
        words: npt.NDArray[np.uint64] = self.units.view("u8").reshape(len(self.units), -1)
        found: npt.NDArray[np.bool_] = (words != 0).any(axis=1)
        if self.first * INDEX_UNIT_SIZE == self.file.base and len(found):
            found[0] &= decode_blank(self.units[0].tobytes()) is None
        return found

    @property
    def is_entry(self) -> npt.NDArray[np.bool_]:
        """Which units are of an entry with their own index: others were not written, or are damaged."""
        units, own = self.units, range(self.first, self.first + len(self.units))
        is_magic = sum(units["magic"] == magic for magic in ENTRY_MAGICS) > 0
        found: npt.NDArray[np.bool_] = is_magic & (units["index"] == own) & (units["size"] >= ENTRY_HEADER_SIZE)
        return found


class DLedgerIndex:
    """The DLedger index of a node: 32 bytes for each entry, in mostly sparse files."""

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
        """The index of the first unit that was written; -1 without one."""
        stop = self.files[-1].end // INDEX_UNIT_SIZE if self.files else 0
        written = ((block.first, block.is_written) for block in self.blocks(0, stop))
        return next((first + int(found.argmax()) for first, found in written if found.any()), -1)

    def index_at(self, pos: int) -> int:
        """The index of the first unit that is of an entry at a position of the log or after it; -1 without one."""
        stop = self.files[-1].end // INDEX_UNIT_SIZE if self.files else 0
        blocks = ((each.first, each.is_entry & (each.units["pos"] >= pos)) for each in self.blocks(0, stop))
        return next((first + int(found.argmax()) for first, found in blocks if found.any()), -1)

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

    def blocks(
        self, first: int, stop: int, on_unreadable: OnUnreadable = ignore_error, *, with_holes: bool = False
    ) -> Iterator[UnitBlock]:
        """The units of the indexes ``[first, stop)`` that files have, in blocks of bounded size.

        Holes of sparse files are left out, unless `with_holes`. `on_unreadable` is called for what cannot be read.
        """
        for file in self.files:
            start, end = max(first * INDEX_UNIT_SIZE - file.base, 0), min(stop * INDEX_UNIT_SIZE, file.end) - file.base
            if start < end and file.base % INDEX_UNIT_SIZE == 0:
                yield from _blocks(file, start, end, on_unreadable, with_holes)

    def read(self, first: int, count: int) -> npt.NDArray[Any]:
        """`count` units from index `first` on, as records; zeros where none can be read."""
        data = bytearray(count * INDEX_UNIT_SIZE)
        for block in self.blocks(max(first, 0), first + count):
            at = (block.first - first) * INDEX_UNIT_SIZE
            data[at : at + block.units.nbytes] = block.units.tobytes()
        return decode_records(bytes(data), INDEX_UNIT)

    def extents(self) -> Iterator[tuple[Segment, int, int]]:
        """The first and the last index, exclusive, of the parts of files that are not holes. Raises UnreadableError."""
        for file in self.files:
            with opened_existing(file.path) as opened:
                size = min(file.size, opened.size()) if opened is not None else 0
                for start, end in opened.extents(0, size) if opened is not None else ():
                    first = (file.base + start) // INDEX_UNIT_SIZE
                    yield file, first, (file.base + min(end + INDEX_UNIT_SIZE - 1, size)) // INDEX_UNIT_SIZE


def _blocks(file: Segment, start: int, end: int, on_unreadable: OnUnreadable, with_holes: bool) -> Iterator[UnitBlock]:
    """The units in ``[start, end)`` of a file, block by block."""
    at = start
    try:
        with opened_existing(file.path) as opened:
            if opened is None:
                return
            for low, high in ((start, end),) if with_holes else opened.extents(start, end):
                at = max(at, low - low % INDEX_UNIT_SIZE)
                while at < high:
                    units = decode_records(opened.read(at, min(_BLOCK_BYTES, end - at)), INDEX_UNIT)
                    if not len(units):
                        return
                    yield UnitBlock(file, (file.base + at) // INDEX_UNIT_SIZE, units)
                    at += units.nbytes
    except UnreadableError as error:
        on_unreadable(error)


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
