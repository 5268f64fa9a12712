"""Compares the copies of stores: reads each segment once, in parts, and decides the logs by what the copies have."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspark_dledger.format.codec import encode_message_blank
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.format.state_files import EPOCH_FILE, Epoch
from pyspark_dledger.log.committed import own_bound, promised_committed
from pyspark_dledger.log.copies.commit_log_replica import own_replicas
from pyspark_dledger.log.copies.duplicates import duplicates, with_damages, without_copies
from pyspark_dledger.log.copies.indexed_copies import IndexedPart
from pyspark_dledger.log.copies.lost_ends import current_terms, own_end
from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP, MessageUnits
from pyspark_dledger.log.copies.runs import Evidence, Run, SegmentPart, compare_copies
from pyspark_dledger.log.copies.segment_copy import Damage, SegmentCopy
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, segment_at
from pyspark_dledger.log.io.files import last_data, open_file
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers, decided_positions
from pyspark_dledger.log.io.state_files import read_epochs
from pyspark_dledger.log.replicas import entry_of, replica_names
from pyspark_dledger.log.salvage.histories import Histories, decide_histories
from pyspark_dledger.log.salvage.last_copies import judged
from pyspark_dledger.log.salvage.pieces import DECIDED, QUEUE_UNIT, Decide
from pyspark_dledger.log.salvage.restored_log import Witnesses
from pyspark_dledger.log.store_view import StoreView

MapParts = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
Progress = Callable[[int, int], None]

_ONE_FILE = 2**62
_MAX_COUNTS = 100_000

Confirmed = dict[int, tuple[tuple[int, ...], str]]
"""For the start of an entry of which copies differ, the sources whose copy other files confirm, and why."""


def map_in_threads(function: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
    """The results for all parts, in order."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield from threads.map(function, parts)


