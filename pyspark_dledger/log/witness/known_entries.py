"""Finds the entries of a segment that the store's other files know, by headers and by each other.

A broker dispatches committed messages only, so no unit of a ConsumeQueue or IndexFile is of a truncated entry. A unit
is damaged if it overlaps what is confirmed, or has no neighbour next to it. An IndexFile unit has no size: a message
ends where the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.arrow_functions import distinct
from pyspark_dledger.format.codec import record_dtype
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    HOST_SIZES,
    MAGIC_BLANK,
    MAX_ENTRY_SIZE,
    MESSAGE_HEADER,
    MESSAGE_HEADER_SIZE,
    MESSAGE_MAGIC_BLANK,
    MESSAGE_MAGIC_V2,
    MIN_MESSAGE_SIZE,
)
from pyspark_dledger.format.message import MESSAGE_MAGICS
from pyspark_dledger.format.scan.frames import HEADER_DTYPE
from pyspark_dledger.format.spec import DLEDGER, NO_EVIDENCE, Evidence, KnownEntries, Segment, no_known_entries
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.key_files import message_starts
from pyspark_dledger.log.io.queue_units import Messages, messages_in
from pyspark_dledger.log.io.state_files import read_checkpoint, read_current_term
from pyspark_dledger.log.witness.headers import Longs, frames_between, is_frame, places_of, read_headers
from pyspark_dledger.log.witness.index_units import IndexUnits, LogUnits, NodeState, SegmentUnits, Units, units_of_log
from pyspark_dledger.log.witness.stale_tail import log_end_of

Bools = npt.NDArray[np.bool_]

# storeTimestamp, reconsumeTimes and preparedTransactionOffset
_FIXED_SIZE = 8 + 4 + 8
_INT = np.dtype(">i4")
_MAX_WITHOUT_UNITS = 8
"""So many adjacent messages may have no key."""
_MESSAGE_DTYPE = record_dtype(MESSAGE_HEADER)
_ENTRY_AND_MESSAGE = np.dtype([("entry", HEADER_DTYPE), ("message", _MESSAGE_DTYPE)])


def known_by_units(segment: Segment, start: int, root: Path) -> KnownEntries:
    """The messages of a segment from `start` on, or the entries around them, by ConsumeQueues and IndexFiles."""
    messages = messages_in(start, segment.end, root)
    own = _header_size(segment)
    pos = messages.pos - own
    is_whole, size = _confirmed(segment, pos, messages)
    found = KnownEntries(pos, pos + own + size, is_whole)
    known = _agreeing(found, start, segment.end)
    if has_no_gap(known, start):
        return known
    starts = message_starts(start + own, segment.end, root) - own
    return merged(known, _by_starts(segment, start, known, starts))


def _header_size(segment: Segment) -> int:
    """Bytes of an entry before its message."""
    return ENTRY_HEADER_SIZE if segment.source == DLEDGER else 0


def has_no_gap(known: KnownEntries, start: int | None) -> bool:
    """Whether every entry from `start`, or from the first known one, up to the last known one is known."""
    if not len(known.pos) or (start is not None and known.pos[0] != start):
        return False
    return bool((known.pos[1:] == known.end[:-1]).all())


def _by_starts(segment: Segment, start: int, known: KnownEntries, starts: Longs) -> KnownEntries:
    """The entries that begin at `starts`, and are not known yet."""
    ends = np.append(known.end, -1)
    starts = starts[ends[np.searchsorted(known.pos, starts, "right") - 1] <= starts]
    found = _by_headers(segment, starts)
    whole = merged(known, without_overlaps(chosen(found, found.is_whole)))
    return merged(whole, _lost_between(segment, start, whole, starts[~found.is_whole]))


def _by_headers(segment: Segment, pos: Longs) -> KnownEntries:
    """The messages at `pos`, or the entries around them, by their own headers, which can be damaged."""
    own = _header_size(segment)
    size = read_headers(segment, pos + own, _MESSAGE_DTYPE)["totalSize"].astype(np.int64)
    is_whole, size = _confirmed(segment, pos, Messages(pos + own, size))
    return KnownEntries(pos, pos + own + size, is_whole)


def _lost_between(segment: Segment, start: int, whole: KnownEntries, starts: Longs) -> KnownEntries:
    """The lost entries at `starts`: each follows another one, and ends where the next one or a blank begins.

    An IndexFile need not have all messages: none that begins later may end there. A message in the body of another one
    ends before that one does.
    """
    inner, limits = _inside_gaps(segment, whole, starts)
    following = distinct(np.concatenate([whole.pos, starts, limits]))
    ends = {start, *whole.end.tolist(), *_ends_without_units(segment, whole.end, following)}
    found = []
    for pos, number in zip(starts.tolist(), np.searchsorted(following, starts, "right").tolist(), strict=True):
        end = int(following[number]) if number < len(following) else -1
        if pos in ends and end > pos and inner.get(end, -1) <= pos:
            found.append((pos, end))
            ends.add(end)
    extents = np.array(found, np.int64).reshape(-1, 2)
    return KnownEntries(extents[:, 0].copy(), extents[:, 1].copy(), np.zeros(len(extents), bool))


def _inside_gaps(segment: Segment, whole: KnownEntries, starts: Longs) -> tuple[dict[int, int], Longs]:
    """What looks like a message in gaps with lost ones, its position by its end; and what ends a lost one.

    That is an intact message with its own position, or what looks like a closing blank.
    """
    own = _header_size(segment)
    inner: dict[int, int] = {}
    limits = [np.empty(0, np.int64)]
    gaps = np.searchsorted(whole.pos, starts, "right")
    for gap in distinct(gaps).tolist():
        lost = starts[gaps == gap]
        limit = int(whole.pos[gap]) if gap < len(whole.pos) else min(int(lost[-1]) + MAX_ENTRY_SIZE, segment.end)
        pos = places_of(segment, int(lost[0]) + 4, limit, MESSAGE_MAGICS) - 4
        ends = pos + read_headers(segment, pos, _INT)
        inner |= dict(zip(ends.tolist(), (pos - own).tolist(), strict=True))
        found = _by_headers(segment, pos - own)
        limits.append(found.pos[found.is_whole])
        if gap == len(whole.pos):
            # An entry's blank begins with its magic, that of an old log with its size.
            size_at = 4 if own else -4
            magic = places_of(segment, int(lost[-1]), limit, (MAGIC_BLANK if own else MESSAGE_MAGIC_BLANK,))
            pos = magic + min(size_at, 0)
            limits.append(pos[pos + read_headers(segment, magic + size_at, _INT) == segment.end])
    return inner, np.concatenate(limits)


def _ends_without_units(segment: Segment, ends: Longs, starts: Longs) -> Iterator[int]:
    """Where messages without keys end that follow known ones: an IndexFile does not have them."""
    for _ in range(_MAX_WITHOUT_UNITS):
        found = _by_headers(segment, np.setdiff1d(ends, starts))
        ends = found.end[found.is_whole]
        yield from ends.tolist()


def _confirmed(segment: Segment, pos: Longs, messages: Messages) -> tuple[Bools, Longs]:
    """Which messages have an intact header in the data, and the size of each: by that header, else by its unit."""
    entries: npt.NDArray[Any] | None = None
    if segment.source == DLEDGER:
        records = read_headers(segment, pos, _ENTRY_AND_MESSAGE)
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
    # Zeros are an offset, too.
    ends = np.concatenate([whole.end, lost.end, [start][: start > 0]])
    is_next = np.isin(lost.pos, ends) | np.isin(lost.end, starts)
    return merged(whole, chosen(lost, is_next))


def chosen(known: KnownEntries, which: npt.NDArray[Any]) -> KnownEntries:
    """The entries that a mask or an array of numbers selects."""
    return KnownEntries(known.pos[which], known.end[which], known.is_whole[which])


def without_overlaps(known: KnownEntries) -> KnownEntries:
    """The sorted entries without those that begin before the end of an earlier one."""
    reach = np.maximum.accumulate(np.concatenate([[-1], known.end]))[:-1]
    return chosen(known, known.pos >= reach)


def merged(first: KnownEntries, more: KnownEntries) -> KnownEntries:
    """All of `first`, and those of `more` that overlap none of it. Both are sorted and disjoint."""
    before = np.searchsorted(first.pos, more.end) - 1
    ends = np.concatenate([first.end, [-1]])
    more = chosen(more, ends[before] <= more.pos)
    both = KnownEntries(
        np.concatenate([first.pos, more.pos]),
        np.concatenate([first.end, more.end]),
        np.concatenate([first.is_whole, more.is_whole]),
    )
    return chosen(both, np.argsort(both.pos, kind="stable"))


class Answer(NamedTuple):
    """The entries that are known, and what the index proves about the log's end."""

    known: KnownEntries
    evidence: Evidence


