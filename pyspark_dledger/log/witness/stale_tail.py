"""Finds the end of a log before entries that were truncated, where the index alone does not show it.

Java leaves them in the file. After damage, or after a term that damage raised, they can look like the log's next ones.
They are stale if the node has a later term than the last of them, and one of these is true:

1. Their term is lower than that of an entry before them, which is of the node's term or the checkpoint's last one.
2. Their term is higher than that of the entry before them, and the bytes between both are no damaged header, but the
   rest of an overwritten entry.
3. The checkpoint's end is between them and the entry before them, and has room there.

With index units, they are stale if they contradict the last unit, or follow it with a later term where the index ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_dledger.format.arrow_functions import numbers_of
from pyspark_dledger.format.codec import decode_blank, decode_entry_header
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS, MAX_ENTRY_SIZE, MIN_BLANK_SIZE, segment_name
from pyspark_dledger.format.spec import Evidence, KnownEntries, ScanRequest, Segment
from pyspark_dledger.log.io.files import file_at, path_of
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.witness.headers import Longs, frames_between
from pyspark_dledger.log.witness.index_units import NodeState

_MAX_STEPS = 8
"""Old bytes can contain entries that look like the log's next ones when those after them are left out."""
_POS_AT = 24
"""The offset of an entry's position in its header."""
_SECTOR_SIZE = 512


@dataclass(frozen=True, eq=False)  # arrays have no hash
class _Given:
    """A witness of these entries."""

    known: KnownEntries

    def known_entries(self, segment: Segment) -> KnownEntries:
        return self.known


class _Entries(NamedTuple):
    """Entries as columns, in the order of positions."""

    index: Longs  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: Longs
    pos: Longs
    end: Longs


def log_end_of(segment: Segment, start: int, known: KnownEntries, found: Evidence, state: NodeState) -> int | None:
    """Where the log ends before stale entries, or where these begin; None without them.

    `start` is the position of an entry, or the segment's base.
    """
    if segment.after is not None or _has_entry_in_next_file(segment):
        return found.log_end
    engine = engine_of("auto", segment)
    segment = replace(segment, witness=_Given(known))
    log_end = found.log_end
    for step in range(_MAX_STEPS):
        if log_end is not None:
            segment = replace(segment, size=max(log_end, start) - segment.base)
        end = engine.log_end(segment, start, True)
        if end.entries > 0 and found.is_contradicted_by(end):
            return found.last_end
        earlier = None
        if end.entries > 0 and (end.last_term < state.term or (state.term < 0 and found.ends_in_gap)):
            earlier = _Tail(engine, segment, start, end.pos, found, state).log_end(is_first=step == 0)
        if earlier is None:
            if log_end is None or end.entries == 0:
                return log_end
            return max(end.pos, int(known.end[known.end <= log_end].max(initial=0)))
        log_end = earlier
    return log_end


