"""Plans a salvage: opens the sources, compares their segments in parts, and decides what is copied from where."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.copies.lost_ends import commit_log_replicas, lost_ends_of
from pyspark_dledger.log.copies.runs import MAX_SOURCES, Run, SegmentPart
from pyspark_dledger.log.io.salvage_fillers import TIE, UNCONFIRMED, unproven_entries
from pyspark_dledger.log.io.store_use import known_loss
from pyspark_dledger.log.next_step import as_given, export_from
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.replicas import check_distinct, numbered, replica_names
from pyspark_dledger.log.salvage.compared_stores import (
    ComparedStores,
    Confirmed,
    MapParts,
    Progress,
    decided_by_units,
)
from pyspark_dledger.log.salvage.pieces import (
    CHOSEN,
    DECIDED,
    MAJORITY,
    TAKEN,
    WRITTEN_SO,
    Decide,
    Piece,
    Undecided,
)
from pyspark_dledger.log.salvage.restored_log import RestoredLog
from pyspark_dledger.log.store_view import StoreView, answer, with_end

REFUSE, FILL, BY_MAJORITY = "refuse", "filler", "majority"
UNDECIDED = (REFUSE, BY_MAJORITY, FILL)
"""What to do with entries of which nothing says that a copy is right: write nothing; take the bytes that most copies
have, else one of the copies that differ, else a filler; always a filler."""

_MAX_NOTES = 5

Row = dict[str, Any]


class ChoiceError(StoreError):
    """Logs that diverged, without the choice of the one to restore; ``log_of`` is the foremost."""

    def __init__(self, problem: str, log_of: str) -> None:
        super().__init__(problem)
        self.log_of = log_of

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.log_of)


@dataclass(frozen=True)
class SalvageOptions:
    """How to choose: ``undecided`` is one of `UNDECIDED`; ``log_of`` names the source whose log is restored.

    ``take`` names the sources whose copies of undecided entries are right, by index, of a CommitLog by position.
    """

    undecided: str = REFUSE
    log_of: str | None = None
    take: tuple[tuple[int, str], ...] = ()
    engine: str = "auto"


@dataclass(frozen=True)
class SalvagePlan:
    """The logs to write: the old CommitLog and that of DLedger, or one of them. Sources are numbered as given.

    ``committed`` are the indexes that the sources know to be committed. With ``refused`` entries, nothing is written.
    ``unreadable`` says for each source's name what cannot be read of its checkpoint, queues and indexes, and of the end
    of its log. ``unread`` are the positions of all files of logs that cannot be read; ``notes`` name the files.
    ``inherited`` are entries of which an earlier salvage, which wrote their sources, had no proof.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    logs: tuple[RestoredLog, ...]
    committed: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refused: tuple[Undecided, ...] = ()
    unreadable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[tuple[int, int], ...] = ()
    inherited: tuple[tuple[RestoredLog, Piece], ...] = ()

    @property
    def is_lossless(self) -> bool:
        """Whether it is sure that nothing is lost of what a source knows to be committed."""
        is_any_lost = any(log.lost or log.undecided or log.is_longer for log in self.logs)
        return not (is_any_lost or self.unconfirmed or self.unreadable)

    @property
    def chosen(self) -> list[tuple[RestoredLog, Piece]]:
        """The entries that only the request decides: by majority, or by its ``take``."""
        return [(log, piece) for log, piece in self.unproven if piece.why in CHOSEN]

    @property
    def unproven(self) -> list[tuple[RestoredLog, Piece]]:
        """All entries of which no check shows that the copy is right, also by a decision of an earlier salvage."""
        reasons = (*CHOSEN, DECIDED, UNCONFIRMED)
        own = [(log, piece) for log in self.logs for piece in log.pieces if piece.why in reasons]
        known = {(log.source, piece.start) for log, piece in own}
        return [*own, *((log, piece) for log, piece in self.inherited if (log.source, piece.start) not in known)]

    @property
    def unconfirmed(self) -> list[Piece]:
        """What no check confirms: last copies of entries that others lost, one of copies that tie, or that all fail."""
        return [piece for _, piece in self.unproven if piece.why in (UNCONFIRMED, TIE) or piece.is_suspect]

    def log(self, source: str) -> RestoredLog | None:
        """The log of a kind, ``dledger`` or ``commitlog``."""
        return next((log for log in self.logs if log.source == source), None)


def open_sources(paths: Sequence[str], engine: str = "auto") -> list[StoreView]:
    """The stores at paths. Raises OptionError for a store that is given twice, StoreError if one cannot be opened."""
    if not 1 <= len(paths) <= MAX_SOURCES:
        raise OptionError(f"expected 1 to {MAX_SOURCES} sources, found {len(paths)}")
    stores = [answer(StoreView(path, ReadOptions(engine=engine, unread=())), with_end) for path in paths]
    check_sources(stores)
    return stores