def look_up(segment: Segment, start: int, node_dir: str | None, root: str | None) -> Answer:
    """What a store's files know about a segment from position `start` on; see `store_witness.StoreWitness`."""
    known, evidence = no_known_entries(), NO_EVIDENCE
    if segment.source == DLEDGER and node_dir is not None:
        folder = path_of(node_dir)
        state = _state_of(folder)
        found = _units_of_log(segment, start, folder, state)
        known, evidence = _with_lone_gaps(segment, found), _evidence_of(segment, found, folder, state)
        evidence = evidence._replace(log_end=log_end_of(segment, start, known, evidence, state))
        if root is not None and evidence.log_end is not None:
            evidence = evidence._replace(log_end=_end_after_dispatched(segment, known, evidence, state, path_of(root)))
        if not segment.check_pos:
            known = merged(known, _misplaced(segment, start, known, found.units))
    if root is None:
        return Answer(_ended(segment, known, evidence.log_end), evidence)
    is_known = has_no_gap(known, start if segment.check_pos else None)
    more = known_by_units(segment, int(known.end[-1]) if is_known else start, path_of(root))
    return Answer(_ended(segment, merged(known, more), evidence.log_end), evidence)


def _end_after_dispatched(
    segment: Segment, known: KnownEntries, evidence: Evidence, state: NodeState, root: Path
) -> int | None:
    """The proven end of the log, which is not before an entry whose message was dispatched."""
    assert evidence.log_end is not None
    dispatched = known_by_units(segment, evidence.log_end, root)
    after = dispatched.pos[dispatched.is_whole]
    if not len(after):
        return evidence.log_end
    last = int(after[-1])
    log_end = log_end_of(segment, last, known, evidence._replace(log_end=None), state)
    return log_end if log_end is not None and log_end > last else None