class _Tail:
    """The entries that a search finds if all of them are of the log."""

    def __init__(
        self, engine: Engine, segment: Segment, start: int, stop: int, found: Evidence, state: NodeState
    ) -> None:
        self._engine = engine
        self._segment = segment
        self._known = segment.known_entries()
        self._start = start
        self._found = found
        self._state = state
        self._entries = self._read(stop)
        self._gaps = np.flatnonzero(self._entries.pos[1:] > self._entries.end[:-1])
        """The numbers of entries that damaged or old bytes follow."""

    def log_end(self, is_first: bool) -> int | None:
        """Where the log ends before stale entries, or where these begin. Without `is_first`, some are left out."""
        if not len(self._entries.pos):
            return None  # the index has all of them otherwise: they are damaged
        proven = (self._misfit(), self._deleted(), self._beyond_index())
        number = next((one for one in proven if one is not None and self._can_be_end(one)), None)
        if number is None and (is_first or self._entries.index[-1] != self._state.end_index):
            numbers = (self._fall(), self._rise(is_first), self._checkpoint_gap())
            possible = (one for one in numbers if one is not None and self._can_be_end(one))
            number = next((one for one in possible if not self._is_known(one)), None)
        return None if number is None else int(self._entries.pos[number + 1])

    def _can_be_end(self, number: int) -> bool:
        """Whether the committed entries after an entry, which were never truncated, can be lost before the next one."""
        lost = self._state.committed_index - int(self._entries.index[number])
        return lost * ENTRY_HEADER_SIZE <= int(self._entries.pos[number + 1]) - int(self._entries.end[number])

    def _is_known(self, number: int) -> bool:
        """Whether the index has the entry after this one, or the one directly before that."""
        pos = self._entries.pos[number + 1]
        return bool((self._known.pos == pos).any() or (self._known.end == pos).any())

    def _read(self, stop: int) -> _Entries:
        request = ScanRequest(self._segment, self._start, stop, ("index", "term", "pos", "size"))
        rows = [np.empty((4, 0), np.int64)]
        rows += [np.stack([numbers_of(column, -1) for column in batch]) for batch, _ in self._engine.scan(request)]
        index, term, pos, size = np.concatenate(rows, axis=1)
        # The index of an entry that the index files have otherwise is damaged.
        is_entry = (index >= 0) & ~np.isin(pos, self._known.pos[~self._known.is_whole])
        found = _Entries(*(column[is_entry] for column in (index, term, pos, pos + size)))
        before = self._segment.before or ((-1, -1, 0) if self._segment.base == 0 else None)
        if self._start != self._segment.base or before is None or not len(found.pos):
            return found
        first = before[0], found.term[0], self._start, self._start
        return _Entries(*(np.append(value, column) for value, column in zip(first, found, strict=True)))

    def _beyond_index(self) -> int | None:
        """The number of the last entry up to the last unit, if nothing continues that and a later term follows."""
        _, term, pos, end = self._entries
        after = int(np.searchsorted(pos, self._found.last_end))
        is_last = self._found.ends_in_gap and self._found.ends_index
        is_alone = is_last and 0 < after < len(pos) and end[after - 1] <= self._found.last_end
        return after - 1 if is_alone and term[after] > self._found.last_term else None

    def _misfit(self) -> int | None:
        """The number of the entry before those of a later term, which an entry precedes that cannot be there."""
        index, term, _, end = (column.tolist() for column in self._entries)
        for number in reversed(self._gaps.tolist()):
            if term[number + 1] > term[number] and end[number] > self._segment.base:
                first_pos, first_index = self._begin_of_run(number)
                last_index, last_end = self._after_damaged(index[number], end[number], first_pos)
                lost, room = first_index - last_index - 1, first_pos - last_end
                if lost < 0 or lost * ENTRY_HEADER_SIZE > room or (lost == 0 and room > 0):
                    return int(number)
        return None

    def _after_damaged(self, index: int, end: int, stop: int) -> tuple[int, int]:
        """Index and end of the damaged entry after an entry, if its index and sizes are intact; else those given."""
        data = self._segment.read(end, ENTRY_HEADER_SIZE)
        header = decode_entry_header(data) if len(data) == ENTRY_HEADER_SIZE else None
        if header is None or header.index != index + 1 or header.size != header.body_size + ENTRY_HEADER_SIZE:
            return index, end
        is_possible = ENTRY_HEADER_SIZE <= header.size <= stop - end
        return (index + 1, end + header.size) if is_possible else (index, end)

    def _begin_of_run(self, number: int) -> tuple[int, int]:
        """Position and index of the first of the consecutive entries that lead to the one after a gap."""
        index, term, pos, end = self._entries
        at, following = int(pos[number + 1]), int(index[number + 1])
        found, headers = frames_between(self._segment, int(end[number]), at)
        for begin, header in zip(reversed(found.tolist()), reversed(headers), strict=True):
            is_same = header["index"] == following - 1 and header["term"] == term[number + 1]
            if begin + int(header["size"]) == at and is_same:
                at, following = begin, following - 1
        return at, following

    def _deleted(self) -> int | None:
        """The number of the entry before those that a truncation left.

        It deleted the files after them, if the checkpoint's end was there.
        """
        index, term, _, end = self._entries
        if self._state.end_index <= index[-1] or not _is_last_file(self._segment, int(end[-1])):
            return None
        gaps = self._gaps[index[self._gaps + 1] > self._state.committed_index]
        is_later = (np.diff(term)[gaps] > 0) | (end[gaps] == self._segment.base)
        return int(gaps[is_later][-1]) if is_later.any() else None

    def _fall(self) -> int | None:
        """The number of the entry before those of an earlier term."""
        index, term, *_ = self._entries
        falls = np.flatnonzero(np.diff(term) < 0)
        is_last = (term[falls] < self._state.term) & (index[falls] == self._state.end_index)
        falls = falls[is_last | (term[falls] == self._state.term)]
        return int(falls[0]) if len(falls) else None

    def _rise(self, is_first: bool) -> int | None:
        """The number of the entry before old bytes and entries of a later term."""
        index, term, pos, end = self._entries
        rises = np.flatnonzero(np.diff(term) > 0)
        if not len(rises) or rises[-1] not in self._gaps:
            return None
        number, begin = int(rises[-1]), int(pos[rises[-1] + 1])
        is_first = is_first and not (self._known.pos > begin).any()
        if self._has_old_bytes(int(end[number]), begin, int(index[number]), is_first):
            return number
        # Without the later term, a search can find more entries of the log.
        limited = replace(self._segment, size=begin - self._segment.base)
        last = self._engine.log_end(limited, self._start, True)
        is_old = last.entries > 0 and self._has_old_bytes(last.pos, begin, last.last_index, is_first)
        return number if is_old else None

    def _has_old_bytes(self, end: int, begin: int, index: int, is_first: bool) -> bool:
        """Whether the bytes from the end of an entry to the begin of others are of an overwritten one.

        The part of another header proves it. Without `is_first`, anything else does not.
        """
        data = self._segment.read(end, 2 * ENTRY_HEADER_SIZE)
        if end >= begin or len(data) < 2 * ENTRY_HEADER_SIZE:
            return False
        header = decode_entry_header(data)
        if header.pos == end:
            # Its entry is the last one.
            is_next = header.index == index + 1 and header.size >= ENTRY_HEADER_SIZE
            return is_next and self._has_old_bytes(end + header.size, begin, index + 1, is_first)
        if self._segment.check_pos and any(_has_pos(data, at, end) for at in range(_POS_AT + ENTRY_HEADER_SIZE)):
            return True
        is_size = header.size == header.body_size + ENTRY_HEADER_SIZE
        is_damaged = is_size or header.index == index + 1 or header.magic in ENTRY_MAGICS
        is_damaged = is_damaged or _has_lost_sector(data[:ENTRY_HEADER_SIZE], end - self._segment.base)
        return is_first and not is_damaged and not self._is_in_moved_sector(end)

    def _is_in_moved_sector(self, pos: int) -> bool:
        """Whether an entry in the same sector has the position of another sector's."""
        start = pos - (pos - self._segment.base) % _SECTOR_SIZE
        found, headers = frames_between(replace(self._segment, check_pos=False), start, start + _SECTOR_SIZE)
        shift = headers["pos"].astype(np.int64) - found
        return bool(((shift != 0) & (shift % _SECTOR_SIZE == 0)).any())

    def _checkpoint_gap(self) -> int | None:
        """The number of the entry before a gap in which the checkpoint's end is."""
        index, term, pos, end = self._entries
        if not 0 <= self._state.end_index < index[-1] or self._state.end_index < self._found.last_index:
            return None
        lost = self._state.end_index - index[self._gaps]
        start, stop = end[self._gaps], pos[self._gaps + 1]
        fits = (lost >= 0) & (lost * ENTRY_HEADER_SIZE <= stop - start)
        # Truncated entries have not the term of the last entry.
        fits &= (lost > 0) | (np.diff(term)[self._gaps] != 0)
        # Without entries in flight, the checkpoint lags less.
        if self._state.committed_index < self._state.end_index:
            fits &= index[self._gaps + 1] > self._state.end_index
        numbers = self._gaps[fits].tolist()
        return numbers[-1] if numbers and not self._is_continued(numbers[-1]) else None

    def _is_continued(self, number: int) -> bool:
        """Whether the damaged header after an entry is that of an entry after the checkpoint's end."""
        index, _, _, end = (int(column[number]) for column in self._entries)
        data = self._segment.read(end, ENTRY_HEADER_SIZE)
        if len(data) < ENTRY_HEADER_SIZE:
            return False
        header = decode_entry_header(data)
        next_pos, next_index = int(self._entries.pos[number + 1]), int(self._entries.index[number + 1])
        if header.index != index + 1:
            return False
        is_lone = next_index == index + 2 and next_pos - end in (header.size, header.body_size + ENTRY_HEADER_SIZE)
        return is_lone or index >= self._state.end_index


