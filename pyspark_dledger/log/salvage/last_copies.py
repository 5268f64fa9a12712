"""Judges the last copies of entries that other sources lost: a checksum and a queue must confirm what is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.format.arrow_functions import numbers_of, texts_of
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import DLEDGER, Filters, IntFilter, ScanRequest, Segment
from pyspark_dledger.log.committed import promised_end
from pyspark_dledger.log.copies.indexed_copies import STEP
from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP, MessageUnits
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.salvage.matching import without_overlaps
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.segment_checks import SegmentCheckPart, messages_elsewhere
from pyspark_dledger.log.verify.verify_store import plan_findings

_COLUMNS = ("kind", "pos", "size", "index", "bodyCrc")
_CONFIRMED, _UNCONFIRMED, _CONTRADICTED, _ELSEWHERE = range(4)

_Longs = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class _Entries(NamedTuple):
    """Entries of a run in ``segment``, by place as in the run, and by position in the segment.

    ``is_checked``: a checksum covers the body, or there is none.
    """

    segment: Segment
    place: _Longs
    length: _Longs
    pos: _Longs
    size: _Longs
    index: _Longs  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    is_message: _Bools
    is_checked: _Bools


def judged(
    runs: Sequence[Run],
    extents: Mapping[int, tuple[int, int]],
    stores: Sequence[StoreView],
    source: str,
) -> list[Run]:
    """The runs of one log; last copies that nothing confirms are runs of their own.

    `extents` are the positions ``[start, end)`` in which the replicas belong to the log. Last copies count as
    contradicted, too, if the queue of their replica has the message at another place than they say.
    """
    judge = _LastCopies(stores, source, runs, extents)
    is_indexed = source == DLEDGER and any(store.dialect == "0.4" for store in stores)
    elsewhere = _Elsewhere(stores, source, is_indexed)
    found: list[Run] = []
    for run in runs:
        if len(run.sources) > 1 or run.is_suspect or not (judge.is_doubtful(run) or elsewhere.is_doubtful(run)):
            found.append(run)
            continue
        for entries in _read(stores[run.sources[0]], source, run, is_indexed):
            states = np.maximum(judge.states(run, entries), elsewhere.states(run, entries))
            found += _parts(run, entries, states)
    return found


def _parts(run: Run, entries: _Entries, states: _Longs) -> Iterator[Run]:
    """The entries of a run in parts of the same state; each contradicted one is a part."""
    cuts = (np.flatnonzero((np.diff(states) != 0) | (states[1:] >= _CONTRADICTED)) + 1).tolist()
    for low, high in zip([0, *cuts], [*cuts, len(states)], strict=True):
        last = high - 1
        yield run._replace(
            start=int(entries.place[low]),
            end=int(entries.place[last] + entries.length[last]),
            last_pos=int(entries.place[last]),
            first_index=int(entries.index[low]),
            last_index=int(entries.index[last]),
            confirmed=min(run.confirmed, high - low),
            messages=int(entries.is_message[low:high].sum()),
            is_unconfirmed=bool(states[low] == _UNCONFIRMED),
            is_contradicted=bool(states[low] >= _CONTRADICTED),
            # A unit with another place of the message is a witness against the copy: there is no majority.
            majority=0 if states[low] == _CONTRADICTED else -1,
        )


def _read(store: StoreView, source: str, run: Run, is_indexed: bool) -> Iterator[_Entries]:
    segments = [segment for segment in store.segments if segment.source == source]
    filters = Filters(index=IntFilter(run.first_index, run.last_index)) if is_indexed else Filters()
    if not is_indexed:
        segments = [segment for segment in segments if segment.base <= run.start < segment.end]
    for segment in (replace(segment, witness=None) for segment in segments):  # the entries are known
        start, end = (segment.base, store.segment_end(segment)) if is_indexed else (run.start, run.end)
        request = ScanRequest(segment, start, end, _COLUMNS, filters, verify_crc=False)
        for batch, _ in engine_of(store.options.engine, segment).scan(request):
            kinds, kind = texts_of(batch["kind"])
            is_message = np.array([each == "message" for each in kinds], np.bool_)[kind]
            pos, size, index = (numbers_of(batch[name], -1) for name in ("pos", "size", "index"))
            is_checked = is_message | (numbers_of(batch["bodyCrc"], 0) != 0) | (size <= _header(source))
            if len(batch):
                place, length = (index * STEP, np.full(len(index), STEP)) if is_indexed else (pos, size)
                yield _Entries(segment, place, length, pos, size, index, is_message, is_checked)


def _header(source: str) -> int:
    return ENTRY_HEADER_SIZE if source == DLEDGER else 0


class _LastCopies:
    """The copies of entries that other sources lost."""

    def __init__(
        self, stores: Sequence[StoreView], source: str, runs: Sequence[Run], extents: Mapping[int, tuple[int, int]]
    ) -> None:
        self._header = _header(source)
        self._units = MessageUnits([store.paths.root for store in stores if store.paths.root is not None], ())
        self._looked_up = iter(range(MAX_LOOKED_UP))
        self._intact = [_intact(runs, number) for number in range(len(stores))]
        whole = [_extent(store, source) for store in stores]
        if source == DLEDGER and any(store.dialect == "0.4" for store in stores):
            whole = [(store.begin_index * STEP, (store.end.last_index + 1) * STEP) for store in stores]
        kept = [extents.get(number, (0, 0)) for number in range(len(stores))]
        self._logs = [(max(one[0], two[0]), min(one[1], two[1])) for one, two in zip(whole, kept, strict=True)]
        self._lost_ends = [
            promised_end(store) if source == DLEDGER and end == INT64_MAX else -1
            for store, (_, end) in zip(stores, kept, strict=True)
        ]
        """The last indexes that the logs had, as their files say, also after a lost end."""

    def is_doubtful(self, run: Run) -> bool:
        others = [number for number in range(len(self._logs)) if number not in run.sources]
        is_within = any(self._logs[number][0] < run.end and run.start < self._logs[number][1] for number in others)
        return is_within or any(0 <= run.first_index <= self._lost_ends[number] for number in others)

    def states(self, run: Run, entries: _Entries) -> _Longs:
        is_lost = self._is_lost(run, entries)
        states = np.where(is_lost & ~entries.is_checked, _UNCONFIRMED, _CONFIRMED)
        doubtful = np.flatnonzero(is_lost & entries.is_checked & (entries.size > self._header))
        if not len(doubtful) or not self._units.has_queues:
            return states
        segment = entries.segment
        for row, _ in zip(doubtful.tolist(), self._looked_up, strict=False):
            start, size = int(entries.pos[row]) + self._header, int(entries.size[row]) - self._header
            if not self._units.in_queue(start, segment.read(start, size)):
                states[row] = _CONTRADICTED
        return states

    def _is_lost(self, run: Run, entries: _Entries) -> _Bools:
        """Which entries another source lost within its log, or at its end."""
        pos = entries.place
        found = np.zeros(len(pos), np.bool_)
        for number, (low, high) in enumerate(self._logs):
            if number not in run.sources:
                starts, ends = self._intact[number]
                # `ends` begins with -1, for positions before the first start.
                is_intact = pos < ends[np.searchsorted(starts, pos, "right")]
                is_in_log = (pos < high) | ((entries.index >= 0) & (entries.index <= self._lost_ends[number]))
                found |= (low <= pos) & is_in_log & ~is_intact
        return found


class _Elsewhere:
    """The messages that the queue of their replica has at another place."""

    def __init__(self, stores: Sequence[StoreView], source: str, is_indexed: bool) -> None:
        self._stores, self._source, self._is_indexed = stores, source, is_indexed
        self._parts: dict[int, list[SegmentCheckPart]] = {}
        self._starts: dict[tuple[int, int], _Longs] = {}

    def is_doubtful(self, run: Run) -> bool:
        """Whether the queue of the replica has a message of a run at another place."""
        starts = self._starts_of(run)
        first, last = np.searchsorted(starts, [run.start, run.end])
        return bool(len(starts) if self._is_indexed else first < last)

    def states(self, run: Run, entries: _Entries) -> _Longs:
        """Whether each entry is confirmed, or the queue has it elsewhere."""
        return np.where(np.isin(entries.pos, self._starts_of(run)), _ELSEWHERE, _CONFIRMED)

    def _starts_of(self, run: Run) -> _Longs:
        """Where the contradicted messages begin in the segments with a run: only these are read again."""
        number = run.sources[0]
        if number not in self._parts:
            store = self._stores[number]
            parts = plan_findings(store) if not is_remote(store.path) else []
            self._parts[number] = [
                part for part in parts if isinstance(part, SegmentCheckPart) and part.segment.source == self._source
            ]
        found = [np.empty(0, np.int64)]
        for part in self._parts[number]:
            key = number, part.segment.base
            if not (self._is_indexed or part.segment.base <= run.start < part.segment.end):
                continue
            if key not in self._starts:
                self._starts[key] = np.array([start for start, _ in messages_elsewhere(part)], np.int64)
            found.append(self._starts[key])
        return np.concatenate(found)


def _intact(runs: Sequence[Run], source: int) -> tuple[_Longs, _Longs]:
    """Where intact entries of a source begin, and -1 and where they end; overlaps are joined.

    Those with a damaged index contradict the entries around them.
    """
    starts: list[int] = []
    ends = [-1]
    own, _ = without_overlaps(run for run in runs if not run.is_suspect and source in run.sources)
    for run in own:
        if starts and run.start <= ends[-1]:
            ends[-1] = max(ends[-1], run.end)
        else:
            starts.append(run.start)
            ends.append(run.end)
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _extent(store: StoreView, source: str) -> tuple[int, int]:
    """The positions of a store's log of a kind; (0, 0) without one."""
    bases = [segment.base for segment in store.segments if segment.source == source]
    return (min(bases), store.ends[source][1].pos) if source in store.ends else (0, 0)
