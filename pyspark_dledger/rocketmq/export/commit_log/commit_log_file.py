"""Writes one file of a CommitLog, syncs it and reads it back.

Messages follow each other from the start of the file. After the last one, a filler (``int`` bytes up to the end of the
file, ``int`` -875286124) says that the log continues in the next file; the last file of the log ends in zeros. Each
file has its full size, which brokers require, and is sparse. Source: RocketMQ 5.3.3 ``CommitLog``,
``MappedFileQueue.load``.
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
from pyspark_dledger.format.dispatched_rows import DISPATCHED_COLUMNS
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.layout import MESSAGE_MAGIC_BLANK, segment_name
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment
from pyspark_dledger.rocketmq.dispatch.log_part import all_rows, part_of
from pyspark_dledger.rocketmq.export.commit_log.commit_log_part import FilePart, PartOutcome, is_intact
from pyspark_dledger.rocketmq.export.commit_log.offsets import OutputBytes, pieces_of_file
from pyspark_dledger.rocketmq.jobs.direct_file import DirectFile, FileWindow
from pyspark_dledger.rocketmq.jobs.manifest import FileReport, PartReport
from pyspark_dledger.rocketmq.jobs.target_folder import file_report, left_path, new_file
from pyspark_dledger.rocketmq.rebuild.dispatched_units import save_units, units_of_chunk

FOLDER = "commitlog"

_FILLER = struct.Struct(">ii")
_SPAN_BYTES = 32 * 1024 * 1024
_CHECKED_COLUMNS = ("kind", "pos", "size", "problem", "problemCode")


class _Span(NamedTuple):
    """Bytes ``[start, end)`` of a file: whole messages, or the filler and no message.

    ``crc`` is the CRC-32 of the file up to ``end``.
    """

    start: int
    end: int
    messages: int
    crc: int


class _NoMessage(Exception):
    """The file would have no message, so it is not written."""


def file_name(base: int) -> str:
    """The path of the file that begins at position `base` of the log, relative to the storePathRootDir."""
    return f"{FOLDER}/{segment_name(base)}"


def write_part(part: FilePart, number: int, target: Path) -> PartReport:
    """Write the file of a part, if the part has messages that can be written.

    Raises StoreError if the source cannot be read or the file differs when it is read back, MalformedError with
    mode=FAILFAST, OSError.
    """
    outcome = PartOutcome()
    file: FileReport | None = None
    left: FileReport | None = None
    if part.hole is not None:
        outcome.skipped = 1
        outcome.skip_line(part.segment.base, None, part.hole)
    else:
        with suppress(_NoMessage):
            file, left = _write_file(part, outcome, number, target)
    return PartReport(
        number,
        outcome.rows,
        outcome.skipped,
        tuple(outcome.first_skipped),
        (file,) if file is not None else (),
        part.end - part.start,
        notes=tuple(outcome.notes),
        counts=dict(outcome.counts),
        left=left,
    )


def write_empty_file(target: Path, base: int, size: int, is_last: bool) -> FileReport:
    """Write a file without messages: brokers skip it or, if it is the last, append to it."""
    path = file_name(base)
    with new_file(target, path) as temporary, DirectFile(temporary) as file:
        spans = list(_end_file(file, _Span(0, 0, 0, 0), size, is_last))
        for _ in _read_back(file, path, spans):
            pass
    return FileReport(path, size, spans[-1].crc if spans else 0, 0)


def _write_file(
    part: FilePart, outcome: PartOutcome, number: int, target: Path
) -> tuple[FileReport, FileReport | None]:
    """Write the file, and the units for queues and index if they are built. Raises _NoMessage."""
    path, engine = file_name(part.segment.base), get_engine(part.engine)
    with ExitStack() as opened:
        temporary = opened.enter_context(new_file(target, path))
        file = opened.enter_context(DirectFile(temporary))
        spans = list(_write(file, pieces_of_file(part, outcome, file.reserve)))
        if not spans[-1].messages:
            raise _NoMessage
        spans += _end_file(file, spans[-1], part.segment.size, part.is_last)
        checked = _checked(engine, file, path, part, spans)
        left = None
        if part.units is None:
            for _ in checked:
                pass
        else:
            left_temporary = opened.enter_context(new_file(target, left_path(number)))
            with left_temporary.open("xb") as stream:
                for request, batch in checked:
                    chunk = part_of(engine, request, batch, **part.units.arguments)
                    save_units(stream, units_of_chunk(part.units, chunk))
            sync_file(left_temporary)
            messages = sum(span.messages for span in spans)
            left = file_report(left_temporary, left_path(number), messages)
    return FileReport(path, part.segment.size, spans[-1].crc, outcome.rows), left


def _write(file: DirectFile, pieces: Iterator[OutputBytes]) -> Iterator[_Span]:
    start = end = messages = crc = 0
    for piece in pieces:
        size = len(piece.data)
        if end - start + size > _SPAN_BYTES and messages:
            yield _Span(start, end, messages, crc)
            start, messages = end, 0
        crc = crc32(piece.data, crc)
        if piece.is_in_place:
            file.advance(size)
        else:
            file.append(piece.data)
        end += size
        messages += piece.messages
    yield _Span(start, end, messages, crc)


def _end_file(file: DirectFile, last: _Span, size: int, is_last: bool) -> Iterator[_Span]:
    """Write the filler if another file follows, extend the file to its size, and sync it."""
    if not is_last:
        filler = _FILLER.pack(size - last.end, MESSAGE_MAGIC_BLANK)
        file.append(filler)
        yield _Span(last.end, last.end + len(filler), 0, crc32(filler, last.crc))
    file.finish(size)


def _read_back(file: DirectFile, path: str, spans: list[_Span]) -> Iterator[tuple[_Span, FileWindow]]:
    """Each span with its bytes on disk. Raises StoreError if they differ from the written ones."""
    crc = 0
    windows = file.read([(span.start, span.end) for span in spans])
    for span, window in zip(spans, windows, strict=True):
        data = window.data(span.start, span.end)
        crc = crc32(data, crc)
        if crc != span.crc or len(data) != span.end - span.start:
            raise StoreError(
                f"{path}: bytes {span.start} to {span.end} differ from the written ones when read back: expected "
                f"CRC-32 {span.crc:08x}, found {crc:08x}; check the disk"
            )
        yield span, window


def _checked(
    engine: Engine, file: DirectFile, path: str, part: FilePart, spans: list[_Span]
) -> Iterator[tuple[ScanRequest, pa.RecordBatch]]:
    """The rows of each span as read back. Raises StoreError unless they are contiguous intact messages."""
    columns = _CHECKED_COLUMNS if part.units is None else tuple(dict.fromkeys((*DISPATCHED_COLUMNS, *_CHECKED_COLUMNS)))
    base = part.segment.base
    for span, window in _read_back(file, path, spans):
        if not span.messages:
            continue
        segment = Segment.local(window.path, path, base + window.start, window.end - window.start, COMMITLOG)
        request = ScanRequest(segment, base + span.start, base + span.end, columns, end_is_boundary=True)
        batch = all_rows(engine, request)
        _check_messages(path, batch, request.end, span.messages)
        yield request, batch


def _check_messages(path: str, batch: pa.RecordBatch, end: int, messages: int) -> None:
    """Raises StoreError unless the rows are that many intact messages and end at position `end` of the log."""
    if not is_intact(batch):
        bad = next(row for row in batch.to_pylist() if row["kind"] != "message" or row["problem"])
        raise StoreError(f"{path}: expected intact messages, found at {bad['pos']}: {bad['problem']}")
    last = batch["pos"][-1].as_py() + batch["size"][-1].as_py() if len(batch) else None
    if (len(batch), last) != (messages, end):
        raise StoreError(
            f"{path}: expected {messages} messages up to {end}, found {len(batch)} up to {last}: does a broker write "
            "the exported log? Stop it, or export a copy"
        )