class ComparedStores:
    """What the copies of all stores have. Sources are numbered as given.

    ``committed`` are the indexes that the sources know to be committed.
    """

    def __init__(
        self, stores: Sequence[StoreView], map_parts: MapParts = map_in_threads, progress: Progress | None = None
    ) -> None:
        self.stores = stores
        self.names = tuple(replica_names(stores))
        known = ((number, _committed(store)) for number, store in enumerate(stores))
        self.committed = {number: index for number, index in known if index is not None}
        self.is_indexed = any(store.dialect == "0.4" for store in stores)
        """Whether DLedger logs are compared by index."""
        ledger = indexed_parts(stores) if self.is_indexed else segment_parts(stores, DLEDGER, self.committed)
        self.parts = [*segment_parts(stores, COMMITLOG), *ledger]
        self._evidence = list(_compared(self.parts, map_parts, progress))
        for damage in (damage for each in self._evidence for damage in each.damages if damage.error is not None):
            _leave_out(stores[damage.source], damage)
        self._confirmed: dict[str, Confirmed] = {}
        self.duplicates = duplicates(stores, self._by_claims, self._evidence)
        """For each replica that is a copy of another one, that one: their files count once."""
        if self.duplicates:
            parts = list(without_copies(self.parts, self.duplicates))
            self._evidence = [with_damages(each, self.duplicates) for each in _compared(parts, map_parts, progress)]
            self.committed = {number: self.committed[number] for number in self.committed.keys() - self.duplicates}
        self._deciding = [stores[self.duplicates.get(number, number)] for number in range(len(stores))]
        """The stores whose files decide: a copy knows what the one that it is a copy of knows."""

    @property
    def _by_claims(self) -> list[int]:
        """The numbers of the stores, that with most claims first: of copies it counts."""

        def rank(number: int) -> tuple[int, int, int, str]:
            store = self.stores[number]
            lists, index = SalvageFillers(store.paths).positions, store.index_files.files
            return -len(lists), -self.committed.get(number, -1), -len(index), self.names[number]

        return sorted(range(len(self.stores)), key=rank)

    @property
    def notes(self) -> list[str]:
        """That replicas are copies of others."""
        pairs = sorted((self.names[copy], self.names[first]) for copy, first in self.duplicates.items())
        return [f"{copy} is a copy of {first}: what both have counts once" for copy, first in pairs]

    def damages(self, source: str) -> list[Damage]:
        """What is damaged in the logs of a kind."""
        return [damage for each in self._evidence if each.source == source for damage in each.damages]

    def histories(
        self, source: str, decide: Callable[[Confirmed], Decide] | None = None, log_of: int | None = None
    ) -> Histories | None:
        """The logs of a kind; None if no store has one.

        `decide` makes a choice from what units confirm; by default, only that decides.
        """
        evidence = sorted((each for each in self._evidence if each.source == source), key=lambda each: each.base)
        if not evidence:
            return None
        parts = [part for part in self.parts if part.source == source and isinstance(part, SegmentPart)]
        size, problem = _file_size(parts) if parts else (_ONE_FILE, "")
        if source not in self._confirmed:
            contested = [run for each in evidence for run in each.runs if len(run.variants) > 1 and not run.is_suspect]
            listed: dict[int, set[int]] = defaultdict(set)
            for number, store in enumerate(self.stores):
                listed[self.duplicates.get(number, number)] |= decided_positions(store.paths, source)
            decided = _decided(listed, (run for each in evidence for run in each.runs))
            self._confirmed[source] = decided | _confirmed(self._deciding, contested, source)
        choose = (decide or decided_by_units)(self._confirmed[source])
        judge = partial(judged, stores=self._deciding, source=source)
        chosen = self.duplicates.get(log_of, log_of) if log_of is not None else None
        found = decide_histories(evidence, size, self._witnesses(source, size), choose, judge, chosen)
        found = found.with_copies(self.duplicates) if self.duplicates else found
        return replace(found, why_not=problem) if problem else found

    def _witnesses(self, source: str, file_size: int) -> Witnesses:
        segments = [[part for part in store.segments if part.source == source] for store in self._deciding]
        committed = self.committed if source == DLEDGER else {}
        if source == DLEDGER and self.is_indexed:
            no_files = tuple(DLedgerIndex(None) for _ in self._deciding)
            ends = tuple(map(own_end, self._deciding))
            return Witnesses(self.names, no_files, ends, committed, {}, lambda _: False, lambda *_: b"")
        return Witnesses(
            names=self.names,
            index_files=tuple(store.index_files for store in self._deciding),
            ends=tuple(map(own_end, self._deciding)),
            committed=committed,
            terms=current_terms(self._deciding) if source == DLEDGER else {},
            has_blank=partial(_has_blank, segments, file_size),
            read=partial(_read, segments),
            is_elsewhere=self._units.is_elsewhere,
            place_of=self._units.place_of,
            last_epochs=self._last_epochs if source == COMMITLOG else {},
            epochs=dict(_epochs(self._deciding)) if source == COMMITLOG else {},
            units=tuple(MessageUnits(_roots([store]), ()) for store in self._deciding),
        )

    @cached_property
    def _units(self) -> MessageUnits:
        return MessageUnits(_roots(self._deciding), ())

    @cached_property
    def _last_epochs(self) -> dict[int, int]:
        epochs = ((number, one.last_epoch) for number, one in enumerate(own_replicas(self._deciding)))
        return {number: epoch for number, epoch in epochs if epoch is not None}


def _epochs(stores: Sequence[StoreView]) -> Iterator[tuple[int, tuple[Epoch, ...]]]:
    """The epochs of each store; a backup of the file can lack the last one."""
    for number, store in enumerate(stores):
        epochs, name = read_epochs(store.paths.root) if store.paths.root is not None else ((), "")
        if epochs and name == EPOCH_FILE:
            yield number, epochs


def _roots(stores: Iterable[StoreView]) -> list[Path]:
    return [store.paths.root for store in stores if store.paths.root is not None]


def decided_by_units(confirmed: Confirmed) -> Decide:
    """Decides only where units of ConsumeQueues and IndexFiles do."""

    def decide(run: Run) -> tuple[tuple[int, ...], str] | None:
        sources, why = confirmed.get(run.start, ((), ""))
        found = tuple(source for source in sources if source in run.sources)
        return (found, why) if found else None

    return decide


def _leave_out(store: StoreView, damage: Damage) -> None:
    """Adds the file to what cannot be read of a store. Raises the error if the store does not leave out files."""
    assert damage.error is not None
    if store.options.unread is None:
        raise damage.error
    for segment in store.segments:
        if segment.path == damage.error.path:
            store.unread.add_segment(segment, damage.error)


