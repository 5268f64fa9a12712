"""Blocks of bodies and encoded entries: arguments and results of the engines."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pyspark_dledger.format import layout

# In bytes. Java's encode buffer limits a body with its header.
MAX_BODY_SIZE = layout.MAX_ENTRY_SIZE - layout.ENTRY_HEADER_SIZE
MAX_BLOCK_SIZE = 2**30
LENGTH_SIZE = 4

Buffer = bytes | bytearray | memoryview


class Bodies(NamedTuple):
    """Packed bodies of entries: ``count`` lengths (u32, big-endian), then the bodies without gaps."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    block: Buffer

    @classmethod
    def of(cls, bodies: Sequence[Buffer]) -> Bodies:
        """Pack bodies without checks."""
        lengths = struct.pack(f">{len(bodies)}I", *map(len, bodies))
        return cls(len(bodies), b"".join([lengths, *bodies]))

    @property
    def parts(self) -> BodyParts:
        """Views of the lengths and of the bodies."""
        view = memoryview(self.block).cast("B")
        return BodyParts(self.count, view[: LENGTH_SIZE * self.count], view[LENGTH_SIZE * self.count :])


class BodyParts(NamedTuple):
    """Packed bodies whose lengths and bytes are not in one block, so that they can be sent without a copy."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    lengths: Buffer
    data: Buffer

    @property
    def parts(self) -> BodyParts:
        return self

    def packed(self) -> Bodies:
        """Copy them into a block."""
        return Bodies(self.count, b"".join((self.lengths, self.data)))


class EncodedEntries(NamedTuple):
    """Consecutive entries of the first ``count`` bodies, and the 32-byte index unit of each."""

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    data: bytearray
    units: bytearray


class CheckedEntries(NamedTuple):
    """Entries that can follow a log: their number, the term of the last, and the 32-byte index unit of each.

    ``members_at`` is the offset of the first entry with the channel of members entries, -1 without one.
    """

    count: int  # type: ignore[assignment]  # shadows tuple.count, which nobody calls
    last_term: int
    units: bytearray
    members_at: int = -1


class Admitted(NamedTuple):
    """A put that can be appended. The application changes nothing before its ``appended`` is called.

    ``bodies`` become entries; None if the log has all of them already. ``min_commit_index`` is the highest index of
    those in the log, or -1: the put is acknowledged when that entry is committed too. Only the application uses
    ``details``.
    """

    bodies: Bodies | None
    min_commit_index: int
    details: object


class Rejected(NamedTuple):
    """A put that is not appended: a `ResponseCode`, and the reason for the log."""

    code: int
    reason: str


class DiskNeededError(Exception):
    """A request that must not wait for the disk would have to. Nothing was appended."""
