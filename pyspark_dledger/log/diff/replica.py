"""A store that is compared: where its indexes, terms and entries are, in spite of damage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MIN
from pyspark_dledger.format.codec import EntryHeader
from pyspark_dledger.format.spec import Segment, TermRun
from pyspark_dledger.log.committed import Bound, best, own_bound
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.queue_files import FOLDER
from pyspark_dledger.log.replicas import Terms
from pyspark_dledger.log.store_view import StoreView

_MAX_TRIED = 1_000


@dataclass(frozen=True)
class GroupMember:
    """One replica; -1 for an index or term that does not exist. ``committed`` is the index that its own files prove.

    ``unread`` are indexes, inclusive, of files that cannot be read.
    """

    node: str
    path: str
    begin: int
    end: int
    end_term: int
    committed: int | None
    committed_from: str | None
    unread: tuple[tuple[int, int], ...] = ()

    @property
    def known_committed(self) -> int:
        return self.committed if self.committed is not None else -1


class Replica:
    """A store that is compared. Single damaged headers do not change where its indexes and terms begin."""

    def __init__(self, node: str, store: StoreView) -> None:
        self.node = node
        self.store = store
        self.firsts = _trusted(store)
        self.begin = self.firsts[0][1].index if self.firsts else -1
        self.end = store.end.last_index if self.firsts else -1
        self.end_term = _unit_term(store, store.end.last_index, store.end.last_term) if self.firsts else -1
        self.end_pos = store.end.pos
        self.check_pos = store.dialect != "0.4"

    @property
    def index_folder(self) -> Path | None:
        """The folder of the node's index units."""
        return self.store.paths.node_dir / "index" if self.store.paths.node_dir is not None else None

    @property
    def queue_root(self) -> Path | None:
        """The root with the ConsumeQueues of a local broker."""
        root = self.store.paths.root
        return root if isinstance(root, Path) and (root / FOLDER).is_dir() else None

    @property
    def last_segment(self) -> tuple[Segment, int] | None:
        """The segment in which the log ends, and the position of the end."""
        found = segment_at(self.store.ledger_segments, max(self.end_pos - 1, 0)) if self.firsts else None
        return (found, self.end_pos) if found is not None else None

    @property
    def size(self) -> int:
        """Bytes from the first entry to the end of the log."""
        return self.end_pos - self.firsts[0][0] if self.firsts else 0

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.store, _term_runs(self))

    @cached_property
    def own_bound(self) -> Bound:
        """The index that the store's own files prove committed."""
        return best([own_bound(self.store)], self.end)

    def member(self) -> GroupMember:
        bound = self.own_bound
        ends = self.begin, self.end, self.end_term
        return GroupMember(self.node, self.store.path, *ends, bound.index, bound.source, self.unread)

    @cached_property
    def unread(self) -> tuple[tuple[int, int], ...]:
        """The ranges of indexes that files left out can have."""
        found = (self.store.indexes_in(segment) for segment, _ in self.store.unread.segments)
        return tuple(indexes for indexes in found if indexes is not None)

    def position(self, index: int) -> int:
        """The position of the first entry with at least `index`; the end of the log without one."""
        if index > self.end:
            return self.end_pos
        indexed = self.store.indexed(index)
        if indexed is not None:
            return indexed
        place = max(bisect_right(self.firsts, index, key=lambda first: first[1].index) - 1, 0)
        pos = self.firsts[place][0]
        segment = segment_at(self.store.ledger_segments, pos)
        assert segment is not None
        end = self.store.segment_end(segment)
        while (pos := self.store.engine.seek(segment, pos, end, index)) < end:
            header = entry_at(segment, pos)
            following = entry_at(segment, pos + header.size) if header is not None else None
            # A damaged index is too high for the entry after it.
            if header is None or following is None or index == header.index or following.index == header.index + 1:
                return pos
            pos += header.size
        return self.firsts[place + 1][0] if place + 1 < len(self.firsts) else self.end_pos

    def entry(self, index: int) -> tuple[int, Segment] | None:
        """The position of an entry and its segment; None if it cannot be read."""
        pos = self.position(index)
        segment = segment_at(self.store.ledger_segments, pos)
        header = entry_at(segment, pos) if segment is not None else None
        return (pos, segment) if header is not None and segment is not None and header.index == index else None

    def has_any(self, first: int, last: int) -> bool:
        """Whether an entry of the indexes ``[first, last]`` can be read and has the term of the log there."""
        pos = self.position(first)
        for _ in range(_MAX_TRIED):
            segment = segment_at(self.store.ledger_segments, pos)
            header = entry_at(segment, pos) if segment is not None else None
            if header is None or header.index > last:
                return False
            if header.term == self.terms.at(header.index):
                return True
            pos += header.size
        return True

    def first_after(self, index: int) -> EntryHeader | None:
        """The header of the first entry after `index`; None if it is damaged, or there is none."""
        pos = self.position(index + 1)
        segment = segment_at(self.store.ledger_segments, pos) if self.end > index else None
        return entry_at(segment, pos) if segment is not None else None

    def cut_after(self, index: int, term: int) -> None:
        """Let the log end after `index`, with this term: the later entries are stale."""
        self.end_pos = self.position(index + 1)
        self.end, self.end_term = index, term
        self.firsts = [first for first in self.firsts if first[1].index <= index]

    def cuts(self, target: int) -> Iterator[int]:
        """Indexes that split the log into parts of about `target` bytes."""
        last = None
        for pos, header in self.firsts:
            segment = segment_at(self.store.ledger_segments, pos)
            assert segment is not None
            if last is None or pos - last >= target:
                yield header.index
                last = pos
            for cut in self.store.engine.split(segment, pos, self.store.segment_end(segment), target):
                there = entry_at(segment, cut)
                if there is not None and cut - last >= target:
                    yield there.index
                    last = cut