def check_sources(stores: Sequence[StoreView]) -> None:
    """Raises OptionError for a store that is given twice, StoreError for one that cannot be salvaged."""
    check_distinct(stores, "source")
    for store in stores:
        if store.dialect == "0.4":
            raise StoreError(
                f"{store.path}: found a store of DLedger 0.4.0 with snapshots, which cannot be salvaged: its replicas "
                "have entries at different positions. dledger diff names the intact replicas: replace the others by "
                "copies; dledger export saves the messages of each"
            )


def plan_salvage(
    stores: Sequence[StoreView],
    options: SalvageOptions,
    map_parts: MapParts,
    progress: Progress | None = None,
) -> SalvagePlan:
    """Compare the sources and decide.

    Raises StoreError if the sources are of different logs, or contradict each other, ChoiceError to choose one.
    """
    names = tuple(replica_names(stores))
    log_of = numbered(options.log_of, stores, names, "log-of") if options.log_of is not None else None
    take = {index: numbered(name, stores, names, "take") for index, name in options.take}
    logs = []
    doubts = {source: _Doubts(stores, source) for source in (COMMITLOG, DLEDGER)}
    found = ComparedStores(stores, map_parts, progress)
    for source in (COMMITLOG, DLEDGER):
        decided = found.histories(source, partial(_decider, options.undecided, take, doubts[source]), log_of)
        if decided is not None and decided.why_not:
            chosen = decided.log_to_choose(names)
            raise StoreError(decided.why_not) if chosen is None else ChoiceError(decided.why_not, chosen)
        if decided is not None:
            log = decided.found[0].log
            diverged = {number for each in decided.found[1:] for number in each.since}
            own = [store for number, store in enumerate(stores) if number not in diverged]
            logs.append(_with_known_loss(log if source == DLEDGER else _with_lost_end(log, own), own))
    if not logs:
        raise StoreError(f"expected segments in {', '.join(store.path for store in stores)}, found none")
    _check_taken(take, logs)
    refused = tuple(each for log in logs for each in log.undecided) if options.undecided == REFUSE else ()
    unreadable = {name: texts for name, store in zip(names, stores, strict=True) if (texts := store.unread.witnesses())}
    files = {name: texts for name, store in zip(names, stores, strict=True) if (texts := store.unread.segment_texts())}
    notes = (*found.notes, *_notes(found.parts), *_unreadable_notes(unreadable), *_unreadable_notes(files, "it has"))
    for name, store in zip(names, stores, strict=True):
        if store.unread.has_end:
            unreadable[name] = (*unreadable.get(name, ()), *files[name])
    unread = tuple(extent for store in stores for extent in store.unread.extents)
    paths = tuple(store.path for store in stores)
    notes = (*notes, *(text for log in logs for text in _left_out_notes(log, names, paths)))
    inherited = tuple((log, piece) for log in logs for piece in doubts[log.source].inherited(log))
    return SalvagePlan(names, paths, tuple(logs), found.committed, notes, refused, unreadable, unread, inherited)


def _with_lost_end(log: RestoredLog, stores: Sequence[StoreView]) -> RestoredLog:
    """A restored CommitLog with what its replicas lost after its end."""
    replicas = commit_log_replicas(stores)
    until = max((each.proven_end for each in replicas if not each.is_old), default=-1)
    ends = lost_ends_of(replicas, {each.pos for each in log.undecided})
    after = tuple(each for each in ends if each.is_after_all)
    is_longer = until >= log.lost_from + MIN_MESSAGE_SIZE
    return replace(log, lost_until=until if is_longer else None, lost_ends=after)


def _with_known_loss(log: RestoredLog, stores: Sequence[StoreView]) -> RestoredLog:
    """A restored log with what the salvages that wrote its sources knew to be lost after its end."""
    losses = [loss for store in stores if (loss := known_loss(store.path)) is not None]
    if log.source == DLEDGER:
        after = max([log.lost_after or -1, *(each.last_index for each in losses)])
        return replace(log, lost_after=after) if after > log.last_index else log
    until = max([log.lost_until or -1, *(each.last_pos + 1 for each in losses)])
    return replace(log, lost_until=until) if until >= log.lost_from + MIN_MESSAGE_SIZE else log