def _compared(
    parts: Sequence[SegmentPart | IndexedPart], map_parts: MapParts, progress: Progress | None
) -> Iterator[Evidence]:
    total, done = sum(part.size for part in parts), 0
    for number, found in enumerate(map_parts(compare_copies, parts)):
        yield found
        done += parts[number].size
        if progress is not None:
            progress(min(done, total), total)


def _confirmed(stores: Sequence[StoreView], contested: Sequence[Run], source: str) -> Confirmed:
    """The sources of the only copy of each run, by its start, for which no other one has more evidence in units."""
    header = ENTRY_HEADER_SIZE if source == DLEDGER else 0
    segments = [[segment for segment in store.segments if segment.source == source] for store in stores]
    if source == DLEDGER and any(store.dialect == "0.4" for store in stores):
        return _confirmed_by_index(stores, contested)
    units = MessageUnits(_roots(stores), (run.start + header for run in contested))
    found: Confirmed = {}
    for run in contested[:MAX_LOOKED_UP]:
        start = run.start + header
        damaged = units.damaged([(start, _read(segments, group[0], start, run.end)) for group in run.variants])
        if damaged.count(False) == 1:
            found[run.start] = run.variants[damaged.index(False)], QUEUE_UNIT
    return found


def _decided(by_store: Mapping[int, set[int]], runs: Iterable[Run]) -> Confirmed:
    """The copies that salvages which wrote some of the stores decided for, by the positions that each store lists."""
    known = {start for starts in by_store.values() for start in starts}
    found: Confirmed = {}
    for run in runs if known else ():
        groups = [group for group in run.variants if any(run.start in by_store[number] for number in group)]
        if len(groups) == 1 and run.start in known:
            found[run.start] = groups[0], DECIDED
    return found


def _confirmed_by_index(stores: Sequence[StoreView], contested: Sequence[Run]) -> Confirmed:
    """As `_confirmed`, of logs that are compared by index."""
    copies = {
        run.start: [entry_of(stores[group[0]], run.first_index) for group in run.variants]
        for run in contested[:MAX_LOOKED_UP]
    }
    starts = (each.pos + ENTRY_HEADER_SIZE for found in copies.values() for each in found if each is not None)
    units = MessageUnits(_roots(stores), starts)
    found: Confirmed = {}
    for run in contested[:MAX_LOOKED_UP]:
        bodies = [
            (each.pos + ENTRY_HEADER_SIZE, each.read()[ENTRY_HEADER_SIZE:]) if each is not None else (0, b"")
            for each in copies[run.start]
        ]
        damaged = units.damaged(bodies)
        if damaged.count(False) == 1:
            found[run.start] = run.variants[damaged.index(False)], QUEUE_UNIT
    return found


def indexed_parts(stores: Sequence[StoreView]) -> list[IndexedPart]:
    """All segments of DLedger logs, to be compared by index."""
    copies = tuple(
        _copy(number, store, segment, store.segment_end(segment), segment.base, frozenset())
        for number, store in enumerate(stores)
        for segment in store.ledger_segments
        if store.segment_end(segment) > segment.base
    )
    size = sum(copy.end - copy.segment.base for copy in copies)
    return [IndexedPart(copies, size, stores[0].options.engine)] if copies else []