def _ended(segment: Segment, known: KnownEntries, log_end: int | None) -> KnownEntries:
    """The entries up to a proven end of the log, and the bytes after it as a lost one."""
    if log_end is None:
        return known
    known = chosen(known, known.end <= log_end)
    ends = np.array([log_end]), np.array([segment.end]), np.array([False])
    return KnownEntries(*map(np.append, known, ends)) if log_end < segment.end else known


def _evidence_of(segment: Segment, found: LogUnits, node_dir: Path, state: NodeState) -> Evidence:
    units = found.units
    ends = units.pos + units.size
    if not len(ends):
        return NO_EVIDENCE._replace(log_end=found.end)
    committed_ends = ends[units.index <= state.committed_index]
    last_index, last_term = int(units.index[-1]), int(units.term[-1])
    index = IndexUnits(node_dir / "index")
    return Evidence(
        last_index=last_index,
        last_term=last_term,
        last_end=int(ends[-1]),
        committed_end=int(committed_ends[-1]) if len(committed_ends) else -1,
        log_end=found.end,
        ends_in_gap=state.committed_index <= last_index
        and not index.has_file_after(last_index)
        and not _is_continued(segment, ends[-1:], last_index, last_term),
        ends_index=index.has_room_after(last_index),
    )


def _is_continued(segment: Segment, end: Longs, index: int, term: int) -> bool:
    """Whether at `end` the next entry is, or a blank."""
    headers = read_headers(segment, end, HEADER_DTYPE)
    is_next = is_frame(headers, end, segment) & (headers["index"] == index + 1) & (headers["term"] >= term)
    return bool((is_next | (headers["magic"] == MAGIC_BLANK)).any())


