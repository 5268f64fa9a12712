"""Writes one file of a restored log: copies its pieces from their donors, adds fillers, and reads it back.

As Java writes it: entries from the start, a blank where the log continues in the next file, and zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyspark_dledger.common.durable import sync_file
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.codec import encode_blank, encode_entry, record_dtype, record_struct
from pyspark_dledger.format.layout import (
    BLANK,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    MAGIC_NORMAL,
    MESSAGE_MAGIC_BLANK,
    MIN_BLANK_SIZE,
    SEGMENT_NAME_DIGITS,
)
from pyspark_dledger.format.message import host_sizes
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log.copies.segment_copy import SegmentCopy, read_copy
from pyspark_dledger.log.io.files import open_file
from pyspark_dledger.log.salvage.lost_entries import LostEntry
from pyspark_dledger.log.salvage.pieces import Piece
from pyspark_dledger.log.salvage.repairs import Repair
from pyspark_dledger.log.salvage.restored_log import Extent, end_of, start_of
from pyspark_dledger.rocketmq.export.direct_file import DirectFile
from pyspark_dledger.rocketmq.export.forms import FileReport, PartReport
from pyspark_dledger.rocketmq.export.target_folder import file_report, left_path, new_file, read_back_error
from pyspark_dledger.rocketmq.salvage.fillers import entry_filler, message_fillers

_READ_BYTES = 8 * 1024 * 1024
_BLANK = record_struct(BLANK)
_SYS_FLAG_AT, _BORN_HOST_AT = 36, 48


@dataclass(frozen=True)
class FilePart:
    """A file of the restored log: its extents by position, and the path of each donor's file by its number.

    ``path`` is relative to the target. The log continues in the next file if ``has_blank``.
    """

    path: str
    base: int
    size: int
    source: str
    extents: tuple[Extent, ...]
    donors: dict[int, str]
    has_blank: bool
    has_messages: bool
    engine: str


def write_file(part: FilePart, number: int, target: Path) -> PartReport:
    """Write a file and its index units, and read them back.

    Raises StoreError if a source changed since the plan or the disk returns other bytes, OSError.
    """
    with ExitStack() as opened:
        temporary = opened.enter_context(new_file(target, part.path))
        with DirectFile(temporary) as file:
            size = crc = 0
            for data in _contents(part):
                crc = crc32(data, crc)
                size += len(data)
                file.append(data)
            file.finish(part.size)
        rows, units = _checked(part, temporary)
        found = _crc_of(temporary, size)
        if found != crc:
            raise read_back_error(part.path, f"CRC-32 {crc:08x}", f"{found:08x}")
        left = None
        if part.source == DLEDGER:
            unit_file = opened.enter_context(new_file(target, left_path(number)))
            unit_file.write_bytes(units)
            sync_file(unit_file)
            left = file_report(unit_file, left_path(number), 0)
    lost = sum(isinstance(extent, LostEntry) for extent in part.extents)
    file_written = FileReport(part.path, part.size, crc, rows)
    return PartReport(number, rows, lost, (), (file_written,), part.size, left=left)


def _contents(part: FilePart) -> Iterator[bytes]:
    """The bytes of the file up to its zeros."""
    at = part.base
    stored = 0
    with ExitStack() as opened:
        files = {number: opened.enter_context(open_file(path)) for number, path in part.donors.items()}
        for extent in part.extents:
            if isinstance(extent, LostEntry):
                filler = entry_filler(extent, part.has_messages, stored) if part.source == DLEDGER else None
                yield filler if filler is not None else message_fillers(extent, stored)
                at = extent.pos + extent.size
                continue
            file = files[extent.donor]
            if isinstance(extent, Repair):
                body = file.read(extent.pos + ENTRY_HEADER_SIZE - part.base, extent.size - ENTRY_HEADER_SIZE)
                yield encode_entry(extent.index, extent.term, extent.pos, body)
                at = end_of(extent)
                continue
            for start in range(extent.start, extent.end, _READ_BYTES):
                size = min(_READ_BYTES, extent.end - start)
                data = file.read(start - part.base, size)
                if len(data) != size:
                    raise StoreError(f"{part.donors[extent.donor]}: the file has become shorter: salvage again")
                yield data
            header = ENTRY_HEADER_SIZE if part.source == DLEDGER else 0
            if part.has_messages:
                stored = _stored_at(file.read(extent.last_pos + header - part.base, 88)) or stored
            at = extent.end
    rest = part.base + part.size - at
    if part.has_blank and rest >= MIN_BLANK_SIZE:
        yield encode_blank(rest) if part.source == DLEDGER else _BLANK.pack(rest, MESSAGE_MAGIC_BLANK)


def _stored_at(head: bytes) -> int:
    """The storeTimestamp of a message in milliseconds, by its first bytes; 0 if these are too few."""
    if len(head) < 88:
        return 0
    born, _ = host_sizes(int.from_bytes(head[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big"))
    at = _BORN_HOST_AT + born
    return max(int.from_bytes(head[at : at + 8], "big", signed=True), 0)


def _checked(part: FilePart, file: Path) -> tuple[int, bytes]:
    """The number of entries in the written file and their index units.

    Raises StoreError unless it has the planned entries, all intact.
    """
    segment = Segment(str(file), file.name, part.base, part.size, part.source)
    end = end_of(part.extents[-1])
    entries, damages = read_copy(SegmentCopy(0, segment, end), part.engine)
    kept_so = [piece for piece in part.extents if isinstance(piece, Piece) and piece.why == "writtenSo"]
    bad = [each for each in damages if not any(piece.start <= each.start < piece.end for piece in kept_so)]
    start = start_of(part.extents[0])
    ends = entries.pos + entries.size
    is_contiguous = (
        len(entries) > 0 and entries.pos[0] == start and ends[-1] == end and (entries.pos[1:] == ends[:-1]).all()
    )
    if bad or not is_contiguous:
        text = bad[0].problem if bad else f"no contiguous entries from {start} to {end}"
        raise StoreError(
            f"{part.path}: expected the planned entries in the new file, found: {text}: a source changed meanwhile, or "
            "the disk is damaged: salvage again"
        )
    if part.source != DLEDGER:
        return len(entries), b""
    units = np.zeros(len(entries), record_dtype(INDEX_UNIT))
    units["magic"] = MAGIC_NORMAL
    for name in ("pos", "size", "index", "term"):
        units[name] = getattr(entries, name)
    return len(entries), units.tobytes()


def _crc_of(file: Path, size: int) -> int:
    """The CRC-32 of the first bytes of a file."""
    crc = 0
    with file.open("rb") as stream:
        while size > 0 and (data := stream.read(min(size, _READ_BYTES))):
            crc = crc32(data, crc)
            size -= len(data)
    return crc


def segment_name(base: int) -> str:
    """The name of the file at a position."""
    return f"{base:0{SEGMENT_NAME_DIGITS}d}"
