"""Decompresses the bodies that an engine's scan left compressed, within limits; failures become problems.

pyarrow's streams do not tell where a frame ends, and their result for a truncated stream differs between versions. So
the frames of LZ4 and Zstandard are walked here first. That finds truncated streams, and bytes after the last frame,
which Java ignores.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.facts import PROBLEM_COLUMNS, Fact, ProblemCode
from pyspark_dledger.format.layout import COMPRESSIONS
from pyspark_dledger.format.scan.row_values import malformed
from pyspark_dledger.format.spec import Compressed, ScanRequest

# The largest value of Arrow's binary type, in bytes.
_MAX_VALUE = 2**31 - 1


class _Body(NamedTuple):
    """A decompressed body; ``data`` is None with a problem, and empty if only the check was requested."""

    data: bytes | None
    problem: Fact | None = None
    name: str = ""  # of the codec, for the problem's sentence
    reason: str = ""


def expand(
    batches: Iterable[tuple[pa.RecordBatch, list[Compressed]]], request: ScanRequest
) -> Iterator[pa.RecordBatch]:
    """The batches of a scan, with decompressed bodies.

    A body that cannot be decompressed, or that exceeds ``request.max_body_bytes``, becomes null, and its row gets a
    problem unless it has one. DROPMALFORMED drops such rows; FAILFAST raises MalformedError after the rows before.
    Batches are cut so that each has at most ``request.max_batch_bytes`` decompressed bytes, or one body.
    """
    for batch, compressed in batches:
        if compressed:
            yield from _expand(batch, compressed, request)
        else:
            yield batch


def _expand(batch: pa.RecordBatch, compressed: list[Compressed], request: ScanRequest) -> Iterator[pa.RecordBatch]:
    keep_data = "body" in request.columns
    begin = size = 0
    bodies: dict[int, _Body] = {}
    failure: DLedgerError | None = None
    for item in compressed:
        body = _decompress(item, request.max_body_bytes, keep_data)
        if body.problem and request.mode == "FAILFAST":
            failure = malformed(request, "message", item.pos, body.problem.sentence(body.name, body.reason))
            batch = batch.slice(0, item.row)
            break
        length = len(body.data or b"")
        if size + length > request.max_batch_bytes and item.row > begin:
            yield from _rebuild(batch.slice(begin, item.row - begin), begin, bodies, request)
            begin, size, bodies = item.row, 0, {}
        bodies[item.row] = body
        size += length
    yield from _rebuild(batch.slice(begin), begin, bodies, request)
    if failure:
        raise failure


def _decompress(item: Compressed, max_bytes: int, keep_data: bool) -> _Body:
    codec = COMPRESSIONS.get(item.type)
    if codec is None:
        return _Body(None, Fact(ProblemCode.COMPRESSION_TYPE, 0, 0, item.type))
    max_bytes = min(max_bytes, _MAX_VALUE)
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in decompress(codec, item.stored):
            size += len(piece)
            if size > max_bytes:
                return _Body(None, Fact(ProblemCode.BODY_SIZE, 0, max_bytes))
            if keep_data:
                pieces.append(piece)
    except DecompressionError as error:
        fact = Fact(ProblemCode.NOT_DECOMPRESSED, 0, len(item.stored))
        return _Body(None, fact, codec, str(error))
    return _Body(b"".join(pieces))


def _rebuild(
    batch: pa.RecordBatch, begin: int, bodies: dict[int, _Body], request: ScanRequest
) -> Iterator[pa.RecordBatch]:
    """Put bodies and their problems into ``batch``, which begins at row ``begin`` of the scan's batch."""
    by_row = {row - begin: body for row, body in bodies.items()}
    problems = {
        row: body.problem.columns(body.name, body.reason) for row, body in by_row.items() if body.problem is not None
    }
    if request.mode == "DROPMALFORMED" and problems:
        kept = [row for row in range(batch.num_rows) if row not in problems]
        by_row = {new: by_row[old] for new, old in enumerate(kept) if old in by_row}
        batch, problems = batch.take(pa.array(kept, pa.int64())), {}
    if "body" in request.columns:
        batch = _replace(batch, "body", {row: body.data for row, body in by_row.items()})
    for name in PROBLEM_COLUMNS:
        if name in request.columns:
            known = batch.column(name)
            new = {row: values[name] for row, values in problems.items() if not known[row].is_valid}
            batch = _replace(batch, name, new)
    if batch.num_rows:
        yield batch


