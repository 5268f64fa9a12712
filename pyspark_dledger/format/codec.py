"""Encodes and decodes records of fixed size by the tables of `layout`, and control entries.

Integers are big-endian and signed. Decoders take a `Buffer` and an offset. They raise ``struct.error`` if the buffer
ends before the record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import crcmod.predefined

from pyspark_dledger.format import layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_STRUCT_CODES = {">i4": "i", ">i8": "q"}

crc32: Callable[..., int] = crcmod.predefined.mkCrcFun("crc-32")
"""CRC-32 of bytes, unsigned, as ``java.util.zip.CRC32``; a second argument is the CRC of the bytes before."""


class Buffer(Protocol):
    """Bytes that can be sliced: ``bytes``, or a file by its positions."""

    def __getitem__(self, key: slice, /) -> bytes: ...


def record_struct(fields: Sequence[layout.Field]) -> struct.Struct:
    """The struct of a layout without gaps. Raises ValueError for a layout with gaps."""
    packer = struct.Struct(">" + "".join(_STRUCT_CODES[field.dtype] for field in fields))
    ends = [field.offset + field.length for field in fields]
    if [field.offset for field in fields] != [0, *ends[:-1]] or packer.size != ends[-1]:
        raise ValueError(f"expected fields without gaps, found {fields}")
    return packer


def record_dtype(fields: Sequence[layout.Field]) -> np.dtype[Any]:
    """The numpy type of a layout."""
    import numpy as np

    return np.dtype([(field.name, field.dtype) for field in fields])


def signed32(value: int) -> int:
    """The 32 bits of ``value`` as a signed number, as Java stores a CRC."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def signed64(value: int) -> int:
    """The 64 bits of ``value`` as a signed number."""
    return (value & 0xFFFFFFFFFFFFFFFF ^ 0x8000000000000000) - 0x8000000000000000


_ENTRY = record_struct(layout.ENTRY_HEADER)
_BLANK = record_struct(layout.BLANK)
_INDEX_UNIT = record_struct(layout.INDEX_UNIT)
_CONSUME_QUEUE_UNIT = record_struct(layout.CONSUME_QUEUE_UNIT)


class EntryHeader(NamedTuple):
    """The 48 bytes before an entry's body (`layout.ENTRY_HEADER`); sizes in bytes."""

    magic: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int


class IndexUnit(NamedTuple):
    """One unit of a DLedger index file (`layout.INDEX_UNIT`): an entry's position, and its size in bytes."""

    magic: int
    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int


class ConsumeQueueUnit(NamedTuple):
    """One unit of a ConsumeQueue file (`layout.CONSUME_QUEUE_UNIT`); ``size`` in bytes."""

    commit_log_offset: int
    size: int
    tags_code: int


def decode_entry_header(data: Buffer, offset: int = 0) -> EntryHeader:
    """The header at ``offset``; its values are not checked."""
    return EntryHeader._make(_ENTRY.unpack(data[offset : offset + _ENTRY.size]))


def encode_entry_header(header: EntryHeader) -> bytes:
    """The 48 bytes of a header."""
    return _ENTRY.pack(*header)


def encode_entry(
    index: int, term: int, pos: int, body: bytes, *, magic: int = layout.MAGIC_NORMAL, body_crc: int = 0
) -> bytes:
    """An entry for the log position ``pos``, as Java 0.3.1.2 writes it, with channel and chain CRC 0."""
    size = layout.ENTRY_HEADER_SIZE + len(body)
    return encode_entry_header(EntryHeader(magic, size, index, term, pos, 0, 0, body_crc, len(body))) + body


def decode_blank(data: Buffer, offset: int = 0) -> int | None:
    """The size in bytes of a DLedger blank at ``offset``, or None without one."""
    magic, size = _BLANK.unpack(data[offset : offset + _BLANK.size])
    return size if magic == layout.MAGIC_BLANK else None


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a DLedger blank of ``size`` bytes; the others keep their values."""
    return _BLANK.pack(layout.MAGIC_BLANK, size)


def encode_message_blank(size: int) -> bytes:
    """The same of a CommitLog, whose size comes first, as in a message."""
    return _BLANK.pack(signed32(size), layout.MESSAGE_MAGIC_BLANK)


def decode_index_unit(data: Buffer, offset: int = 0) -> IndexUnit:
    """The index unit at ``offset``; all zeros in a hole of a sparse file."""
    return IndexUnit._make(_INDEX_UNIT.unpack(data[offset : offset + _INDEX_UNIT.size]))


def encode_index_unit(unit: IndexUnit) -> bytes:
    """The 32 bytes of an index unit."""
    return _INDEX_UNIT.pack(*unit)


def decode_consume_queue_unit(data: Buffer, offset: int = 0) -> ConsumeQueueUnit:
    """The ConsumeQueue unit at ``offset``."""
    return ConsumeQueueUnit._make(_CONSUME_QUEUE_UNIT.unpack(data[offset : offset + _CONSUME_QUEUE_UNIT.size]))


def encode_consume_queue_unit(unit: ConsumeQueueUnit) -> bytes:
    """The 20 bytes of a ConsumeQueue unit."""
    return _CONSUME_QUEUE_UNIT.pack(*unit)


def decode_records(data: bytes, fields: Sequence[layout.Field]) -> npt.NDArray[Any]:
    """All complete records of ``data`` as a numpy array, without a copy."""
    import numpy as np

    dtype = record_dtype(fields)
    return np.frombuffer(data, dtype, count=len(data) // dtype.itemsize)


# A control entry is of the group itself, no data of an application: an ordinary entry whose header has its kind as
# ``channel``, and as ``chainCrc`` the CRC-32 of the 36 bytes before. Java writes 0 in both fields and reads neither.
# The CRC tells a control entry from a flipped bit.

NOOP = 1
"""Says nothing: it commits the entries of earlier terms."""
MEMBERS = 2
"""The members of the group from here on."""
CONTROL_KINDS = (NOOP, MEMBERS)
CHANNEL_OFFSET = 32

_SEALED = struct.Struct(">iiqqqi")
_SEAL = struct.Struct(">ii")


def control_kind(fields: Sequence[int]) -> int:
    """The kind of a control entry, 0 for another one. ``fields``: at least the first 7 of its header."""
    kind, seal = fields[5:7]
    return kind if kind in CONTROL_KINDS and seal == signed32(zlib.crc32(_SEALED.pack(*fields[:6]))) else 0


def header_kind(header: EntryHeader) -> int:
    """The same for a decoded header."""
    if header.channel not in CONTROL_KINDS:
        return 0
    return control_kind(
        (header.magic, header.size, header.index, header.term, header.pos, header.channel, header.chain_crc)
    )


def control_kind_at(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """The same for the entry at ``offset``."""
    channel, chain_crc = _SEAL.unpack_from(data, offset + CHANNEL_OFFSET)
    if channel not in CONTROL_KINDS:
        return 0
    head = memoryview(data)[offset : offset + CHANNEL_OFFSET + 4]
    return int(channel) if chain_crc == signed32(zlib.crc32(head)) else 0


def mark_control(data: bytearray, kind: int) -> None:
    """Make the single entry of ``data`` a control entry."""
    _SEAL.pack_into(data, CHANNEL_OFFSET, kind, 0)
    _SEAL.pack_into(data, CHANNEL_OFFSET, kind, signed32(zlib.crc32(memoryview(data)[: CHANNEL_OFFSET + 4])))
