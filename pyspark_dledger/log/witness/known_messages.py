"""Decides which messages that ConsumeQueues know are of the log, by the headers in the data and by each other.

A broker dispatches committed messages only, so no unit is of a truncated entry. A unit is damaged if it overlaps what
is confirmed, or has no neighbour next to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import record_dtype
from pyspark_dledger.format.known_entries import KnownEntries
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    HOST_SIZES,
    MESSAGE_HEADER,
    MESSAGE_HEADER_SIZE,
    MESSAGE_MAGIC_V2,
    MIN_MESSAGE_SIZE,
)
from pyspark_dledger.format.message import MESSAGE_MAGICS
from pyspark_dledger.format.spec import DLEDGER, Segment
from pyspark_dledger.log.witness.headers import ENTRY_DTYPE, is_frame, read_headers
from pyspark_dledger.log.witness.known_arrays import chosen, merged, without_overlaps
from pyspark_dledger.log.witness.queue_units import Messages, messages_in

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# storeTimestamp, reconsumeTimes and preparedTransactionOffset
_FIXED_SIZE = 8 + 4 + 8
_MESSAGE_DTYPE = record_dtype(MESSAGE_HEADER)
_ENTRY_DTYPE = np.dtype([("entry", ENTRY_DTYPE), ("message", _MESSAGE_DTYPE)])


def known_by_queues(segment: Segment, start: int, root: Path) -> KnownEntries:
    """The messages of a segment from `start` on, or the entries around them, by the ConsumeQueues below `root`."""
    messages = messages_in(start, segment.end, root)
    own = ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0
    pos = messages.pos - own
    is_whole, size = _confirmed(segment, pos, messages)
    found = KnownEntries(pos, pos + own + size, is_whole)
    return _agreeing(found, start, segment.end)


def _confirmed(segment: Segment, pos: Longs, messages: Messages) -> tuple[Bools, Longs]:
    """Which messages have an intact header in the data, and the size of each: by that header, else by its unit."""
    entries: npt.NDArray[Any] | None = None
    if segment.source == DLEDGER:
        records = read_headers(segment, pos, _ENTRY_DTYPE)
        entries, headers = records["entry"], records["message"]
    else:
        headers = read_headers(segment, pos, _MESSAGE_DTYPE)
    size = headers["totalSize"].astype(np.int64)
    is_whole = np.isin(headers["magic"], MESSAGE_MAGICS) & (headers["physicalOffset"] == messages.pos)
    is_whole &= (size >= MIN_MESSAGE_SIZE) & (messages.pos + size <= segment.end)
    if entries is not None:
        is_whole &= is_frame(entries, pos, segment) & (entries["bodySize"] == size)
    else:
        is_whole &= _structure_size(segment, pos, headers) == size
    # Of two sizes, the one counts that leads to another message.
    starts = np.concatenate([pos, [segment.end]])
    leads = np.isin(messages.pos + size, starts) & ~np.isin(messages.pos + messages.size, starts)
    is_whole &= (size == messages.size) | leads
    return is_whole, np.where(is_whole, size, messages.size)


def _structure_size(segment: Segment, pos: Longs, headers: npt.NDArray[Any]) -> Longs:
    """The size of each message by the lengths of its parts; any number where these are damaged."""
    flags, is_v2 = headers["sysFlag"], headers["magic"] == MESSAGE_MAGIC_V2
    at = pos + MESSAGE_HEADER_SIZE + _FIXED_SIZE
    for flag in (FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6):
        at += np.where(flags & flag, *reversed(HOST_SIZES))
    at += 4 + read_headers(segment, at, np.dtype(">i4")).astype(np.int64)
    lengths = read_headers(segment, at, np.dtype([("v1", "u1"), ("rest", "u1")]))
    topic = np.where(is_v2, lengths["v1"] * np.int64(256) + lengths["rest"], lengths["v1"])
    at += topic + np.where(is_v2, 2, 1)
    at += 2 + read_headers(segment, at, np.dtype(">u2")).astype(np.int64)
    return at - pos


def _agreeing(found: KnownEntries, start: int, end: int) -> KnownEntries:
    """Without what overlaps something confirmed, or is neither confirmed nor next to something that is known."""
    found = chosen(found, np.lexsort((found.end, found.pos)))
    whole = without_overlaps(chosen(found, found.is_whole))
    lost = chosen(found, ~found.is_whole)
    # Of two that overlap, at least one is wrong.
    is_alone = np.ones(len(lost.pos), bool)
    overlaps = lost.pos[1:] < np.maximum.accumulate(lost.end)[:-1]
    is_alone[1:] &= ~overlaps
    is_alone[:-1] &= ~overlaps
    lost = chosen(lost, is_alone)
    starts = np.concatenate([whole.pos, lost.pos, [end]])
    ends = np.concatenate([whole.end, lost.end, [start]])
    is_next = np.isin(lost.pos, ends) | np.isin(lost.end, starts)
    return merged(whole, chosen(lost, is_next))
