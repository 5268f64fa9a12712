"""Finds the units of a node's index that have entries of one segment, and decides which of them are of the log.

Units are in the order of their index, so their positions grow up to the log's end. Units of truncated entries can
follow it. Any unit can be damaged, so a search compares medians.

A unit whose header in the data agrees with it is *confirmed*: it is of the log, or it was truncated and is stale. Units
that continue each other (index, position, term) are a chain. One confirmed unit, or two that continue each other, prove
it. Java leaves the units of truncated entries after the log's end. New entries overwrite them from the first one on,
and are of another term: a later one, or an earlier one that only a later leader had. So in the order of indexes the log
ends where a term falls, where it rises and the position does not continue, or where confirmed units do not fit each
other. A stale unit that continues the log in all this is taken for its next one, by Java's recovery too.
A lone unit that contradicts its neighbours is damaged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, ENTRY_MAGICS, INDEX_UNIT_SIZE, MAGIC_NOOP, MAGIC_NORMAL
from pyspark_dledger.format.scan.resync import MIN_WRONG_RISE
from pyspark_dledger.format.spec import Segment
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, UnitBlock
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE
from pyspark_dledger.log.witness.headers import frames_between, is_frame

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PROBE = 2048
"""Units of one probe, 64 KiB: a damaged page of 4 KiB does not decide it."""
_CHUNK = 64 * 1024
"""Units of one read, 2 MiB."""
_MAX_ELECTIONS = 2**32
"""No group has so many: a higher term is damaged."""


class Units(NamedTuple):
    """Units as columns, in the order of their index. Sizes in bytes."""

    index: Longs  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    pos: Longs
    size: Longs
    term: Longs
    magic: Longs

    def of(self, chosen: Bools | slice) -> Units:
        """The chosen units; the same if they are all."""
        if not isinstance(chosen, slice) and chosen.all():
            return self
        return Units(*(column[chosen] for column in self))


NO_UNITS = Units(*[np.empty(0, np.int64)] * 5)


class SegmentUnits(NamedTuple):
    """The units with entries of a segment, and some units before the first of them, in the order of their index."""

    before: Units
    inside: Units


class IndexUnits:
    """The units in a folder of index files. Files that cannot be read, and other files, are ignored."""

    def __init__(self, folder: Path) -> None:
        self._index = DLedgerIndex(folder)
        self._firsts = [file.base // INDEX_UNIT_SIZE for file in self._index.files]
        counts = np.cumsum([0, *(file.size // INDEX_UNIT_SIZE for file in self._index.files)]).tolist()
        # The number of units before each file: files can be missing.
        self._starts, self._total = counts[:-1], counts[-1]

    def has_file_after(self, index: int) -> bool:
        """Whether a file begins after the unit of `index`: Java creates it with its first unit."""
        return any(first > index for first in self._firsts)

    def has_room_after(self, index: int) -> bool:
        """Whether a file has room after the unit of `index`: one that ends with it can have been cut there."""
        sizes = ((file.file.size() or 0) // INDEX_UNIT_SIZE for file in self._index.files)
        return any(first <= index < first + size - 1 for first, size in zip(self._firsts, sizes, strict=True))

    def of(self, segment: Segment, start: int) -> SegmentUnits:
        """The units with entries of the segment from `start` on, found by a binary search."""
        low = bisect_left(range(-(-self._total // _PROBE)), start, key=self._median)
        return self._collect(segment, start, max(low - 2, 0) * _PROBE, low * _PROBE)

    def all_of(self, segment: Segment, start: int) -> SegmentUnits:
        """The same by reading all units, for a damaged index."""
        return self._collect(segment, start, 0, self._total)

    def _median(self, probe: int) -> int:
        units = _joined(self._read(probe * _PROBE, (probe + 1) * _PROBE))
        return int(np.median(units.pos)) if len(units.pos) else INT64_MAX

    def _collect(self, segment: Segment, start: int, number: int, at_least: int) -> SegmentUnits:
        """The units from `number` on, to the end of the segment; at least those up to number `at_least`."""
        before = NO_UNITS
        inside: list[Units] = []
        for at in range(number, self._total, _CHUNK):
            units = _joined(self._read(at, at + _CHUNK))
            if not any(len(part.pos) for part in inside):
                is_first = _is_between(units, start, segment.end)
                first = int(np.argmax(is_first)) if is_first.any() else len(is_first)
                before = _joined([before, units.of(slice(0, first))]).of(slice(-_PROBE, None))
                units = units.of(slice(first, None))
            stop = _end_of_segment(units, segment.end)
            # Those of truncated entries can have any position in the segment.
            found = units.of(slice(0, stop))
            found = found.of(_is_between(found, segment.base, segment.end))
            inside.append(found)
            if stop < len(units.pos) or (number < at > at_least and not len(found.pos)):
                break
        return SegmentUnits(before, _joined(inside))

    def _read(self, start: int, stop: int) -> Iterator[Units]:
        """The intact units from number `start` to `stop`."""
        stop = min(stop, self._total)
        while start < stop:
            number = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[number + 1] if number + 1 < len(self._starts) else self._total)
            shift = self._firsts[number] - self._starts[number]
            yield from map(_intact, self._index.blocks(start + shift, end + shift))
            start = end


def _is_between(units: Units, start: int, end: int) -> Bools:
    """Which units have entries in the positions ``[start, end)``."""
    return np.asarray((units.pos >= start) & (units.pos + units.size <= end))


def _end_of_segment(units: Units, end: int) -> int:
    """How many units there are up to two that continue each other after the segment: what follows them is stale."""
    is_past = units.pos >= end
    pairs = is_past[1:] & is_past[:-1] & (np.diff(units.index) == 1) & (np.diff(units.pos) > 0)
    return int(np.argmax(pairs)) if pairs.any() else len(units.pos)


def _intact(block: UnitBlock) -> Units:
    """The intact units of a block, of which each has its own index."""
    records = block.units
    index = np.arange(len(records), dtype=np.int64) + block.first
    units = Units(*(records[name].astype(np.int64) for name in ("index", "pos", "size", "term", "magic")))
    is_intact = (units.magic >= ENTRY_MAGICS[0]) & (units.magic <= ENTRY_MAGICS[-1]) & (units.index == index)
    is_intact &= (units.size >= ENTRY_HEADER_SIZE) & (units.term >= -1)
    is_intact &= (units.pos >= 0) & (units.pos <= 2 * HIGHEST_BASE - 1 - units.size)
    return units.of(is_intact)


def _joined(parts: Iterator[Units] | list[Units]) -> Units:
    listed = list(parts)
    return Units(*(np.concatenate(columns) for columns in zip(*listed, strict=True))) if listed else NO_UNITS


Headers = npt.NDArray[Any]


class LogUnits(NamedTuple):
    """Units of the log; ``is_whole`` says that the header in the data agrees. ``end`` is set if the log ends there."""

    units: Units
    is_whole: Bools
    end: int | None


def units_of_log(units: Units, headers: Headers, segment: Segment, before: Units, state: NodeState) -> LogUnits:
    """The units of the log among those with entries in `segment`; `headers` are what stands at their positions.

    `before` are the units before them. Committed entries were never truncated.
    """
    units, is_whole = _corrected(units, headers, is_frame(headers, units.pos, segment), state.term)
    if len(units.term):
        # Without a header that confirms it, a term that the node never saw is a damaged one.
        highest = state.term if state.term >= 0 else int(np.median(units.term)) + MIN_WRONG_RISE - 1
        possible = is_whole | (units.term <= highest)
        units, is_whole = units.of(possible), is_whole[possible]
    return _Chains(units, is_whole, segment, state, before).of_log(_term_before(before, units))


def _corrected(units: Units, headers: Headers, frames: Bools, last_term: int) -> tuple[Units, Bools]:
    """The units, and which of them their headers confirm.

    An intact header has its size twice, so its size counts. Of two terms, the one counts that fits the neighbours
    better; that of the unit, if both fit and the node's last term allows it.
    """
    own = frames & (headers["index"] == units.index)
    units = units._replace(size=np.where(own, headers["size"].astype(np.int64), units.size))
    header = units._replace(term=headers["term"].astype(np.int64))
    # A leader of 0.4.0 writes the index unit of an entry without a body with the normal magic.
    same_magic = headers["magic"] == units.magic
    same_magic |= (headers["magic"] == MAGIC_NOOP) & (units.magic == MAGIC_NORMAL)
    is_too_high = (last_term >= 0) & (units.term > last_term) & (header.term <= last_term)
    is_too_high |= (units.term > _MAX_ELECTIONS) & (header.term <= _MAX_ELECTIONS)
    rivals = own & (header.term != units.term) & ((_fit(header, units) > _fit(units, units)) | is_too_high)
    term = np.where(rivals, header.term, units.term)
    return units._replace(term=term), np.asarray(own & same_magic & (header.term == term))


def _fit(own: Units, others: Units) -> npt.NDArray[np.int64]:
    """How many neighbours each of `own`, a variant of the unit in `others` at its place, continues or leads to."""
    fits = np.zeros(len(own.pos), np.int64)
    next_to = np.diff(others.index) == 1
    follows = next_to & (own.pos[1:] == others.pos[:-1] + others.size[:-1]) & (own.term[1:] >= others.term[:-1])
    leads = next_to & (others.pos[1:] == own.pos[:-1] + own.size[:-1]) & (own.term[:-1] <= others.term[1:])
    fits[1:] += follows
    fits[:-1] += leads
    return fits


def _term_before(before: Units, units: Units) -> int:
    """The term of the last units before, if two of them continue each other; else the minimum."""
    if len(before.pos) < 2 or not len(units.pos) or before.index[-1] >= units.index[0]:
        return -1
    last = before.of(slice(len(before.pos) - 2, None))
    continues = last.index[1] == last.index[0] + 1 and last.pos[1] == last.pos[0] + last.size[0]
    return int(last.term[0]) if continues and last.term[0] <= last.term[1] else -1


class NodeState(NamedTuple):
    """What checkpoint and currterm say, which can be some seconds old; -1 where they are missing."""

    committed_index: int
    end_index: int
    term: int

    def is_after_end(self, index: int, term: int) -> bool:
        """Whether an entry is after the log's end, and no leader of the current term wrote it."""
        return 0 <= self.end_index < index and term < self.term