class _Doubts:
    """The entries of which salvages that wrote some of the stores had no proof.

    The copy of such a store is that of one of its sources: it is no further witness.
    """

    def __init__(self, stores: Sequence[StoreView], source: str) -> None:
        self._rows: dict[int, Row] = {}
        self._having: dict[int, set[int]] = defaultdict(set)
        for number, store in enumerate(stores):
            for row in unproven_entries(store.paths, source):
                self._rows[row["pos"]] = row
                self._having[row["pos"]].add(number)

    def witnesses(self, start: int, sources: Iterable[int]) -> int:
        """How many of the sources have a copy of their own of the entry at a position."""
        return len({*sources} - self._having.get(start, set()))

    def is_majority(self, run: Run) -> bool:
        """Whether the variant that has the majority has it without the copies of such stores."""
        if self.witnesses(run.start, run.sources) == len(run.sources):
            return True
        votes = [self.witnesses(run.start, group) for group in run.variants]
        return votes[run.majority] > max(votes[: run.majority] + votes[run.majority + 1 :], default=0)

    def inherited(self, log: RestoredLog) -> Iterator[Piece]:
        """The entries of a log that at most one source has on its own."""
        for pos, row in sorted(self._rows.items()):
            place = bisect_right(log.pieces, pos, key=lambda each: each.start) - 1
            piece = log.pieces[place] if place >= 0 else None
            if piece is None or pos >= piece.end or self.witnesses(pos, piece.sources) > 1:
                continue
            index, size, why = row.get("index"), row.get("size"), row.get("why")
            first = index if isinstance(index, int) else -1
            last = row["lastIndex"] if isinstance(row.get("lastIndex"), int) else first
            end = min(pos + size, log.end) if isinstance(size, int) and size > 0 else piece.end
            known = piece._replace(start=pos, end=end, last_pos=pos, first_index=first, last_index=last, messages=0)
            yield known._replace(why=str(why), is_suspect=bool(row.get("isSuspect")))


def committed_index(plan: SalvagePlan, log: RestoredLog) -> int:
    """The committed index of a restored log: the highest of all sources, at most the last index."""
    return min(max(plan.committed.values(), default=-1), log.last_index)


def _notes(parts: Sequence[SegmentPart]) -> Iterator[str]:
    for source in (COMMITLOG, DLEDGER):
        sizes = {copy.segment.size for part in parts if part.source == source for copy in part.copies}
        if len(sizes) > 1:
            yield (
                f"{source}: files of the sources have {', '.join(map(str, sorted(sizes)))} bytes, those of the result "
                f"{max(sizes)}: a node with another mappedFileSizeCommitLog does not start on them"
            )


def _left_out_notes(log: RestoredLog, names: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """How to save what each source has of another history than the restored log."""
    starts: dict[int, int] = {}
    for tail in log.tails:
        starts[tail.sources[0]] = min(tail.start, starts.get(tail.sources[0], tail.start))
    for number, pos in starts.items():
        command = shlex.join(["dledger", *export_from(as_given(paths[number]), pos)])
        yield f"left out: what {names[number]} has of another history from position {pos} on; to save it: {command}"


def _unreadable_notes(unreadable: Mapping[str, Sequence[str]], what: str = "it knows") -> Iterator[str]:
    for name, files in unreadable.items():
        for text in files[:_MAX_NOTES]:
            yield f"{name}: {text}: what {what} does not count"
        if len(files) > _MAX_NOTES:
            yield f"{name}: {len(files) - _MAX_NOTES} more files cannot be read: see dledger verify"


def _place(found: Piece | Run) -> int:
    """The number that names an undecided copy: its index, of a CommitLog its position."""
    return found.first_index if found.first_index >= 0 else found.start


def _check_taken(take: dict[int, int], logs: Iterable[RestoredLog]) -> None:
    """Raises OptionError for a place of `take` that is not undecided."""
    found = {_place(piece) for log in logs for piece in log.pieces if piece.why == TAKEN}
    if unknown := sorted(take.keys() - found):
        raise OptionError(
            f"take: expected an undecided entry, and a source with a copy of it, found {unknown[0]}: see --plan"
        )


def _decider(undecided: str, take: dict[int, int], doubts: _Doubts, confirmed: Confirmed) -> Decide:
    by_units = decided_by_units(confirmed)

    def decide(run: Run) -> tuple[tuple[int, ...], str] | None:
        for group in run.variants:
            if take.get(_place(run)) in group:
                return group, TAKEN
        if (found := by_units(run)) is not None:
            return found
        if undecided != BY_MAJORITY:
            return None
        if run.is_suspect:
            return (run.alike[0], WRITTEN_SO) if run.alike else None
        if run.majority >= 0:
            return run.variants[run.majority], MAJORITY if doubts.is_majority(run) else TIE
        return (max(run.variants, key=len), TIE) if len(run.variants) > 1 and not run.is_contradicted else None

    return decide