def segment_parts(
    stores: Sequence[StoreView], source: str, committed: Mapping[int, int] | None = None
) -> list[SegmentPart]:
    """The segments of all sources by base, up to the last one that has entries in any of them.

    `committed` are the indexes that the sources, by their numbers, know to be committed.
    """
    segments: dict[int, list[tuple[int, StoreView, Segment]]] = {}
    for number, store in enumerate(stores):
        for segment in store.segments:
            if segment.source == source:
                segments.setdefault(segment.base, []).append((number, store, segment))
    index_folders = tuple(
        (number, str(store.paths.node_dir / "index"))
        for number, store in enumerate(stores)
        if store.paths.node_dir is not None
    )
    fillers = [SalvageFillers(store.paths).positions for store in stores]
    usual = _usual_size([segment for found in segments.values() for *_, segment in found])
    epochs = [each for _, found in _epochs(stores) for each in found] if source == COMMITLOG else []
    cuts = tuple(sorted({each.start for each in epochs}))
    parts = []
    for base, following in zip_longest(sorted(segments), sorted(segments)[1:]):
        end = following if following is not None else base + usual
        found = [
            (number, store, _before(segment, end), store.segment_end(segment))
            for number, store, segment in segments[base]
        ]
        longest = max(end for *_, end in found)
        if longest > base:
            copies = [_copy(*one, longest, fillers[one[0]]) for one in found]
            known = committed or {}
            kept = tuple(replace(copy, committed=known.get(copy.source, -1)) for copy in copies if copy.end > base)
            engine = stores[0].options.engine
            parts.append(SegmentPart(base, found[0][2].size, source, kept, index_folders, engine, cuts))
    return parts


def _usual_size(segments: Sequence[Segment]) -> int:
    """The size of the greatest file that is whole; a source that lost files seems to have larger ones."""
    sizes = {segment.size for segment in segments}
    whole = {segment.size for segment in segments if len(sizes) > 1 and _written_size(segment) >= segment.size}
    return max(whole or sizes, default=0)


def _written_size(segment: Segment) -> int:
    try:
        with open_file(segment.path) as file:
            return file.size()
    except OSError:
        return 0


def _before(segment: Segment, end: int) -> Segment:
    """The segment, up to the position where the files of other sources end, unless its own file is longer.

    In a source that lost files, a short one seems to have space for a lost one as well.
    """
    is_within = segment.end <= end or segment.base + _written_size(segment) > end
    return segment if is_within else replace(segment, size=end - segment.base)


def _copy(
    number: int, store: StoreView, segment: Segment, end: int, longest: int, fillers: frozenset[int]
) -> SegmentCopy:
    """A copy, read up to where another source has entries: damage can hide where its own log ends."""
    end = min(end, segment.end)
    if end < min(longest, segment.end):
        try:
            with open_file(segment.path) as file:
                written = last_data(file, end - segment.base, min(longest - segment.base, file.size()))
        except OSError:
            written = 0
        end = max(end, segment.base + written)
    node_dir = store.paths.node_dir
    index = str(node_dir / "index") if node_dir is not None and segment.source == DLEDGER else None
    own = frozenset(pos for pos in fillers if segment.base <= pos < segment.end)
    return SegmentCopy(number, segment, end, index, own)


def _file_size(parts: Sequence[SegmentPart]) -> tuple[int, str]:
    """The size of all files, and what is wrong if the sources have files of different sizes."""
    size = max(copy.segment.size for part in parts for copy in part.copies)
    bases = sorted(part.base for part in parts)
    if len(bases) == 1:
        return _fitting_size(bases[0], size), ""
    if any((base - bases[0]) % size for base in bases):
        return size, (
            f"expected files of one size in all sources, found {size} bytes and files at "
            f"{', '.join(map(str, bases[:8]))}: salvage sources with files of one size"
        )
    return size, ""


def _fitting_size(base: int, size: int) -> int:
    """The size that the only file left was created with, if `size` is what is left of it: its base is a multiple."""
    counts = range(base // size, max(base // size - _MAX_COUNTS, 0), -1)
    return next((base // count for count in counts if base % count == 0), size)


def _committed(store: StoreView) -> int | None:
    """The index that the store's files say is committed, which can be after its damaged end."""
    known = [own_bound(store).index, promised_committed(store)]
    found = max(index for index in (*known, -1) if index is not None)
    return found if found >= 0 else None


def _read(segments: Sequence[list[Segment]], number: int, start: int, end: int) -> bytes:
    segment = segment_at(segments[number], start)
    return segment.read(start, end - start) if segment is not None else b""


def _has_blank(segments: Iterable[list[Segment]], file_size: int, pos: int) -> bool:
    """Whether any source has a blank of old messages from `pos` to the end of the file."""
    for listed in segments:
        segment = segment_at(listed, pos)
        blank = encode_message_blank(file_size - (pos - segment.base)) if segment is not None else b""
        if segment is not None and segment.read(pos, MIN_BLANK_SIZE) == blank:
            return True
    return False
