"""One file of a CommitLog: written, made durable, and read back.

Messages stand one behind the other from the file's beginning. Behind the last one a filler (``int`` bytes up to the end
of the file, ``int`` -875286124) says that the log goes on in the next file; in the last file of the log zeros follow.
Every file has its full size, as a broker demands, and holes where nothing was written. Source: RocketMQ 5.3.3
``CommitLog``, ``MappedFileQueue.load``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, SEGMENT_NAME_DIGITS
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment
from pyspark_dledger.rocketmq.export.commit_log_part import Account, FilePart, is_intact
from pyspark_dledger.rocketmq.export.crc import joined_crc
from pyspark_dledger.rocketmq.export.forms import FileReport, PartReport, new_file
from pyspark_dledger.rocketmq.export.offsets import Piece, pieces_of_file

FOLDER = "commitlog"

_FILLER = struct.Struct(">ii")
_ROWS_AT_ONCE = 256 * 1024
# So few bytes that they stay in the processor's cache, and their memory is used again.
_CHECKED_AT_ONCE = 256 * 1024

Crcs = list[tuple[int, int]]
"""Size and CRC-32 of each piece of a file, in order."""


def file_name(base: int) -> str:
    """Where the file that begins at a position of the log lies, relative to the storePathRootDir."""
    return f"{FOLDER}/{base:0{SEGMENT_NAME_DIGITS}d}"


def write_part(part: FilePart, number: int, target: Path) -> PartReport:
    """Write the file of a part; no file where the part has no message that can be written.

    Raises StoreError where the source cannot be read, or where what was written reads back otherwise; MalformedError
    with mode=FAILFAST; OSError.
    """
    account = Account()
    files: tuple[FileReport, ...] = ()
    if part.hole is not None:
        account.skipped = 1
        account.skip_line(part.segment.base, None, part.hole)
    else:
        pieces = pieces_of_file(part, account)
        first = next(pieces, None)
        if first is not None:
            files = (_write_file(part, chain([first], pieces), account, target),)
    return PartReport(
        number,
        account.rows,
        account.skipped,
        tuple(account.first_skipped),
        files,
        part.end - part.start,
        notes=tuple(account.notes),
        counts=dict(account.counts),
    )


def write_empty_file(target: Path, base: int, size: int, is_last: bool) -> FileReport:
    """Write a file of a CommitLog without messages, which the log passes over or, where it is the last, goes on in."""
    path = file_name(base)
    with new_file(target, path) as temporary:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            crcs = _end_file(get_engine(), descriptor, 0, size, is_last)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return FileReport(path, size, joined_crc(crcs), 0)


def _write_file(part: FilePart, pieces: Iterator[Piece], account: Account, target: Path) -> FileReport:
    path, engine = file_name(part.segment.base), get_engine(part.engine)
    with new_file(target, path) as temporary:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            crcs, messages = _write(engine, descriptor, pieces)
            end = sum(size for size, _ in crcs)
            crcs += _end_file(engine, descriptor, end, part.segment.size, part.is_last)
            os.fsync(descriptor)
            _check_bytes(engine, descriptor, path, crcs)
        finally:
            os.close(descriptor)
        written = Segment(str(temporary), path, part.segment.base, part.segment.size, COMMITLOG)
        _check_messages(engine, written, part.segment.base + end, messages)
    return FileReport(path, part.segment.size, joined_crc(crcs), account.rows)


def _write(engine: Engine, descriptor: int, pieces: Iterator[Piece]) -> tuple[Crcs, int]:
    crcs: Crcs = []
    messages = end = 0
    for piece in pieces:
        data = piece.data.data
        _pwrite(descriptor, data, end)
        for start in range(0, len(data), _CHECKED_AT_ONCE):
            part = bytes(data[start : start + _CHECKED_AT_ONCE])
            crcs.append((len(part), engine.crc32(part)))
        end += len(data)
        messages += piece.messages
    return crcs, messages


def _end_file(engine: Engine, descriptor: int, end: int, size: int, is_last: bool) -> Crcs:
    """Give the file its size, and write the filler behind its messages if another file follows; what was written."""
    os.ftruncate(descriptor, size)
    if is_last:
        return []
    filler = _FILLER.pack(size - end, MESSAGE_MAGIC_BLANK)
    _pwrite(descriptor, filler, end)
    return [(len(filler), engine.crc32(filler))]


def _pwrite(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        wrote = os.pwrite(descriptor, view, offset)
        view, offset = view[wrote:], offset + wrote


def _check_bytes(engine: Engine, descriptor: int, path: str, crcs: Crcs) -> None:
    """Raises StoreError where a file does not hold the bytes that were written."""
    offset = 0
    for size, crc in crcs:
        data = os.pread(descriptor, size, offset)
        if len(data) != size or engine.crc32(data) != crc:
            raise StoreError(
                f"{path}: expected the {size} bytes at {offset} as they were written, found others: check the disk"
            )
        offset += size


def _check_messages(engine: Engine, written: Segment, end: int, messages: int) -> None:
    """Raises StoreError where a walk over a file does not find so many intact messages, one behind the other."""
    found, place = 0, written.base
    request = ScanRequest(
        written,
        written.base,
        end,
        ("kind", "pos", "size", "problem"),
        max_batch_rows=_ROWS_AT_ONCE,
        end_is_boundary=True,
    )
    for batch, _ in engine.scan(request):
        found += len(batch)
        place = batch["pos"][-1].as_py() + batch["size"][-1].as_py()
        if not is_intact(batch):
            bad = next(row for row in batch.to_pylist() if row["kind"] != "message" or row["problem"])
            raise StoreError(f"{written.name}: expected intact messages, found at {bad['pos']}: {bad['problem']}")
    if (found, place) != (messages, end):
        raise StoreError(
            f"{written.name}: expected {messages} messages up to {end}, found {found} up to {place}: does a broker "
            "change the log that is exported? Export it when it is stopped, or a copy"
        )
