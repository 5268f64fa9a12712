"""Compares replicas of one log by the terms of their entries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.spec import TermRun
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import is_remote_path, path_of
from pyspark_dledger.log.store_view import StoreView


def check_distinct(stores: Sequence[StoreView], kind: str) -> None:
    """Raises OptionError for a store that is given twice, by any path to its files. `kind` is what stores are here."""
    known: dict[object, StoreView] = {}
    for store in stores:
        for place in _places(store):
            if place in known:
                other = known[place].path
                also = f", as {other}" if str(other) != str(store.path) else ""
                raise OptionError(
                    f"{store.path}: expected each {kind} once, found this one twice{also}: remove one of them"
                )
        known.update(dict.fromkeys(_places(store), store))


def _places(store: StoreView) -> list[object]:
    """The folder of the node or of the log, and its first local file, to which another folder can have links."""
    places: list[object] = [path_of(str(store.paths.node_dir or store.path)).resolve()]
    for segment in store.segments[:1]:
        path = path_of(segment.path)
        with suppress(OSError):
            if not is_remote_path(path):
                state = path.stat()
                places.append((state.st_dev, state.st_ino))
    return places


class Terms:
    """The terms of a replica's entries, by index."""

    def __init__(self, store: StoreView, runs: list[TermRun] | None = None) -> None:
        self.store = store
        self.runs = runs if runs is not None else store.term_runs()
        self.first = self.runs[0].index if self.runs else 0
        self.last = store.end.last_index

    def at(self, index: int) -> int | None:
        """The term of the entry `index`, or None if the replica does not have it."""
        if not self.first <= index <= self.last:
            return None
        return self.runs[bisect_right(self.runs, index, key=lambda run: run.index) - 1].term

    def starts(self) -> Iterator[int]:
        """The indexes at which a term begins, and the last index."""
        yield from (run.index for run in self.runs)
        yield self.last


def agreement(first: Terms, second: Terms) -> int | None:
    """The highest index up to which both have the same terms; None without a common index."""
    begin, end = max(first.first, second.first), min(first.last, second.last)
    if begin > end:
        return None
    starts = sorted(
        {begin, end, *(index for terms in (first, second) for index in terms.starts() if begin <= index <= end)}
    )
    agreed = begin - 1
    for index, following in zip(starts, [*starts[1:], end + 1], strict=True):
        if first.at(index) != second.at(index):
            break
        agreed = following - 1
    return agreed


def majority_index(member: Terms, members: list[Terms]) -> int:
    """The highest index of `member` that a majority of `members` has with the same term; -1 without one."""
    agreed = [member.last if other is member else agreement(member, other) for other in members]
    match_indexes = sorted((index if index is not None else -1 for index in agreed), reverse=True)
    return match_indexes[len(members) // 2]


def superseding(members: list[Terms], index: int, term: int | None) -> Terms | None:
    """A member without `index` in `term` whose last term is higher: as leader it would overwrite the entry."""
    for member in members:
        last_term = member.at(member.last)
        if member.at(index) != term and last_term is not None and term is not None and last_term > term:
            return member
    return None


def same_entry(first: StoreView, second: StoreView, index: int) -> bool | None:
    """Whether two replicas have the same bytes as the entry `index`, apart from its position; None if one lost it."""
    entries = _entry(first, index), _entry(second, index)
    return None if None in entries else entries[0] == entries[1]


def _entry(store: StoreView, index: int) -> tuple[int, int, bytes] | None:
    """Term, size and body of an entry, which are the same on every replica; None where there is none."""
    pos = store.position_of(index)
    segment = segment_at(store.ledger_segments, pos)
    header = entry_at(segment, pos) if segment is not None else None
    if header is None or segment is None or header.index != index:
        return None
    body = segment.read(pos + header.size - header.body_size, header.body_size)
    return header.term, header.size, body
