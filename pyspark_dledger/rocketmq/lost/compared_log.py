"""What the comparison of replicas calls damaged, missing or undecided on one of them, as places of one history."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAX_ENTRY_SIZE
from pyspark_dledger.format.spec import DLEDGER, ScanRequest
from pyspark_dledger.log.committed import promised_committed
from pyspark_dledger.log.copies.segment_copy import Damages
from pyspark_dledger.log.diff.commit_log_group import CommitLogGroup
from pyspark_dledger.log.diff.copy_ranges import AFTER, DAMAGED, FILLER, INTACT, UNREAD, Copy, CopyRange
from pyspark_dledger.log.diff.replica_group import ReplicaGroup
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.salvage.compared_stores import ComparedStores
from pyspark_dledger.log.salvage.lost_entries import LostEntry, Repair
from pyspark_dledger.log.salvage.pieces import Piece
from pyspark_dledger.log.salvage.restored_log import Extent, end_of, indexes_of, start_of

_COLUMNS = ("kind", "pos", "size", "index", "term", "storeTimestamp", "topic", "queueId", "queueOffset")
_CONTRADICTED = "expected what another replica has, or what units say, found other bytes"
MAX_LISTED = 100_000
"""More entries of one place are one row."""

Row = dict[str, Any]


class Having(NamedTuple):
    """The names of the replicas that lost something, have it intact, or have a copy that nothing judges."""

    lost: tuple[str, ...]
    intact: tuple[str, ...]
    unclear: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Positions ``[start, end)`` of one history that a replica lost, or of which nothing judges its copy.

    In DLedger it has the ``entries`` from index ``first`` on; else both are None. ``is_exact``: it is one entry or
    message; ``row`` is that of an intact copy (``is_held``) or of a damaged one, if there is one. ``is_end``: a
    checkpoint says that these entries were committed after the end of the log. Times are those of the intact
    neighbours, in microseconds since 1970.
    """

    source: str
    history: int
    start: int
    end: int
    problem: str = ""
    first: int | None = None
    entries: int | None = None
    term: int | None = None
    is_exact: bool = False
    is_held: bool = False
    is_end: bool = False
    row: Row | None = None
    restorable_from: tuple[str, ...] = ()
    stored_before: int | None = None
    stored_after: int | None = None

    @property
    def header(self) -> int:
        """Bytes of an entry before its message."""
        return ENTRY_HEADER_SIZE if self.source == DLEDGER else 0

    @property
    def last(self) -> int | None:
        """The last index."""
        return self.first + self.entries - 1 if self.first is not None and self.entries is not None else None

    @property
    def key(self) -> int:
        """The first index; of a CommitLog the position."""
        return self.start if self.first is None else self.first


