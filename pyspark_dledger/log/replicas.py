"""Compares replicas of one log by the terms of their entries."""

from __future__ import annotations

import os
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.codec import EntryHeader
from pyspark_dledger.format.spec import Segment, TermRun
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import is_remote_path, path_of
from pyspark_dledger.log.store_view import StoreView

_POS = slice(24, 32)
"""Where the header of an entry has its position."""


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
    if _are_parts(stores):
        paths = ",".join(store.argument for store in stores)
        raise OptionError(
            f"{paths}: expected each {kind} whole, found folders of one log, as storePathDLedgerCommitLog or "
            f"storePathCommitLog name them: {shlex.join(['dledger', 'check', paths])}"
        )


def _are_parts(stores: Sequence[StoreView]) -> bool:
    """Whether stores are folders without anything else, which have the files of one log by turns."""
    bases = sorted([segment.base for segment in store.segments] for store in stores)
    dirs = [(*store.paths.data_dirs, *store.paths.commitlog_dirs) for store in stores]
    is_bare = all(each == (path_of(store.path).absolute(),) for each, store in zip(dirs, stores, strict=True))
    is_once = len({*chain(*bases)}) == sum(map(len, bases))
    return is_bare and is_once and any(one and two and two[0] < one[-1] for one, two in pairwise(bases))


def _places(store: StoreView) -> list[object]:
    """The folder of the node or of the log, and its first local file, to which another folder can have links."""
    places: list[object] = [path_of(str(store.paths.node_dir or store.path)).resolve()]
    return places + [(state.st_dev, state.st_ino) for _, state in local_files(store.segments[:1])]


def local_files(segments: Iterable[Segment]) -> Iterator[tuple[Segment, os.stat_result]]:
    """The segments whose files are on this machine, with the state of their files."""
    for segment in segments:
        path = path_of(segment.path)
        with suppress(OSError):
            if not is_remote_path(path):
                yield segment, path.stat()


def replica_names(stores: Sequence[StoreView]) -> list[str]:
    """A name for each replica: the id of its node, else the last part of its path, else its path: the first unique."""
    paths = [store.argument for store in stores]
    forms = [[store.paths.node or "" for store in stores], [path_of(store.path).name for store in stores]]
    names = []
    for place, path in enumerate(paths):
        own = (form[place] for form in forms if form[place] and form.count(form[place]) == 1)
        names.append(next(own, path))
    return names if len({*names}) == len(names) else paths


def numbered(name: str, stores: Sequence[StoreView], names: Sequence[str], option: str) -> int:
    """The number of the replica that an option names: by its name, the id of its node, or its path as it was given.

    Raises OptionError if none has that name, or several.
    """
    for known in (names, [store.paths.node for store in stores], [store.argument for store in stores]):
        if list(known).count(name) == 1:
            return list(known).index(name)
    found = [number for number, store in enumerate(stores) if _is_path_of(name, store)]
    if len(found) != 1:
        raise OptionError(f"{option}: expected one of {', '.join(names)}, found {name}")
    return found[0]


def _is_path_of(name: str, store: StoreView) -> bool:
    path = path_of(store.path)
    return not is_remote_path(path) and path.absolute() == Path(name).absolute()


class Terms:
    """The terms of a replica's entries, by index. Only segments in which the term changes are read."""

    def __init__(self, store: StoreView) -> None:
        self.store = store
        self.runs = list(_term_runs(store))
        self.first = self.runs[0].index if self.runs else 0
        self.last = store.end.last_index

    def at(self, index: int) -> int | None:
        """The term of the entry `index`, or None if the replica does not have it."""
        if not self.runs or not self.first <= index <= self.last:
            return None
        return self.runs[bisect_right(self.runs, index, key=lambda run: run.index) - 1].term

    def starts(self) -> Iterator[int]:
        """The indexes at which a term begins, and the last index."""
        yield from (run.index for run in self.runs)
        yield self.last


def _term_runs(store: StoreView) -> Iterator[TermRun]:
    """Where terms begin. A damaged index that does not fit to those before it counts for nothing."""
    firsts = store.first_entries
    terms = [*(term for _, (_, _, term) in firsts[1:]), store.end.last_term]
    last = -1
    for (segment, (pos, index, term)), following in zip(firsts, terms, strict=True):
        runs = [TermRun(term, index, pos, 1)]
        if term != following:
            runs = store.engine.term_runs(segment, pos, store.segment_end(segment))
        for run in runs:
            if last < run.index <= store.end.last_index:
                yield run
                last = run.index


def agreement(first: Terms, second: Terms) -> int | None:
    """The highest index at which both have the same term: up to it, their logs are the same; None without a common one.

    Two logs with one entry in common are the same up to that entry (Raft, log matching).
    """
    begin, end = max(first.first, second.first), min(first.last, second.last)
    if begin > end:
        return None
    starts = {index for terms in (first, second) for index in terms.starts() if begin <= index <= end}
    following = end + 1
    for index in sorted(starts | {begin}, reverse=True):
        if first.at(following - 1) == second.at(following - 1):
            return following - 1
        following = index
    return begin - 1


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


class FoundEntry(NamedTuple):
    """An entry of a store: its header, its segment and its position there."""

    header: EntryHeader
    segment: Segment
    pos: int

    def read(self) -> bytes:
        """Its bytes; of 0.4.0 without the position in the header, which is the leader's."""
        data = self.segment.read(self.pos, self.header.size)
        return data if self.segment.check_pos else data[: _POS.start] + bytes(8) + data[_POS.stop :]


def entry_of(store: StoreView, index: int) -> FoundEntry | None:
    """An entry of a store; None if it has none with that index."""
    pos = store.position_of(index)
    segment = segment_at(store.ledger_segments, pos)
    header = entry_at(segment, pos) if segment is not None else None
    return FoundEntry(header, segment, pos) if header is not None and segment and header.index == index else None


def same_entry(first: StoreView, second: StoreView, index: int) -> bool | None:
    """Whether two replicas have the same bytes as the entry `index`, apart from its position; None if one lost it."""
    one, two = entry_of(first, index), entry_of(second, index)
    if one is None or two is None:
        return None
    return one.header.term == two.header.term and one.read()[_POS.stop :] == two.read()[_POS.stop :]