def _trusted(store: StoreView) -> list[tuple[int, EntryHeader]]:
    """Position and header of the first entry of each segment whose index matches those of the entries around it."""
    firsts: list[tuple[int, EntryHeader]] = []
    for segment, (pos, _, _) in store.first_entries:
        low = firsts[-1][1].index + 1 if firsts else 0
        found = _first_trusted(store, segment, pos, low)
        if found is not None:
            firsts.append(found)
    return firsts


def _first_trusted(store: StoreView, segment: Segment, pos: int, low: int) -> tuple[int, EntryHeader] | None:
    """The first entry from `pos` on with an index from `low` on; of three, one that does not fit is left out."""
    end, high = store.segment_end(segment), store.end.last_index
    for _ in range(_MAX_TRIED):
        headers = _headers_from(segment, pos)
        order = headers[1:2] + headers[:1] if _is_first_odd(headers) else headers[:1]
        for place, header in order:
            if low <= header.index <= high:
                return place, header
        after = pos
        pos = headers[0][0] + headers[0][1].size if headers else store.engine.seek(segment, pos, end, INT64_MIN)
        if not after < pos < end:
            break
    return None


def _headers_from(segment: Segment, pos: int) -> list[tuple[int, EntryHeader]]:
    """Position and header of the entry at `pos` and the two after it."""
    headers: list[tuple[int, EntryHeader]] = []
    while len(headers) < 3 and (header := entry_at(segment, pos)) is not None:
        headers.append((pos, header))
        pos += header.size
    return headers


def _is_first_odd(headers: list[tuple[int, EntryHeader]]) -> bool:
    """Whether the first of three entries has a damaged index: the other two have consecutive ones."""
    indexes = [header.index for _, header in headers]
    return len(indexes) == 3 and indexes[1] != indexes[0] + 1 and indexes[2] == indexes[1] + 1


