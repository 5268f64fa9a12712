"""Restores entries whose header is damaged: from their index unit, and a message whose checksums agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.message import message_in
from pyspark_dledger.log.io.salvage_fillers import TOPIC as FILLER_TOPIC
from pyspark_dledger.log.salvage.lost_entries import LostEntry

ReadSource = Callable[[int, int, int], bytes]
"""The bytes of a source, by its number, from a position of the log up to another; fewer if it does not have them."""


class Repair(NamedTuple):
    """An entry whose header is written again by its index unit; its message is copied from the source ``donor``."""

    pos: int
    size: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    donor: int
    sources: tuple[int, ...]


def has_damaged_header(expected: LostEntry, index: int, term: int) -> bool:
    """Whether a header at the place of the entry, with another index or term, is damaged and not of a diverged log.

    A term has one leader, so it has one entry there. A diverged log has entries of lower terms.
    """
    if index == expected.index:
        return term > expected.term
    return term == expected.term


def repaired(
    lost: Iterable[LostEntry], sources: Iterable[int], read: ReadSource
) -> tuple[list[LostEntry], list[Repair]]:
    """What remains lost, and the entries that can be repaired: those of which all intact messages are the same."""
    remaining: list[LostEntry] = []
    repairs: list[Repair] = []
    numbers = tuple(sources)
    for each in lost:
        found: dict[bytes, list[int]] = {}
        for number in numbers if each.is_known and each.index >= 0 else ():
            body = read(number, each.pos + ENTRY_HEADER_SIZE, each.pos + each.size)
            if _is_intact(body, each.pos + ENTRY_HEADER_SIZE, each.size - ENTRY_HEADER_SIZE):
                found.setdefault(body, []).append(number)
        if len(found) == 1:
            (having,) = found.values()
            repairs.append(Repair(each.pos, each.size, each.index, each.term, having[0], tuple(having)))
        else:
            remaining.append(each)
    return remaining, repairs


def _is_intact(body: bytes, position: int, size: int) -> bool:
    """Whether the body is a message for this position whose checksum agrees, and no filler."""
    message = message_in(body) if len(body) == size else None
    if message is None or message.physical_offset != position or message.topic == FILLER_TOPIC:
        return False
    return message.has_right_crc
