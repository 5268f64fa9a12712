"""One file of a CommitLog: written, made durable, and read back.

Messages stand one behind the other from the file's beginning. Behind the last one a filler (``int`` bytes up to the end
of the file, ``int`` -875286124) says that the log goes on in the next file; in the last file of the log zeros follow.
Every file has its full size, as a broker demands, and holes where nothing was written. Source: RocketMQ 5.3.3
``CommitLog``, ``MappedFileQueue.load``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pyspark_dledger.common.durable import sync_file
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, SEGMENT_NAME_DIGITS
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment
from pyspark_dledger.rocketmq.dispatch.log_part import COLUMNS, all_rows, part_of
from pyspark_dledger.rocketmq.export.commit_log.commit_log_part import Account, FilePart, is_intact
from pyspark_dledger.rocketmq.export.commit_log.offsets import OutputBytes, pieces_of_file
from pyspark_dledger.rocketmq.export.direct_file import DirectFile, FileWindow
from pyspark_dledger.rocketmq.export.forms import FileReport, PartReport, file_report, left_path, new_file
from pyspark_dledger.rocketmq.rebuild.parts import TakenUnits, WantedUnits, taken_of, write_taken

FOLDER = "commitlog"

_FILLER = struct.Struct(">ii")
_READ_AT_ONCE = 32 * 1024 * 1024
_CHECKED_COLUMNS = ("kind", "pos", "size", "problem")


class _Stretch(NamedTuple):
    """What was written to bytes ``[start, end)`` of a file: whole messages, or no message and the filler.

    ``crc`` is the CRC-32 of the file up to there.
    """

    start: int
    end: int
    messages: int
    crc: int


class _NoMessage(Exception):
    """Ends the writing of a file that would have no message: none is to be there."""


def file_name(base: int) -> str:
    """Where the file that begins at a position of the log lies, relative to the storePathRootDir."""
    return f"{FOLDER}/{base:0{SEGMENT_NAME_DIGITS}d}"


def write_part(part: FilePart, number: int, target: Path) -> PartReport:
    """Write the file of a part; no file where the part has no message that can be written.

    Raises StoreError where the source cannot be read, or where what was written reads back otherwise; MalformedError
    with mode=FAILFAST; OSError.
    """
    account = Account()
    file: FileReport | None = None
    left: FileReport | None = None
    if part.hole is not None:
        account.skipped = 1
        account.skip_line(part.segment.base, None, part.hole)
    else:
        with suppress(_NoMessage):
            file, left = _write_file(part, account, number, target)
    return PartReport(
        number,
        account.rows,
        account.skipped,
        tuple(account.first_skipped),
        (file,) if file is not None else (),
        part.end - part.start,
        notes=tuple(account.notes),
        counts=dict(account.counts),
        left=left,
    )


def write_empty_file(target: Path, base: int, size: int, is_last: bool) -> FileReport:
    """Write a file of a CommitLog without messages, which the log passes over or, where it is the last, goes on in."""
    path = file_name(base)
    with new_file(target, path) as temporary, DirectFile(temporary) as file:
        stretches = list(_end_file(file, _Stretch(0, 0, 0, 0), size, is_last))
        for _ in _read_back(file, path, stretches):
            pass
    return FileReport(path, size, stretches[-1].crc if stretches else 0, 0)


def _write_file(part: FilePart, account: Account, number: int, target: Path) -> tuple[FileReport, FileReport | None]:
    """The file, and the one that queues and index are made of, if they are. Raises _NoMessage."""
    path, engine = file_name(part.segment.base), get_engine(part.engine)
    with ExitStack() as opened:
        temporary = opened.enter_context(new_file(target, path))
        file = opened.enter_context(DirectFile(temporary))
        stretches = list(_write(file, pieces_of_file(part, account, file.room)))
        if not stretches[-1].messages:
            raise _NoMessage
        stretches += _end_file(file, stretches[-1], part.segment.size, part.is_last)
        checked = _checked(engine, file, path, part, stretches)
        left = None
        if part.wanted is None:
            for _ in checked:
                pass
        else:
            left_temporary = opened.enter_context(new_file(target, left_path(number)))
            with left_temporary.open("xb") as stream:
                for window in checked:
                    write_taken(stream, _taken(engine, part.wanted, *window))
            sync_file(left_temporary)
            messages = sum(stretch.messages for stretch in stretches)
            left = file_report(left_temporary, left_path(number), messages)
    return FileReport(path, part.segment.size, stretches[-1].crc, account.rows), left


def _write(file: DirectFile, pieces: Iterator[OutputBytes]) -> Iterator[_Stretch]:
    start = end = messages = crc = 0
    for piece in pieces:
        size = len(piece.data)
        if end - start + size > _READ_AT_ONCE and messages:
            yield _Stretch(start, end, messages, crc)
            start, messages = end, 0
        crc = crc32(piece.data, crc)
        if piece.is_in_room:
            file.keep(size)
        else:
            file.append(piece.data)
        end += size
        messages += piece.messages
    yield _Stretch(start, end, messages, crc)


def _end_file(file: DirectFile, last: _Stretch, size: int, is_last: bool) -> Iterator[_Stretch]:
    """Write the filler behind the messages if another file follows; give the file its size, and make it durable."""
    if not is_last:
        filler = _FILLER.pack(size - last.end, MESSAGE_MAGIC_BLANK)
        file.append(filler)
        yield _Stretch(last.end, last.end + len(filler), 0, crc32(filler, last.crc))
    file.finish(size)


def _read_back(file: DirectFile, path: str, stretches: list[_Stretch]) -> Iterator[tuple[_Stretch, FileWindow]]:
    """Each stretch with what the disk has of it. Raises StoreError where those are not the bytes that were written."""
    crc = 0
    windows = file.read([(stretch.start, stretch.end) for stretch in stretches])
    for stretch, window in zip(stretches, windows, strict=True):
        data = window.data(stretch.start, stretch.end)
        crc = crc32(data, crc)
        if crc != stretch.crc or len(data) != stretch.end - stretch.start:
            raise StoreError(
                f"{path}: expected the {stretch.end - stretch.start} bytes at {stretch.start} as they were written, "
                "found others: check the disk"
            )
        yield stretch, window


def _checked(
    engine: Engine, file: DirectFile, path: str, part: FilePart, stretches: list[_Stretch]
) -> Iterator[tuple[ScanRequest, pa.RecordBatch]]:
    """The rows of each stretch, as a walk over what was read back finds them: intact messages, one behind the other.

    Raises StoreError where that finds anything else.
    """
    columns = _CHECKED_COLUMNS if part.wanted is None else tuple(dict.fromkeys((*COLUMNS, *_CHECKED_COLUMNS)))
    base = part.segment.base
    for stretch, window in _read_back(file, path, stretches):
        if not stretch.messages:
            continue
        segment = Segment(window.path, path, base + window.start, window.end - window.start, COMMITLOG)
        request = ScanRequest(segment, base + stretch.start, base + stretch.end, columns, end_is_boundary=True)
        batch = all_rows(engine, request)
        _check_messages(path, batch, request.end, stretch.messages)
        yield request, batch


def _check_messages(path: str, batch: pa.RecordBatch, end: int, messages: int) -> None:
    """Raises StoreError where rows are not so many intact messages, which end at a position of the log."""
    if not is_intact(batch):
        bad = next(row for row in batch.to_pylist() if row["kind"] != "message" or row["problem"])
        raise StoreError(f"{path}: expected intact messages, found at {bad['pos']}: {bad['problem']}")
    place = batch["pos"][-1].as_py() + batch["size"][-1].as_py() if len(batch) else None
    if (len(batch), place) != (messages, end):
        raise StoreError(
            f"{path}: expected {messages} messages up to {end}, found {len(batch)} up to {place}: does a broker "
            "change the log that is exported? Export it when it is stopped, or a copy"
        )


def _taken(engine: Engine, wanted: WantedUnits, request: ScanRequest, batch: pa.RecordBatch) -> TakenUnits:
    return taken_of(engine, wanted, part_of(engine, request, batch, wanted.delays_ms))