def _replace(batch: pa.RecordBatch, name: str, values: dict[int, Any]) -> pa.RecordBatch:
    """``batch`` with some values of a column replaced."""
    if not values:
        return batch
    column = batch.column(name)
    parts: list[pa.Array] = []
    at = 0
    for row, value in sorted(values.items()):
        parts += [column.slice(at, row - at), pa.array([value], column.type)]
        at = row + 1
    parts.append(column.slice(at))
    return batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), pa.concat_arrays(parts))


_CHUNK = 1024 * 1024
_TRUNCATED = "a truncated stream"

_LZ4_MAGIC = 0x184D2204
_ZSTD_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGICS = range(0x184D2A50, 0x184D2A60)


class DecompressionError(Exception):
    """The bytes cannot be decompressed; the text is the reason in a few words."""


def decompress(codec: str, stored: bytes) -> Iterator[bytes]:
    """The decompressed bytes in pieces of at most 1 MiB. ``codec`` is ``zlib``, ``lz4`` or ``zstd``.

    Bytes after the end of the stream are ignored. An invalid or truncated stream raises DecompressionError, possibly
    after some pieces.
    """
    if codec == "zlib":
        return _inflate(stored)
    return _read_frames(codec, stored)


def _inflate(stored: bytes) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    rest = stored
    while not stream.eof:
        try:
            piece = stream.decompress(rest, _CHUNK)
        except zlib.error as error:
            raise DecompressionError(_one_line(str(error).rpartition(": ")[2])) from error
        rest = stream.unconsumed_tail
        if piece:
            yield piece
        elif not stream.eof:
            raise DecompressionError(_TRUNCATED)


def _read_frames(codec: str, stored: bytes) -> Iterator[bytes]:
    end = _frames_end(stored, *{"lz4": (_LZ4_MAGIC, _lz4_frame_end), "zstd": (_ZSTD_MAGIC, _zstd_frame_end)}[codec])
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored).slice(0, end)), codec) as stream:
            while piece := stream.read(_CHUNK):
                yield piece
    except (OSError, pa.ArrowException) as error:
        raise DecompressionError(_one_line(str(error))) from error


def _frames_end(stored: bytes, magic: int, frame_end: Callable[[bytes, int], int]) -> int:
    """The end of the last complete frame, skippable frames included."""
    at = 0
    try:
        while True:
            found = _little(stored, at, 4) if len(stored) - at >= 4 else None
            if found == magic:
                at = frame_end(stored, at + 4)
            elif found in _SKIPPABLE_MAGICS:
                at = _inside(stored, at + 8 + _little(stored, at + 4, 4))
            elif at > 0:
                return at
            elif found is None:
                raise DecompressionError(_TRUNCATED)
            else:
                raise DecompressionError(f"the magic {found:#010x}")
    except IndexError:
        raise DecompressionError(_TRUNCATED) from None


def _lz4_frame_end(stored: bytes, at: int) -> int:
    """LZ4 Frame Format 1.6.3: descriptor, blocks up to an end mark, checksum."""
    flags = stored[at]
    block_checksum, content_size, content_checksum, dictionary = (flags >> bit & 1 for bit in (4, 3, 2, 0))
    at += 3 + 8 * content_size + 4 * dictionary
    while size := _little(stored, at, 4):
        at += 4 + (size & 0x7FFFFFFF) + 4 * block_checksum
    return _inside(stored, at + 4 + 4 * content_checksum)


def _zstd_frame_end(stored: bytes, at: int) -> int:
    """RFC 8878: descriptor, blocks up to the last one, checksum."""
    descriptor = stored[at]
    single_segment = descriptor >> 5 & 1
    content_size = (single_segment, 2, 4, 8)[descriptor >> 6]
    at += 1 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size
    last = 0
    while not last:
        block = _little(stored, at, 3)
        last, is_run, size = block & 1, (block >> 1 & 3) == 1, block >> 3
        at += 3 + (1 if is_run else size)
    return _inside(stored, at + 4 * (descriptor >> 2 & 1))


def _little(stored: bytes, at: int, length: int) -> int:
    _inside(stored, at + length)
    return int.from_bytes(stored[at : at + length], "little")


def _inside(stored: bytes, end: int) -> int:
    if end > len(stored):
        raise IndexError(end)
    return end


def _one_line(text: str) -> str:
    return " ".join(text.split())
