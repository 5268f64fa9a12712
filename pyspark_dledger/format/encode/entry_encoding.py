"""Entries on their way into a log: bodies packed, made into entries, and checked where they come from another node.

The reference of the native engine's calls: same results, and the same ValueError and TypeError texts. Blocks of bodies
and entries come from the wire, so nothing in them is believed.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import EntryHeader, decode_entry_header, record_struct
from pyspark_dledger.format.encode.encoded import (
    MAX_BLOCK_SIZE,
    MAX_BODY_SIZE,
    Bodies,
    Buffer,
    Checked,
    Encoded,
)

_HEADER = record_struct(layout.ENTRY_HEADER)
_UNIT = record_struct(layout.INDEX_UNIT)
_LENGTH_SIZE = 4
_HIGHEST = 2**62  # of indexes and positions: no sum of them overflows
_SECTOR = 512


class _Entry(NamedTuple):
    """One of several consecutive entries: which one, and where it begins in their bytes."""

    number: int
    offset: int
    header: EntryHeader


def pack_bodies(bodies: Sequence[Buffer]) -> Bodies:
    """Bodies as one block. Raises ValueError for none, for one above 4 MiB - 48 and for a block above 1 GiB."""
    views = [_bytes_of(body, f"body {number}") for number, body in enumerate(bodies)]
    if not views:
        raise ValueError("expected at least one body, found none")
    for number, view in enumerate(views):
        _check_length(number, len(view))
    size = _LENGTH_SIZE * len(views) + sum(map(len, views))
    if size > MAX_BLOCK_SIZE:
        raise ValueError(f"expected at most {MAX_BLOCK_SIZE} bytes of bodies with their lengths, found {size}")
    lengths = struct.pack(f">{len(views)}I", *map(len, views))
    return Bodies(len(views), b"".join([lengths, *views]))


def unpack_bodies(bodies: Bodies) -> list[bytes]:
    """The bodies of a block. Raises ValueError where its lengths do not fit it."""
    count = _count_of(bodies)
    block = _bytes_of(bodies.block, "block")
    unpacked = []
    end = _LENGTH_SIZE * count
    for length in _lengths(count, block):
        start, end = end, end + length
        unpacked.append(bytes(block[start:end]))
    return unpacked


def encode_entries(bodies: Bodies, first: int, index: int, term: int, pos: int, space: int) -> Encoded:
    """Bodies from ordinal `first` on as consecutive entries from `index` and `pos` on, as many as fit.

    One fits while it leaves 8 of the `space` bytes for a blank; none may. Raises ValueError for a block whose lengths
    do not fit it, and for numbers that no log has.
    """
    count = _count_of(bodies)
    first = _integer("first", first, 0, count - 1)
    index = _integer("index", index, 0, _HIGHEST)
    term = _integer("term", term, -1, INT64_MAX)
    pos = _integer("pos", pos, 0, _HIGHEST)
    space = _integer("space", space, 0, _HIGHEST)
    block = _bytes_of(bodies.block, "block")
    lengths = _lengths(count, block)
    start = _LENGTH_SIZE * count + sum(lengths[:first])
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
    return Encoded(len(units) // layout.INDEX_UNIT_SIZE, bytearray().join(data), units)


def check_entries(data: Buffer, index: int, pos: int, least_term: int, most_term: int) -> Checked:
    """What consecutive whole entries are, which begin with `index` at `pos`, and whose terms lie in the given range.

    Terms may not fall. Raises ValueError that names the entry by its ordinal, for every other bytes and for none.
    """
    index = _integer("index", index, 0, _HIGHEST)
    pos = _integer("pos", pos, 0, _HIGHEST)
    term = _integer("least term", least_term, INT64_MIN, INT64_MAX)
    most_term = _integer("most term", most_term, INT64_MIN, INT64_MAX)
    view = _bytes_of(data, "entries")
    if not view:
        raise ValueError("expected at least one entry, found none")
    units = bytearray()
    for entry in _entries(view):
        header = entry.header
        _check_value(entry, "index", index, header.index)
        _check_value(entry, "pos", pos, header.pos)
        if not term <= header.term <= most_term:
            raise ValueError(f"entry {entry.number}: expected term from {term} to {most_term}, found {header.term}")
        units += _UNIT.pack(layout.MAGIC_NORMAL, pos, header.size, index, header.term)
        index, pos, term = index + 1, pos + header.size, header.term
    return Checked(len(units) // layout.INDEX_UNIT_SIZE, term, units)


def find_torn(data: Buffer, pos: int) -> int | None:
    """The offset of the first of consecutive whole entries, which stand at `pos`, whose body may not have been written.

    That is one with a sector of 512 bytes, by the log's positions, in which every byte of its body is zero: what a
    loss of power leaves of a sector that never reached the disk. A body may hold such zeros as well. None without one.
    Raises ValueError where `data` is not made of whole entries.
    """
    pos = _integer("pos", pos, 0, _HIGHEST)
    view = _bytes_of(data, "entries")
    for entry in _entries(view):
        start, end = entry.offset + layout.ENTRY_HEADER_SIZE, entry.offset + entry.header.size
        while start < end:
            sector_end = min(end, start + _SECTOR - (pos + start) % _SECTOR)
            if view[start:sector_end].tobytes().count(0) == sector_end - start:
                return entry.offset
            start = sector_end
    return None


def _entries(data: memoryview) -> Iterator[_Entry]:
    """The entries that `data` is made of. Raises ValueError, when it comes to it, for what is no whole entry."""
    number = offset = 0
    while offset < len(data):
        left = len(data) - offset
        if left < layout.ENTRY_HEADER_SIZE:
            raise ValueError(f"entry {number}: expected a header of 48 bytes, found {left} bytes")
        header = decode_entry_header(bytes(data[offset : offset + layout.ENTRY_HEADER_SIZE]))
        _check_frame(number, header, left)
        yield _Entry(number, offset, header)
        number, offset = number + 1, offset + header.size


def _check_frame(number: int, header: EntryHeader, left: int) -> None:
    size, body_size = header.size, header.body_size
    if header.magic != layout.MAGIC_NORMAL:
        raise ValueError(f"entry {number}: expected magic {layout.MAGIC_NORMAL}, found {header.magic}")
    if body_size < 0 or size != layout.ENTRY_HEADER_SIZE + body_size:
        raise ValueError(f"entry {number}: expected size 48 + bodySize {body_size}, found {size}")
    if size > layout.MAX_ENTRY_SIZE:
        raise ValueError(f"entry {number}: expected size of at most {layout.MAX_ENTRY_SIZE}, found {size}")
    if size > left:
        raise ValueError(f"entry {number}: expected {size} bytes, found {left} bytes")


def _check_value(entry: _Entry, name: str, expected: int, found: int) -> None:
    if found != expected:
        raise ValueError(f"entry {entry.number}: expected {name} {expected}, found {found}")


def _lengths(count: int, block: memoryview) -> tuple[int, ...]:
    """The lengths in bytes at the beginning of a block, once they fit it."""
    if _LENGTH_SIZE * count > len(block):
        raise ValueError(f"expected {_LENGTH_SIZE * count} bytes of lengths for {count} bodies, found {len(block)}")
    lengths: tuple[int, ...] = struct.unpack_from(f">{count}I", block)
    for number, length in enumerate(lengths):
        _check_length(number, length)
    size = _LENGTH_SIZE * count + sum(lengths)
    if size != len(block):
        raise ValueError(f"expected {size} bytes of bodies with their lengths, found {len(block)}")
    return lengths


def _check_length(number: int, length: int) -> None:
    if length > MAX_BODY_SIZE:
        raise ValueError(f"expected body {number} of at most {MAX_BODY_SIZE} bytes, found {length}")


def _count_of(bodies: Bodies) -> int:
    return _integer("count", bodies.count, 1, MAX_BLOCK_SIZE // _LENGTH_SIZE)


def _integer(name: str, value: int, low: int, high: int) -> int:
    value = operator.index(value)
    if not low <= value <= high:
        raise ValueError(f"expected {name} from {low} to {high}, found {value}")
    return value


def _bytes_of(data: Buffer, name: str) -> memoryview:
    """The bytes of anything that has some, in one piece. Raises TypeError for anything else."""
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is None or not view.c_contiguous:
        raise TypeError(f"expected contiguous bytes as {name}, found {type(data).__name__}")
    is_plain = view.ndim == 1 and view.format == "B"
    return view if is_plain else memoryview(view.tobytes())
