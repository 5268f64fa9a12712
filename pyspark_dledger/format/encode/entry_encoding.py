"""Packs bodies, encodes them as entries, and checks entries of another node: the reference of these calls of `Engine`.

Blocks of bodies and entries come from the network, so every length and field is checked.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import (
    CHANNEL_OFFSET,
    MEMBERS,
    EntryHeader,
    crc32,
    decode_entry_header,
    header_kind,
    record_struct,
    signed32,
)
from pyspark_dledger.format.encode.encoded import (
    LENGTH_SIZE,
    MAX_BLOCK_SIZE,
    MAX_BODY_SIZE,
    Bodies,
    Buffer,
    CheckedEntries,
    EncodedEntries,
)
from pyspark_dledger.format.message import has_message_magic, message_in

_HEADER = record_struct(layout.ENTRY_HEADER)
_UNIT = record_struct(layout.INDEX_UNIT)
_CRC = struct.Struct(">I")
_MAX_POSITION = 2**62  # also of indexes: no sum of them overflows
_SECTOR = 512


class _Entry(NamedTuple):
    """One of several consecutive entries: its number, and the offset where it begins."""

    number: int
    offset: int
    header: EntryHeader


def pack_bodies(bodies: Sequence[Buffer]) -> Bodies:
    views = [_bytes_of(body, f"body {number}") for number, body in enumerate(bodies)]
    if not views:
        raise ValueError("expected at least one body, found none")
    for number, view in enumerate(views):
        _check_length(number, len(view))
    size = LENGTH_SIZE * len(views) + sum(map(len, views))
    if size > MAX_BLOCK_SIZE:
        raise ValueError(f"expected at most {MAX_BLOCK_SIZE} bytes of bodies with their lengths, found {size}")
    return Bodies.of(views)


def unpack_bodies(bodies: Bodies) -> list[bytes]:
    count = _count_of(bodies)
    block = _bytes_of(bodies.block, "block")
    unpacked = []
    end = LENGTH_SIZE * count
    for length in _lengths(count, block):
        start, end = end, end + length
        unpacked.append(bytes(block[start:end]))
    return unpacked


def encode_entries(bodies: Bodies, first: int, index: int, term: int, pos: int, space: int) -> EncodedEntries:
    count = _count_of(bodies)
    first = _integer("first", first, 0, count - 1)
    index = _integer("index", index, 0, _MAX_POSITION)
    term = _integer("term", term, -1, INT64_MAX)
    pos = _integer("pos", pos, 0, _MAX_POSITION)
    space = _integer("space", space, 0, _MAX_POSITION)
    block = _bytes_of(bodies.block, "block")
    lengths = _lengths(count, block)
    start = LENGTH_SIZE * count + sum(lengths[:first])
    data: list[Buffer] = []
    units = bytearray()
    for length in lengths[first:]:
        size = layout.ENTRY_HEADER_SIZE + length
        if size + layout.MIN_BLANK_SIZE > space:
            break
        data.append(_HEADER.pack(layout.MAGIC_NORMAL, size, index, term, pos, 0, 0, 0, length))
        data.append(block[start : start + length])
        units += _UNIT.pack(layout.MAGIC_NORMAL, pos, size, index, term)
        index, pos, space, start = index + 1, pos + size, space - size, start + length
    return EncodedEntries(len(units) // layout.INDEX_UNIT_SIZE, bytearray().join(data), units)


def check_entries(data: Buffer, index: int, pos: int, min_term: int, max_term: int) -> CheckedEntries:
    index = _integer("index", index, 0, _MAX_POSITION)
    pos = _integer("pos", pos, 0, _MAX_POSITION)
    term = _integer("min_term", min_term, INT64_MIN, INT64_MAX)
    max_term = _integer("max_term", max_term, INT64_MIN, INT64_MAX)
    view = _bytes_of(data, "entries")
    if not view:
        raise ValueError("expected at least one entry, found none")
    units, members_at = bytearray(), -1
    for entry in _entries(view):
        header = entry.header
        _check_value(entry, "index", index, header.index)
        _check_value(entry, "pos", pos, header.pos)
        if not term <= header.term <= max_term:
            raise ValueError(f"entry {entry.number}: expected term from {term} to {max_term}, found {header.term}")
        units += _UNIT.pack(layout.MAGIC_NORMAL, pos, header.size, index, header.term)
        index, pos, term = index + 1, pos + header.size, header.term
        if header.channel == MEMBERS and members_at < 0:
            members_at = entry.offset
    return CheckedEntries(len(units) // layout.INDEX_UNIT_SIZE, term, units, members_at)


def find_torn(data: Buffer, pos: int) -> int | None:
    pos = _integer("pos", pos, 0, _MAX_POSITION)
    view = _bytes_of(data, "entries")
    for entry in _entries(view):
        stored = entry.header.body_crc
        if stored:
            if signed32(crc32(_body_of(view, entry))) != stored:
                return entry.offset
            continue
        start, end = entry.offset + layout.ENTRY_HEADER_SIZE, entry.offset + entry.header.size
        if start == end and not header_kind(entry.header):
            # Channel and chainCrc of a control entry may be lost, wholly or in part.
            seal = entry.offset + CHANNEL_OFFSET
            if _has_wrong_seal(entry.header) or -(pos + seal) % _SECTOR < 8:
                return entry.offset
        while start < end:
            sector_end = min(end, start + _SECTOR - (pos + start) % _SECTOR)
            if view[start:sector_end].tobytes().count(0) == sector_end - start:
                return entry.offset
            start = sector_end
    return None


def find_damaged(data: Buffer) -> int | None:
    view = _bytes_of(data, "entries")
    for entry in _entries(view):
        stored, body = entry.header.body_crc, _body_of(view, entry)
        if _has_wrong_seal(entry.header):
            return entry.offset
        if signed32(crc32(body)) != stored if stored else _is_damaged_message(body):
            return entry.offset
    return None


def find_wrong_body(data: Buffer, needs_crc: bool = False) -> int | None:
    view = _bytes_of(data, "entries")
    for entry in _entries(view):
        stored = entry.header.body_crc
        if (stored or needs_crc) and signed32(crc32(_body_of(view, entry))) != stored:
            return entry.offset
        if _has_wrong_seal(entry.header):
            return entry.offset
    return None


def _has_wrong_seal(header: EntryHeader) -> bool:
    """Whether an entry with bodyCrc has another channel and chainCrc than 0 or those of a control entry.

    The bodyCrc of an empty body is 0.
    """
    has_crc = header.body_crc or not header.body_size
    return bool(has_crc and (header.channel or header.chain_crc)) and not header_kind(header)


def write_body_crcs(data: bytearray) -> None:
    view = _bytes_of(data, "entries")
    for entry in _entries(view):
        _CRC.pack_into(view, entry.offset + layout.BODY_CRC_OFFSET, crc32(_body_of(view, entry)))


def _body_of(view: memoryview, entry: _Entry) -> bytes:
    return view[entry.offset + layout.ENTRY_HEADER_SIZE : entry.offset + entry.header.size].tobytes()


def _is_damaged_message(body: bytes) -> bool:
    """Whether a body begins as a message, but cannot be parsed or does not match its CRC."""
    if not has_message_magic(body, 0, len(body)):
        return False
    message = message_in(body)
    return message is None or not message.has_right_crc


def _entries(data: memoryview) -> Iterator[_Entry]:
    """The entries in `data`. Raises ValueError at the first incomplete or invalid one."""
    number = offset = 0
    while offset < len(data):
        remaining = len(data) - offset
        if remaining < layout.ENTRY_HEADER_SIZE:
            raise ValueError(f"entry {number}: expected a header of 48 bytes, found {remaining} bytes")
        header = decode_entry_header(bytes(data[offset : offset + layout.ENTRY_HEADER_SIZE]))
        _check_frame(number, header, remaining)
        yield _Entry(number, offset, header)
        number, offset = number + 1, offset + header.size


def _check_frame(number: int, header: EntryHeader, remaining: int) -> None:
    size, body_size = header.size, header.body_size
    if header.magic != layout.MAGIC_NORMAL:
        raise ValueError(f"entry {number}: expected magic {layout.MAGIC_NORMAL}, found {header.magic}")
    if body_size < 0 or size != layout.ENTRY_HEADER_SIZE + body_size:
        raise ValueError(f"entry {number}: expected size 48 + bodySize {body_size}, found {size}")
    if size > layout.MAX_ENTRY_SIZE:
        raise ValueError(f"entry {number}: expected size of at most {layout.MAX_ENTRY_SIZE}, found {size}")
    if size > remaining:
        raise ValueError(f"entry {number}: expected {size} bytes, found {remaining} bytes")


def _check_value(entry: _Entry, name: str, expected: int, found: int) -> None:
    if found != expected:
        raise ValueError(f"entry {entry.number}: expected {name} {expected}, found {found}")


def _lengths(count: int, block: memoryview) -> tuple[int, ...]:
    """The checked lengths in bytes at the start of a block."""
    if LENGTH_SIZE * count > len(block):
        raise ValueError(f"expected {LENGTH_SIZE * count} bytes of lengths for {count} bodies, found {len(block)}")
    lengths: tuple[int, ...] = struct.unpack_from(f">{count}I", block)
    for number, length in enumerate(lengths):
        _check_length(number, length)
    size = LENGTH_SIZE * count + sum(lengths)
    if size != len(block):
        raise ValueError(f"expected {size} bytes of bodies with their lengths, found {len(block)}")
    return lengths


def _check_length(number: int, length: int) -> None:
    if length > MAX_BODY_SIZE:
        raise ValueError(f"expected body {number} of at most {MAX_BODY_SIZE} bytes, found {length}")


def _count_of(bodies: Bodies) -> int:
    return _integer("count", bodies.count, 1, MAX_BLOCK_SIZE // LENGTH_SIZE)


def _integer(name: str, value: int, low: int, high: int) -> int:
    value = operator.index(value)
    if not low <= value <= high:
        raise ValueError(f"expected {name} from {low} to {high}, found {value}")
    return value


def _bytes_of(data: Buffer, name: str) -> memoryview:
    """The contiguous bytes of an object. Raises TypeError if it has none."""
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is None or not view.c_contiguous:
        raise TypeError(f"expected contiguous bytes as {name}, found {type(data).__name__}")
    is_plain = view.ndim == 1 and view.format == "B"
    return view if is_plain else memoryview(view.tobytes())
