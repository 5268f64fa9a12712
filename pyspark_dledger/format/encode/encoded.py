"""Entries on their way into a log: what the engines take and give when entries are written."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format import layout

# In bytes: of one body, as Java's encode buffer holds it with its header, and of bodies that are packed.
MAX_BODY_SIZE = layout.MAX_ENTRY_SIZE - layout.ENTRY_HEADER_SIZE
MAX_BLOCK_SIZE = 2**30

Buffer = bytes | bytearray | memoryview


class Bodies(NamedTuple):
    """Bodies of entries to append, packed: ``count`` lengths (u32, big-endian), then the bodies, nothing between."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    block: Buffer


class Encoded(NamedTuple):
    """The first ``count`` bodies as entries: their bytes, consecutive, and one 32-byte index unit for each."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    data: bytearray
    units: bytearray


class Checked(NamedTuple):
    """Encoded entries that fit behind a log: how many, the term of the last, and one 32-byte index unit for each."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    last_term: int
    units: bytearray