class ComparedLog:
    """One kind of log in the comparison of stores, as `diff` and the plan of a salvage see it."""

    def __init__(self, compared: ComparedStores, source: str, group: ReplicaGroup | CommitLogGroup) -> None:
        self.source, self.stores, self.names = source, compared.stores, compared.names
        self._group = group
        self._copies, self._ranges, self._histories = group.copies, group.ranges, group.histories.found
        self._is_ledger = source == DLEDGER
        self._has_places = self._is_ledger and compared.is_indexed
        """Whether positions in the comparison are no positions of a log, as in DLedger 0.4.0."""
        damages = compared.damages(source)
        self._damages = [Damages(each for each in damages if each.source == n) for n in range(len(self.names))]
        self._order = sorted(range(len(self.names)), key=lambda number: self.names[number])
        """The replicas by name: no result depends on the order of the arguments."""
        self._times: dict[tuple[int, int], int | None] = {}
        """Store times by replica and position."""
        self._reached: dict[int, int] = {}
        """Where the last message ends that was read of a replica."""
        self._fillers = [SalvageFillers(store.paths) for store in self.stores]
        self._promised = [
            promised_committed(store) if self._is_ledger and not store.unread.has_end else -1 for store in self.stores
        ]

    def places(self) -> list[Place]:
        """The places of all histories, in the order of the log."""
        self._reached.clear()
        held: list[Place] = []
        gone: list[Place] = [] if self._ranges else list(self._without_history())
        for part in (part for found in self._ranges for part in self._parts(found)):
            for history in sorted(self._lacking(part)):
                donor = self._donor(part, history)
                if donor is not None:
                    held += self._held(part, history, donor)
                elif self._is_ledger:
                    gone += self._entries(part.first, part.last, history)
                else:
                    gone.append(Place(self.source, history, part.first, part.last + 1))
        gone = sorted([*gone, *self._after_ranges()], key=lambda each: (each.history, each.key))
        found = [part for place in merge_adjacent(gone, self._joined) for part in self._with_headers(place)]
        return sorted([*held, *map(self._with_times, found)], key=lambda each: (each.start, each.end, each.history))

    def having(self, history: int, key: int, size: int = 1, *, is_one: bool = True) -> Having:
        """How the replicas of a history have the entry with an index, of a CommitLog the bytes from a position on.

        A replica whose log is of another history within the bytes never had the message, if they are of one (`is_one`).
        """
        found = self._copies.at(key)
        after = tuple(Copy(AFTER, self._copies.history_of(number, key)) for number in range(len(self.names)))
        copies = found.copies if found is not None else after
        last = key if self._is_ledger else key + size - 1
        edge = last if is_one else key
        own = [
            (number, copies[number])
            for number in self._order
            if copies[number].history == history == self._copies.history_of(number, edge)
        ]
        unclear = [number for number, copy in own if copy.is_undecided or copy.state == UNREAD]
        parts = [(max(key, each.first), each.copies) for each in self._within(key, last)] or [(key, copies)]
        lost = [
            number
            for number, _ in own
            if number not in unclear and any(self._lacks(number, each[number], at) for at, each in parts)
        ]
        intact = [number for number, copy in own if copy.state == INTACT and not copy.is_undecided]
        if not self._ranges:
            lost = [number for number in self._order if self._damages[number].first_within(key, key + 1) is not None]
        elif not (lost or unclear or intact):
            lost = [number for number, copy in own if copy.state == AFTER]
        return Having(*(tuple(self.names[number] for number in numbers) for numbers in (lost, intact, unclear)))

    def _within(self, first: int, last: int) -> list[CopyRange]:
        """The ranges that overlap ``[first, last]``."""
        start = bisect_left(self._ranges, first, key=lambda each: each.last)
        return self._ranges[start : bisect_right(self._ranges, last, key=lambda each: each.first)]

    def numbers_of(self, history: int, key: int) -> list[int]:
        """The replicas whose logs are of a history at an index (position)."""
        return [number for number in self._order if self._copies.history_of(number, key) in (history, -1)]

    def _lacking(self, part: CopyRange) -> set[int]:
        """The histories of a range that a replica lost, or of which the last copy is one that nothing judges."""
        lost = {each.history for number, each in enumerate(part.copies) if self._lacks(number, each, part.first)}
        lost |= {0} if part.is_lost else set()
        intact = [each.history for each in part.copies if each.state == INTACT]
        return lost | {each.history for each in part.copies if each.is_undecided and intact.count(each.history) == 1}

    def _lacks(self, number: int, copy: Copy, key: int) -> bool:
        """Whether a replica lost an entry."""
        return key <= self._promised[number] if copy.state == AFTER else copy.state in (DAMAGED, FILLER)

    def _parts(self, found: CopyRange) -> Iterator[CopyRange]:
        """The parts of a range in which the checkpoints of the same replicas say that the entries were committed."""
        cuts = {promised + 1 for promised in self._promised if found.first <= promised < found.last}
        for first, following in pairwise([found.first, *sorted(cuts), found.last + 1]):
            yield found._replace(first=first, last=following - 1)

    def _donor(self, part: CopyRange, history: int) -> int | None:
        """A replica with an intact copy of this history; one that nothing judges only without another."""
        having = [n for n in self._order if part.copies[n].state == INTACT and part.copies[n].history == history]
        return min(having, key=lambda number: part.copies[number].is_undecided, default=None)

    def _held(self, part: CopyRange, history: int, donor: int) -> Iterator[Place]:
        """The entries that another replica has intact, as its rows show them."""
        is_held = not part.copies[donor].is_undecided
        place = Place(self.source, history, 0, 0, is_held=is_held)
        rows = list(islice(self._rows_of(part, history, donor), MAX_LISTED + 1))
        if len(rows) > MAX_LISTED:
            count = (
                self._group.messages(part) if isinstance(self._group, CommitLogGroup) else part.last - part.first + 1
            )
            start, end = rows[0]["pos"], rows[0]["pos"] + part.size
            first = part.first if self._is_ledger else None
            yield self._with_problem(replace(place, start=start, end=end, first=first, entries=count))
            return
        for row in rows:
            start, end = row["pos"], row["pos"] + row["size"]
            entry = replace(place, start=start, end=end, first=row["index"], entries=1, term=row["term"])
            yield self._with_problem(replace(entry, is_exact=True, row=row))

    def _rows_of(self, part: CopyRange, history: int, donor: int) -> Iterator[Row]:
        """The rows of a replica in a range that it has intact."""
        if not self._is_ledger:
            yield from self._messages_of(part, history, donor)
            return
        store = self.stores[donor]
        start, end = store.position_of(part.first), store.position_of(part.last + 1)
        extents = [(start, end)]
        if not self._has_places:
            # Damage elsewhere can hide the position of an entry.
            parts = self._copies.parts(history, part.first, part.last)
            whole = [(start_of(each), end_of(each)) for each in parts]
            extents = [
                (start if low <= start < high else low, end if low < end <= high and start < end else high)
                for low, high in whole
            ]
        for row in chain.from_iterable(self._rows(donor, low, high) for low, high in extents):
            if part.first <= row["index"] <= part.last:
                yield row

    def _messages_of(self, part: CopyRange, history: int, donor: int) -> Iterator[Row]:
        """The messages of a replica in a range of a CommitLog, which can begin inside one where logs diverged."""
        for extent in self._copies.parts(history, part.first, part.last):
            start = max(start_of(extent), self._reached.get(donor, 0))
            for row in self._rows(donor, start, min(end_of(extent), part.last + 1)):
                self._reached[donor] = row["pos"] + row["size"]
                if self._reached[donor] > part.first:
                    yield row

    def _rows(self, number: int, start: int, end: int, most: int = 10_000) -> Iterator[Row]:
        """The entries or messages of a replica that begin in ``[start, end)``; an entry begins at `start`."""
        store, fillers = self.stores[number], self._fillers[number]
        for segment in (each for each in store.segments if each.source == self.source):
            low, high = max(start, segment.base), min(end, segment.end)
            if low >= high:
                continue
            request = ScanRequest(replace(segment, witness=None), low, high, _COLUMNS, max_batch_rows=most)
            for batch, _ in engine_of(store.options.engine, segment).scan(request):
                times = [each.value for each in batch["storeTimestamp"]]
                is_filler = {*fillers.numbers(batch)}
                rows = zip(batch.drop_columns(["storeTimestamp"]).to_pylist(), times, strict=True)
                for place, (row, stored) in enumerate(rows):
                    row["storeTimestamp"] = stored
                    if place in is_filler:
                        # Its own time is that of the filler.
                        row.update(fillers.known_at(row["pos"]), storeTimestamp=None, isFiller=True)
                    if row["kind"] not in ("corrupt", "blank"):
                        yield row

    def _entries(self, first: int, last: int, history: int) -> Iterator[Place]:
        """The entries ``[first, last]`` of DLedger, as the decided log lays them out."""
        at, reached = first, None
        for extent in self._copies.parts(history, max(first - 1, 0), last + 1):
            low, high = indexes_of(extent)
            if at < min(low, last + 1):
                yield self._between(reached, extent, history, at, min(low - 1, last))
                at = low
            if at <= min(high, last):
                yield self._of_extent(extent, history, at, min(high, last))
                at = high + 1
            reached = extent
        if at <= last:
            yield self._between(reached, None, history, at, last)

    def _between(self, before: Extent | None, after: Extent | None, history: int, first: int, last: int) -> Place:
        """Entries that are no part of the decided log, between two parts of it."""
        edges = [each for each in (before and end_of(before), after and start_of(after)) if each is not None]
        if self._has_places or not edges:
            edges = [self._position(first), self._position(last + 1)]
        return Place(self.source, history, edges[0], max(edges), first=first, entries=last - first + 1)

    def _of_extent(self, extent: Extent, history: int, first: int, last: int) -> Place:
        start, end = start_of(extent), end_of(extent)
        if self._has_places:
            start, end = self._position(first), self._position(last + 1)
        is_known = isinstance(extent, Repair) or (isinstance(extent, LostEntry) and extent.is_known)
        is_known = is_known and not self._has_places
        place = Place(self.source, history, start, max(start, end), first=first, is_exact=is_known)
        place = replace(place, entries=last - first + 1)
        if isinstance(extent, Repair) and history == 0:
            names = tuple(sorted(self.names[number] for number in extent.sources))
            place = replace(place, restorable_from=names)
        return replace(place, term=extent.term if is_known and extent.term >= 0 else None)

    def _position(self, index: int) -> int:
        """The lowest position at which a replica has an entry, or had it."""
        return min(store.position_of(index) for store in self.stores if store.ledger_segments)

    def _without_history(self) -> Iterator[Place]:
        """All damage, if no replica has anything intact."""
        edges = sorted({edge for own in self._damages for each in own for edge in (each.start, each.end)})
        for start, end in pairwise(edges):
            if any(self._damages[number].first_within(start, end) is not None for number in self._order):
                yield Place(self.source, 0, start, end)

    def _after_ranges(self) -> Iterator[Place]:
        """What the decided log has after the ends of all replicas: committed entries of DLedger."""
        if not self._is_ledger or not self._histories:
            return
        log = self._histories[0].log
        reached = max((each.last for each in self._ranges), default=-1)
        lost: list[Extent] = [*log.lost, *log.repairs]
        for extent in sorted(lost, key=start_of):
            index, _ = indexes_of(extent)
            if index > reached and self.having(0, index).lost:
                yield self._of_extent(extent, 0, index, index)
        first = max(log.last_index, reached) + 1
        if log.lost_after is not None and self.having(0, first).lost:
            end = Place(self.source, 0, log.end, INT64_MAX, first=first, is_end=True)
            yield replace(end, entries=log.lost_after - first + 1)

    def _joined(self, last: Place, following: Place) -> Place | None:
        """Adjacent bytes, or entries whose extents nobody knows."""
        is_bytes = not self._is_ledger and last.history == following.history
        starts = last.start, following.start
        is_same = is_bytes and len({self.having(last.history, start).unclear for start in starts}) == 1
        is_open = not (last.is_exact or following.is_exact or last.is_end or following.is_end)
        if last.first is not None and last.entries is not None and following.entries is not None:
            is_same = (last.history, last.first + last.entries) == (following.history, following.first)
            last = replace(last, entries=last.entries + following.entries)
        return replace(last, end=following.end) if is_same and is_open and last.end == following.start else None

    def _with_headers(self, place: Place) -> Iterator[Place]:
        """The place in parts: entries and messages whose headers are left on a replica, and the rest."""
        rows = self._headers(place) if not place.is_end else {}
        for row in (rows[pos] for pos in sorted(rows)):
            start, end = row["pos"], row["pos"] + row["size"]
            index: int = place.first if place.is_exact else row["index"]  # type: ignore[assignment]  # None for messages
            if not _has_room(place, row):
                continue
            before = index - place.first if place.first is not None else None
            if start > place.start or before:
                yield self._with_problem(replace(place, end=start, entries=before))
            yield self._with_problem(
                replace(place, start=start, end=end, first=index, entries=1, row=row, is_exact=True)
            )
            left, first = (place.last - index, index + 1) if place.last is not None else (None, None)
            place = replace(place, start=end, first=first, entries=left)
        if place.entries or (place.entries is None and place.start < place.end):
            is_one = place.entries == 1 and place.start < place.end and not place.is_end
            yield self._with_problem(replace(place, is_exact=place.is_exact or is_one))

    def _headers(self, place: Place) -> dict[int, Row]:
        """The rows of damaged copies in a place, by position; of several those of the first replica, no filler.

        A filler that stands for several messages is the header of none.
        """
        found: dict[int, Row] = {}
        for number in self._order if not self._has_places else ():
            for damage in self._damages[number].within(place.start, place.end):
                # No message is so long: these are bytes that nobody can tell.
                if damage.end - damage.start > MAX_ENTRY_SIZE or (self._is_ledger and damage.index is None):
                    continue
                for row in self._rows(number, damage.start, damage.end):
                    if row.get("isFiller") and self._fillers[number].is_of_many(row["pos"]):
                        continue
                    if row["pos"] not in found or (row.get("isFiller") and row["topic"]):
                        found[row["pos"]] = row
        return found

    def _with_problem(self, place: Place) -> Place:
        """The place with the first problem of the first replica that lost it."""
        having = self.having(place.history, place.key)
        numbers = [number for number in self._order if self.names[number] in (*having.lost, *having.unclear)]
        end = max(place.end, place.start + 1)
        damages = (self._damages[number].first_within(place.start, end) for number in numbers if not self._has_places)
        problem = next((each.problem for each in damages if each is not None), None)
        return replace(place, problem=problem or self._missing(place, numbers))

    def _missing(self, place: Place, numbers: list[int]) -> str:
        for store in (self.stores[number] for number in numbers):
            if place.start >= store.max_offset:
                return f"the log ends at {store.max_offset}"
            if segment_at(store.segments, place.start) is None:
                return "its file is missing"
        return _CONTRADICTED

    def _with_times(self, place: Place) -> Place:
        """The place with the times of the intact entries around it."""
        pieces = self._histories[place.history].log.pieces if self._histories else ()
        key = bisect_right(pieces, place.key, key=lambda each: each.first_index if self._is_ledger else each.start)
        before = self._time(pieces[key - 1], is_last=True) if key else None
        return replace(
            place,
            stored_before=before,
            stored_after=self._time(pieces[key], is_last=False) if key < len(pieces) else None,
        )

    def _time(self, piece: Piece, *, is_last: bool) -> int | None:
        """The store time of the first or last entry of a piece."""
        start, end, store = piece.last_pos if is_last else piece.start, piece.end, self.stores[piece.donor]
        if self._has_places:
            start, end = store.position_of(piece.last_index if is_last else piece.first_index), INT64_MAX
        key = piece.donor, start
        if key not in self._times:
            row = next(self._rows(piece.donor, start, end, 1), None)
            self._times[key] = row["storeTimestamp"] if row is not None else None
        return self._times[key]


def _has_room(place: Place, row: Row) -> bool:
    """Whether an entry with this header fits among the entries of a place."""
    before, after = row["pos"] - place.start, place.end - row["pos"] - row["size"]
    if place.first is None or place.last is None or place.is_exact:
        return before >= 0 and after >= 0 and not (place.is_exact and (before or after))
    entries = row["index"] - place.first, place.last - row["index"]
    return 0 <= entries[0] * ENTRY_HEADER_SIZE <= before and 0 <= entries[1] * ENTRY_HEADER_SIZE <= after