def _has_entry_in_next_file(segment: Segment) -> bool:
    """Whether the next file has an entry: a truncation deletes the files after the log's end."""
    if not segment.file.is_local:
        return False
    path = Path(segment.path).with_name(segment_name(segment.end))
    following = replace(segment, file=file_at(str(path)), base=segment.end, witness=None)
    pos, _ = frames_between(following, following.base, following.base + min(segment.size, 2 * MAX_ENTRY_SIZE))
    return len(pos) > 0


def _is_last_file(segment: Segment, end: int) -> bool:
    """Whether the log fills a file up to the blank at `end`, and no file follows."""
    path = path_of(segment.path)
    data = segment.read(end, MIN_BLANK_SIZE)
    is_closed = len(data) == MIN_BLANK_SIZE and decode_blank(data) == segment.end - end
    return is_closed and not path.with_name(f"{segment.end:020}").exists()


def _has_lost_sector(header: bytes, offset: int) -> bool:
    """Whether the part of a header in one of its sectors is zeros, for a header at this offset of a file."""
    in_first = _SECTOR_SIZE - offset % _SECTOR_SIZE
    return not any(header[:in_first]) or (in_first < len(header) and not any(header[in_first:]))


def _has_pos(data: bytes, at: int, begin: int) -> bool:
    """Whether the position at offset `at` is that of its header, for data that begins at `begin`."""
    return int.from_bytes(data[at : at + 8], "big") == begin + at - _POS_AT
