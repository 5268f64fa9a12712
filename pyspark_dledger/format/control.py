"""Control entries: entries of a group itself, which are no data of an application.

A control entry is an ordinary entry whose header has its kind as ``channel``, and as ``chainCrc`` the CRC32 of the 36
bytes before. Java writes 0 in both fields and reads neither. The CRC tells a control entry from a flipped bit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

from pyspark_dledger.format.codec import EntryHeader, signed32
from pyspark_dledger.format.encode.encoded import Buffer

NOOP = 1
"""Says nothing: it commits the entries of earlier terms."""
MEMBERS = 2
"""The members of the group from here on."""
KINDS = (NOOP, MEMBERS)
CHANNEL_OFFSET = 32

_SEALED = struct.Struct(">iiqqqi")
_SEAL = struct.Struct(">ii")


def control_kind(fields: Sequence[int]) -> int:
    """The kind of a control entry, 0 for another one. ``fields``: at least the first 7 of its header."""
    return fields[5] if fields[5] in KINDS and fields[6] == signed32(crc32(_SEALED.pack(*fields[:6]))) else 0


def header_kind(header: EntryHeader) -> int:
    """The same for a decoded header."""
    if header.channel not in KINDS:
        return 0
    return control_kind(
        (header.magic, header.size, header.index, header.term, header.pos, header.channel, header.chain_crc)
    )


def control_kind_at(data: Buffer, offset: int = 0) -> int:
    """The same for the entry at ``offset``."""
    channel, chain_crc = _SEAL.unpack_from(data, offset + CHANNEL_OFFSET)
    if channel not in KINDS:
        return 0
    head = memoryview(data)[offset : offset + CHANNEL_OFFSET + 4]
    return int(channel) if chain_crc == signed32(crc32(head)) else 0


def mark_control(data: bytearray, kind: int) -> None:
    """Make the single entry of ``data`` a control entry."""
    _SEAL.pack_into(data, CHANNEL_OFFSET, kind, 0)
    _SEAL.pack_into(data, CHANNEL_OFFSET, kind, signed32(crc32(memoryview(data)[: CHANNEL_OFFSET + 4])))
