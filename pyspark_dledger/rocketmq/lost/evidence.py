"""Decides which units that point into a damaged place are of messages that were there: a unit can be damaged itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pyspark_dledger.format.spec import Segment
from pyspark_dledger.rocketmq.lost.damaged_ranges import DamagedRange
from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, Places

# Bytes. No log loses more at its end.
_MAX_LOST_END = 2**44


def messages_of(
    ranges: Sequence[DamagedRange], known: Iterable[KnownMessage], segments: list[Segment]
) -> list[list[KnownMessage]]:
    """The messages of each of the ascending ranges, by offset.

    A message is next to another one, or to the beginning or end of its range or of a file. Of two that overlap, the one
    with more witnesses counts.
    """
    ordered = sorted(known, key=lambda message: message.offset)
    places = Places((each.start, each.end) for each in ranges)
    numbers = places.number_of(np.array([message.offset for message in ordered], np.int64)).tolist()
    candidates: list[list[KnownMessage]] = [[] for _ in ranges]
    for number, message in zip(numbers, ordered, strict=True):
        if number >= 0 and _is_inside(message, ranges[number]):
            candidates[number].append(message)
    return [
        _without_overlaps(_next_to_others(found, place, segments))
        for found, place in zip(candidates, ranges, strict=True)
    ]


def _is_inside(message: KnownMessage, place: DamagedRange) -> bool:
    start = message.offset - place.header
    if place.row is not None:
        return start == place.start and message.size in (None, place.end - message.offset)
    return start >= place.start and message.end <= place.end


def _next_to_others(found: list[KnownMessage], place: DamagedRange, segments: list[Segment]) -> list[KnownMessage]:
    starts = {message.offset - place.header for message in found} | {place.end}
    ends = {message.end for message in found if message.size is not None} | {place.start}
    return [
        message
        for message in found
        if message.offset - place.header in ends
        or (message.size is not None and message.end in starts)
        or _begins_file(message.offset - place.header, segments)
    ]


def _begins_file(pos: int, segments: list[Segment]) -> bool:
    """Whether a file begins at a position, or one can have begun there after the last one that is left."""
    if not segments:
        return False
    last = segments[-1]
    if pos >= last.base:
        return pos < last.end + _MAX_LOST_END and (pos - last.base) % last.size == 0
    return any(segment.base == pos for segment in segments)


def _without_overlaps(found: list[KnownMessage]) -> list[KnownMessage]:
    kept: list[KnownMessage] = []
    for message in found:
        if kept and kept[-1].end > message.offset:
            if len(kept[-1].witnesses) >= len(message.witnesses):
                continue
            kept.pop()
        kept.append(message)
    return kept