class _Part(NamedTuple):
    """Consecutive units, by their numbers."""

    start: int
    stop: int


class _Chains:
    def __init__(self, units: Units, is_whole: Bools, segment: Segment, state: NodeState, before: Units) -> None:
        self._units = units
        self._is_whole = is_whole
        self._whole = np.flatnonzero(is_whole)
        self._segment = segment
        self._state = state
        self._end = units.pos + units.size
        self._index_before = int(before.index[-1]) if len(before.index) else -1
        self._kept: list[_Part] = []
        self._waiting: list[_Part] = []
        """Lone units since the last kept chain."""
        self._log_end: int | None = None

    def of_log(self, min_term: int) -> LogUnits:
        units = self._units
        breaks = (np.diff(units.index) != 1) | (units.pos[1:] != self._end[:-1]) | (np.diff(units.term) < 0)
        cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(units.pos)]
        for start, stop in pairwise(cuts):
            if start < stop and not self._add(_Part(start, stop), min_term):
                break
        self._keep_waiting(None)
        chosen = np.zeros(len(units.pos), bool)
        for part in self._kept:
            chosen[part.start : part.stop] = True
        return LogUnits(units.of(chosen), self._is_whole[chosen], self._log_end)

    def _add(self, part: _Part, min_term: int) -> bool:
        """Add a chain in the order of indexes; false if the log ends before it."""
        term = self._units.term
        last = self._kept[-1] if self._kept else None
        low, high = np.searchsorted(self._whole, part).tolist()
        if low == high and part.stop == part.start + 1 and self._units.pos[part.start] != self._segment.base:
            # A lone unit proves nothing: it can be damaged.
            if term[part.start] >= min_term and self._fits(last, part):
                self._waiting.append(part)
            return True
        # Its units before the first confirmed one can be damaged.
        confirmed = part if low == high else _Part(int(self._whole[low]), part.stop)
        reach = self._end_of_entries(last, confirmed) if last is not None or low == high else 0
        if low == high and reach > self._units.pos[part.start]:
            return True
        can_be_stale = int(self._units.index[part.start]) > self._state.committed_index
        if last is not None and can_be_stale and self._is_overwritten(last, part, confirmed, reach):
            self._log_end = reach
            return False
        if can_be_stale and self._is_stale(last, part, confirmed, min_term):
            return False
        options = [(kept, chain) for kept in (self._kept, self._without_doubtful_end()) for chain in (part, confirmed)]
        options.sort(key=lambda option: option[1].start - (option[0][-1].stop if option[0] else 0))
        for kept, chain in options:
            if self._fits(kept[-1] if kept else None, chain):
                self._kept = kept
                self._keep_waiting(chain)
                self._kept.append(chain)
                return True
        return low == high or not can_be_stale

    def _end_of_entries(self, last: _Part | None, part: _Part) -> int:
        """Where the entries end that continue the last kept chain in the data, up to the place of the next chain.

        Without a kept chain, two entries at the segment's begin are needed.
        """
        begin = int(self._units.pos[part.start])
        if last is None:
            start, stop = self._segment.base, max(begin, int(self._units.pos[part.stop - 1]))
            at, index, term, count = start, -1, -1, 0
        else:
            columns = self._end, self._units.index, self._units.term
            start, index, term = (int(column[last.stop - 1]) for column in columns)
            at, stop, count = start, begin, 1
        for pos, header in zip(*frames_between(self._segment, start, stop), strict=True):
            is_next = header["index"] == index + 1 or count == 0
            if pos == at and is_next and header["term"] >= term:
                at, index, term = at + int(header["size"]), int(header["index"]), int(header["term"])
                count += 1
        return at if count > 1 else start

    def _is_overwritten(self, last: _Part, part: _Part, confirmed: _Part, reach: int) -> bool:
        """Whether entries that continue the last kept chain are in the place of the first ones of a later term."""
        pos, term = self._units.pos, self._units.term
        is_between = pos[part.start] < reach <= pos[confirmed.start]
        return bool(is_between and term[confirmed.start] > term[last.stop - 1])

    def _is_stale(self, last: _Part | None, part: _Part, confirmed: _Part, min_term: int) -> bool:
        """Whether a chain is of entries that were truncated: entries before it are of another term, and later."""
        units = self._units
        term = int(units.term[confirmed.start])
        if last is not None and self._only_index_continues(last.stop - 1, part.start):
            self._log_end = int(self._end[last.stop - 1])
            return True
        if last is not None and term < units.term[last.stop - 1]:
            end = int(self._end[last.stop - 1])
            if units.index[part.start] == units.index[last.stop - 1] + 1:
                self._log_end = end
            elif self._is_whole[confirmed.start] and units.pos[confirmed.start] >= end:
                # Units between the two are damaged or missing: the log ends somewhere before the stale entries.
                self._log_end = int(units.pos[confirmed.start])
            return True
        if term < min_term:
            return True
        index = int(units.index[part.start])
        before = int(units.index[last.stop - 1]) if last is not None else self._index_before
        if index <= before + 1:
            return False
        # Units between the two are damaged, but the data can have their entries.
        start = int(self._end[last.stop - 1]) if last is not None else self._segment.base
        _, headers = frames_between(self._segment, start, int(units.pos[confirmed.start]))
        is_between = (headers["index"] > before) & (headers["index"] < index)
        return bool((is_between & (headers["term"] > term)).any()) or self._state.is_after_end(index, term)

    def _only_index_continues(self, before: int, number: int) -> bool:
        """Whether a unit has the next index, a later term, and a position where its entry cannot be.

        With the same term it would be a damaged one: truncated and new entries never have the same.
        """
        units = self._units
        is_next = units.index[number] == units.index[before] + 1
        return bool(is_next and units.pos[number] != self._end[before] and units.term[number] > units.term[before])

    def _without_doubtful_end(self) -> list[_Part]:
        """The kept chains without the units of the last one after those that headers confirm: they can be damaged."""
        if not self._kept:
            return []
        *others, last = self._kept
        low, high = np.searchsorted(self._whole, last).tolist()
        return others if low == high else [*others, _Part(last.start, int(self._whole[high - 1]) + 1)]

    def _keep_waiting(self, following: _Part | None) -> None:
        """Keep the chains without a header that fit between the last kept one and the following one."""
        for part in self._waiting:
            last = self._kept[-1] if self._kept else None
            if self._fits(last, part) and (following is None or self._fits(part, following)):
                self._kept.append(part)
        self._waiting.clear()

    def _fits(self, before: _Part | None, part: _Part) -> bool:
        """Whether a chain can be of the same log as the one before it: entries between them can be lost."""
        if before is None:
            return True
        units, last = self._units, before.stop - 1
        lost = int(units.index[part.start]) - int(units.index[last]) - 1
        gap = int(units.pos[part.start]) - int(self._end[last])
        is_room = gap >= lost * ENTRY_HEADER_SIZE and (lost > 0 or gap == 0)
        return lost >= 0 and is_room and bool(units.term[part.start] >= units.term[last])