def _state_of(node_dir: Path) -> NodeState:
    checkpoint, current = read_checkpoint(node_dir)[0], read_current_term(node_dir)[0]
    known = (
        checkpoint.committed_index if checkpoint is not None else None,
        checkpoint.end_index if checkpoint is not None else None,
        current.curr_term if current is not None else None,
    )
    return NodeState(*(-1 if value is None else value for value in known))


def _units_of_log(segment: Segment, start: int, node_dir: Path, state: NodeState) -> LogUnits:
    """The units of the node's index with entries of a segment from `start` on."""
    index = IndexUnits(node_dir / "index")
    found = _judged(segment, index.of(segment, start), state)
    if found.is_whole.any():
        return found
    # The search was misled by damaged or stale units, or the whole segment is damaged.
    return _judged(segment, index.all_of(segment, start), state)


def _judged(segment: Segment, near: SegmentUnits, state: NodeState) -> LogUnits:
    headers = read_headers(segment, near.inside.pos, HEADER_DTYPE)
    return units_of_log(near.inside, headers, segment, near.before, state)


def _with_lone_gaps(segment: Segment, found: LogUnits) -> KnownEntries:
    """The entries of units, and each entry that fills a gap of one index because its own unit is damaged."""
    units = found.units
    ends = units.pos + units.size
    gaps = np.flatnonzero(np.diff(units.index) == 2)
    pos, end = ends[gaps], units.pos[gaps + 1]
    headers = read_headers(segment, pos, HEADER_DTYPE)
    is_whole = is_frame(headers, pos, segment) & (headers["index"] == units.index[gaps] + 1)
    is_whole &= headers["size"] == end - pos
    return KnownEntries(
        np.insert(units.pos, gaps + 1, pos),
        np.insert(ends, gaps + 1, end),
        np.insert(found.is_whole, gaps + 1, is_whole),
    )


def _misplaced(segment: Segment, start: int, known: KnownEntries, units: Units) -> KnownEntries:
    """What looks like an entry between known ones, but has an index that cannot be there: it was moved there.

    Only for 0.4.0, where an entry's header may have any position.
    """
    ends = units.pos + units.size
    found = [no_known_entries()]
    starts, stops = np.append(start, known.end), np.append(known.pos, segment.end)
    for gap in np.flatnonzero(stops - starts >= ENTRY_HEADER_SIZE).tolist():
        pos, headers = frames_between(segment, int(starts[gap]), int(stops[gap]))
        size, index = headers["size"].astype(np.int64), headers["index"].astype(np.int64)
        after = np.searchsorted(units.pos, pos)
        # Entries of at least a header are lost between it and its neighbours.
        low = index - np.append(-1, units.index)[after] - 1
        high = np.append(units.index, INT64_MAX)[after] - index - 1
        is_moved = (low < 0) | (high < 0)
        is_moved |= (after > 0) & (low > (pos - np.append(0, ends)[after]) // ENTRY_HEADER_SIZE)
        is_moved |= (after < len(ends)) & (high > (np.append(units.pos, 0)[after] - pos - size) // ENTRY_HEADER_SIZE)
        is_moved &= pos + size <= stops[gap]
        shift = (pos - headers["pos"])[is_moved]
        pos, size = pos[is_moved], size[is_moved]
        # What was moved by the same distance was moved together, with the damaged entries in between.
        cuts = np.flatnonzero(np.diff(shift)) + 1
        first, last = np.append(0, cuts)[: len(pos)], np.append(cuts, len(pos))[: len(pos)] - 1
        found.append(KnownEntries(pos[first], (pos + size)[last], np.zeros(len(first), bool)))
    pos, reach = np.concatenate([part.pos for part in found]), np.concatenate([part.end for part in found])
    reach = np.maximum.accumulate(reach)
    starts_new = np.append(True, pos[1:] >= reach[:-1])[: len(pos)]
    first = np.flatnonzero(starts_new)
    last = np.append(first[1:], len(pos))[: len(first)] - 1
    return KnownEntries(pos[first], reach[last], np.zeros(len(first), bool))