def _term_runs(replica: Replica) -> list[TermRun]:
    """The terms of a log. Only segments in which the term changes are walked, because terms never decrease."""
    store = replica.store
    runs: list[TermRun] = []
    for place, (pos, header) in enumerate(replica.firsts):
        is_last = place + 1 == len(replica.firsts)
        next_term = replica.end_term if is_last else replica.firsts[place + 1][1].term
        if header.term == next_term:
            runs.append(TermRun(header.term, header.index, pos, 1))
            continue
        segment = segment_at(store.ledger_segments, pos)
        assert segment is not None
        found = store.engine.term_runs(segment, pos, min(store.segment_end(segment), max(replica.end_pos, pos)))
        runs += [run._replace(index=_index_of_run(segment, run)) for run in found]
    runs = _ascending(runs, replica.end)
    known = [run._replace(term=_term_of_run(store, runs, number)) for number, run in enumerate(runs)]
    return _without_odd_runs(known, replica.end)


def _ascending(runs: list[TermRun], end: int) -> list[TermRun]:
    """The runs; one that begins too late or too early has a damaged first index, and gets one by the run after it."""
    found: list[TermRun] = []
    following = end + 1
    for place in range(len(runs) - 1, -1, -1):
        run = runs[place]
        low = runs[place - 1].index + runs[place - 1].entries if place else run.index
        # The run before may itself begin at a damaged index.
        is_early = run.index < low <= following - run.entries
        if run.index >= following or is_early:
            run = run._replace(index=following - run.entries)
        found.insert(0, run)
        following = run.index
    return found


def _index_of_run(segment: Segment, run: TermRun) -> int:
    """The first index of a run, also if its first entry has a damaged one."""
    headers = _headers_from(segment, run.pos)
    return headers[1][1].index - 1 if _is_first_odd(headers) else run.index


def _term_of_run(store: StoreView, runs: list[TermRun], number: int) -> int:
    """The term of a run; that of its index unit, if the run is one entry and a run next to it has the unit's term."""
    run = runs[number]
    near = {other.term for other in runs[max(number - 1, 0) : number + 2]}
    unit_term = _unit_term(store, run.index, run.term) if run.entries == 1 else run.term
    return unit_term if unit_term in near else run.term


def _unit_term(store: StoreView, index: int, term: int) -> int:
    """The term in the index unit of an entry, if the unit gives its position and size; else `term`."""
    unit = store.index_files.unit(index) if index >= 0 else None
    segment = segment_at(store.ledger_segments, unit.pos) if unit is not None else None
    header = entry_at(segment, unit.pos) if segment is not None and unit is not None else None
    if unit is None or header is None or (header.index, header.size, header.magic) != (index, unit.size, unit.magic):
        return term
    return unit.term


def _without_odd_runs(runs: list[TermRun], end: int) -> list[TermRun]:
    """The runs whose terms ascend and have the most entries; the others have damaged terms.

    `end` is the last index. The entries of a run that is left out belong to the one before.
    """
    # The best chain that ends with each term, of those that are kept: terms and entries both ascend.
    chains: list[tuple[int, int, int]] = []
    before: list[int] = []
    for number, run in enumerate(runs):
        place = bisect_right(chains, run.term, key=lambda chain: chain[0])
        entries, last = (chains[place - 1][1], chains[place - 1][2]) if place else (0, -1)
        before.append(last)
        following = runs[number + 1].index if number + 1 < len(runs) else end + 1
        chain = run.term, entries + max(following - run.index, 1), number
        stop = place
        while stop < len(chains) and chains[stop][1] <= chain[1]:
            stop += 1
        chains[place - (place > 0 and chains[place - 1][0] == run.term) : stop] = [chain]
    kept: list[TermRun] = []
    number = chains[-1][2] if chains else -1
    while number >= 0:
        kept.append(runs[number])
        number = before[number]
    kept.reverse()
    if kept:
        kept[0] = kept[0]._replace(index=runs[0].index, pos=runs[0].pos)
    return list(merge_adjacent(kept, lambda last, run: last if last.term == run.term else None))
