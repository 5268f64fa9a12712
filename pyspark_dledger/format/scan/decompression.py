"""Decompresses message bodies in bounded pieces: zlib, LZ4 frames and Zstandard.

pyarrow's streams do not tell where a frame ends, and their result for a truncated stream differs between versions. So
the frames of LZ4 and Zstandard are walked here first. That finds truncated streams, and bytes after the last frame,
which Java ignores.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa

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
