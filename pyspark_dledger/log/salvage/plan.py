"""Plans a salvage: opens the sources, compares their segments in parts, and decides what is copied from where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.codec import decode_records
from pyspark_dledger.format.layout import BLANK, ENTRY_HEADER_SIZE, MESSAGE_MAGIC_BLANK, MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.committed import own_bound
from pyspark_dledger.log.copies.message_units import MAX_LOOKED_UP, MessageUnits
from pyspark_dledger.log.copies.runs import MAX_SOURCES, Evidence, Run, SegmentPart, compare_copies
from pyspark_dledger.log.copies.segment_copy import SegmentCopy
from pyspark_dledger.log.copies.stale_tails import highest_term, own_end
from pyspark_dledger.log.diff.commit_log.lost_ends import commit_log_replicas
from pyspark_dledger.log.diff.digests import replica_names
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.io.files import last_data, open_file
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.replicas import check_distinct
from pyspark_dledger.log.salvage.last_copies import judged
from pyspark_dledger.log.salvage.pieces import (
    CHOSEN,
    MAJORITY,
    QUEUE_UNIT,
    TAKEN,
    UNCONFIRMED,
    WRITTEN_SO,
    Decide,
    Piece,
    Undecided,
)
from pyspark_dledger.log.salvage.restored_log import RestoredLog, Witnesses, restore
from pyspark_dledger.log.store_view import StoreView, answer, with_end

REFUSE, FILL, BY_MAJORITY = "refuse", "filler", "majority"
UNDECIDED = (REFUSE, BY_MAJORITY, FILL)
"""What to do with entries of which nothing says that a copy is right: write nothing; take the bytes that most copies
have, or the last copy, else a filler; always a filler."""

_MAX_NOTES = 5

MapParts = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SalvageOptions:
    """How to choose: ``undecided`` is one of `UNDECIDED`; ``log_of`` names the source whose log is restored.

    ``take`` names the sources whose copies of undecided entries are right, by index.
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
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    logs: tuple[RestoredLog, ...]
    committed: dict[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refused: tuple[Undecided, ...] = ()
    unreadable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[tuple[int, int], ...] = ()

    @property
    def is_lossless(self) -> bool:
        """Whether it is sure that nothing is lost of what a source knows to be committed."""
        is_any_lost = any(log.lost or log.undecided or log.is_longer for log in self.logs)
        return not (is_any_lost or self.unconfirmed or self.unreadable)

    @property
    def chosen(self) -> list[tuple[RestoredLog, Piece]]:
        """The entries that only the request decides: by majority, or by its ``take``."""
        return [(log, piece) for log in self.logs for piece in log.pieces if piece.why in CHOSEN]

    @property
    def unconfirmed(self) -> list[Piece]:
        """The last copies of entries that other sources lost, and that no checksum covers."""
        return [piece for log in self.logs for piece in log.pieces if piece.why == UNCONFIRMED]

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

    Raises StoreError if the sources are of different logs, or contradict each other.
    """
    names = tuple(replica_names(stores))
    check_log_of(options.log_of, names)
    take = _taken(options.take, names)
    logs = []
    committed = {number: bound for number, store in enumerate(stores) if (bound := _committed(store)) is not None}
    parts = [*segment_parts(stores, COMMITLOG), *segment_parts(stores, DLEDGER, committed)]
    found = list(_compared(parts, map_parts, progress))
    for source in (COMMITLOG, DLEDGER):
        evidence = sorted((each for each in found if each.source == source), key=lambda each: each.base)
        if evidence:
            evidence = judged(evidence, stores, source)
            size = _file_size([part for part in parts if part.source == source])
            witnesses = _witnesses(stores, names, source, committed, size)
            log_of = names.index(options.log_of) if options.log_of is not None else None
            contested = [run for each in evidence for run in each.runs if len(run.variants) > 1 and not run.is_suspect]
            confirmed = _confirmed(stores, contested, source)
            log = restore(evidence, size, witnesses, _decider(options.undecided, confirmed, take), log_of)
            logs.append(log if source == DLEDGER else _with_lost_end(log, stores, log_of))
    if not logs:
        raise StoreError(f"expected segments in {', '.join(store.path for store in stores)}, found none")
    _check_taken(take, logs)
    refused = tuple(each for log in logs for each in log.undecided) if options.undecided == REFUSE else ()
    unreadable = {name: texts for name, store in zip(names, stores, strict=True) if (texts := store.unread.witnesses())}
    files = {name: texts for name, store in zip(names, stores, strict=True) if (texts := store.unread.segment_texts())}
    notes = (*_notes(parts), *_unreadable_notes(unreadable), *_unreadable_notes(files, "it has"))
    for name, store in zip(names, stores, strict=True):
        if store.unread.has_end:
            unreadable[name] = (*unreadable.get(name, ()), *files[name])
    unread = tuple(extent for store in stores for extent in store.unread.extents)
    paths = tuple(store.path for store in stores)
    return SalvagePlan(names, paths, tuple(logs), committed, notes, refused, unreadable, unread)


def _with_lost_end(log: RestoredLog, stores: Sequence[StoreView], log_of: int | None) -> RestoredLog:
    """A restored CommitLog; others than the chosen one can have diverged."""
    replicas = commit_log_replicas([stores[log_of]] if log_of is not None else stores)
    until = max((each.proven_end for each in replicas if not each.is_old), default=-1)
    return replace(log, lost_until=until) if until > log.end else log


def _confirmed(stores: Sequence[StoreView], contested: Sequence[Run], source: str) -> dict[int, tuple[int, ...]]:
    """The sources of the only copy of each run, by its start, for which no other one has more evidence in units."""
    header = ENTRY_HEADER_SIZE if source == DLEDGER else 0
    segments = [[segment for segment in store.segments if segment.source == source] for store in stores]
    roots = [store.paths.root for store in stores if store.paths.root is not None]
    units = MessageUnits(roots, (run.start + header for run in contested))
    found: dict[int, tuple[int, ...]] = {}
    for run in contested[:MAX_LOOKED_UP]:
        start = run.start + header
        damaged = units.damaged([(start, _read(segments, group[0], start, run.end)) for group in run.variants])
        if damaged.count(False) == 1:
            found[run.start] = run.variants[damaged.index(False)]
    return found


def committed_index(plan: SalvagePlan, log: RestoredLog) -> int:
    """The committed index of a restored log: the highest of all sources, at most the last index."""
    return min(max(plan.committed.values(), default=-1), log.last_index)


def check_log_of(name: str | None, names: Sequence[str]) -> None:
    """Raises OptionError unless `name` is None or one of the sources."""
    if name is not None and name not in names:
        raise OptionError(f"log-of: expected one of {', '.join(names)}, found {name}")


def _compared(parts: Sequence[SegmentPart], map_parts: MapParts, progress: Progress | None) -> Iterator[Evidence]:
    total, done = sum(part.size for part in parts), 0
    for number, found in enumerate(map_parts(compare_copies, parts)):
        yield found
        done += parts[number].size
        if progress is not None:
            progress(min(done, total), total)


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
    parts = []
    for base, following in zip_longest(sorted(segments), sorted(segments)[1:]):
        found = [
            (number, store, _before(segment, following), store.segment_end(segment))
            for number, store, segment in segments[base]
        ]
        longest = max(end for *_, end in found)
        if longest > base:
            copies = [_copy(*one, longest, fillers[one[0]]) for one in found]
            known = committed or {}
            kept = tuple(replace(copy, committed=known.get(copy.source, -1)) for copy in copies if copy.end > base)
            parts.append(SegmentPart(base, found[0][2].size, source, kept, index_folders, stores[0].options.engine))
    return parts


def _before(segment: Segment, following: int | None) -> Segment:
    """The segment, up to the base of the file that another source has after it, unless its file is longer.

    In a source that lost files, a short one seems to have space for a lost one as well.
    """
    if following is None or segment.end <= following:
        return segment
    try:
        with open_file(segment.path) as file:
            size = file.size()
    except OSError:
        size = 0
    return segment if segment.base + size > following else replace(segment, size=following - segment.base)


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


def _file_size(parts: Sequence[SegmentPart]) -> int:
    """The size of all files. Raises StoreError if the sources have files of different sizes."""
    size = max(copy.segment.size for part in parts for copy in part.copies)
    bases = sorted(part.base for part in parts)
    if any((base - bases[0]) % size for base in bases):
        raise StoreError(
            f"expected files of one size in all sources, found {size} bytes and files at "
            f"{', '.join(map(str, bases[:8]))}: salvage sources with files of one size"
        )
    return size


def _notes(parts: Sequence[SegmentPart]) -> Iterator[str]:
    for source in (COMMITLOG, DLEDGER):
        sizes = {copy.segment.size for part in parts if part.source == source for copy in part.copies}
        if len(sizes) > 1:
            yield (
                f"{source}: files of the sources have {', '.join(map(str, sorted(sizes)))} bytes, those of the result "
                f"{max(sizes)}: a node with another mappedFileSizeCommitLog does not start on them"
            )


def _unreadable_notes(unreadable: Mapping[str, Sequence[str]], what: str = "it knows") -> Iterator[str]:
    for name, files in unreadable.items():
        for text in files[:_MAX_NOTES]:
            yield f"{name}: {text}: what {what} does not count"
        if len(files) > _MAX_NOTES:
            yield f"{name}: {len(files) - _MAX_NOTES} more files cannot be read: see dledger verify"


def _committed(store: StoreView) -> int | None:
    """The index that the store's files say is committed, which can be after its damaged end."""
    known = [own_bound(store).index, store.checkpoint_committed_index]
    found = max(index for index in (*known, -1) if index is not None)
    return found if found >= 0 else None


def _witnesses(
    stores: Sequence[StoreView], names: tuple[str, ...], source: str, committed: dict[int, int], file_size: int
) -> Witnesses:
    segments = [[part for part in store.segments if part.source == source] for store in stores]
    return Witnesses(
        names,
        tuple(store.index_files for store in stores),
        tuple(map(own_end, stores)),
        committed if source == DLEDGER else {},
        highest_term(stores) if source == DLEDGER else None,
        partial(_has_blank, segments, file_size),
        partial(_read, segments),
    )


def _read(segments: Sequence[list[Segment]], number: int, start: int, end: int) -> bytes:
    segment = segment_at(segments[number], start)
    return segment.read(start, end - start) if segment is not None else b""


def _has_blank(segments: Iterable[list[Segment]], file_size: int, pos: int) -> bool:
    """Whether any source has a blank of old messages from `pos` to the end of the file."""
    for listed in segments:
        segment = segment_at(listed, pos)
        data = segment.read(pos, MIN_BLANK_SIZE) if segment is not None else b""
        if segment is not None and len(data) == MIN_BLANK_SIZE:
            # {size, magic}: the order of a message's first fields
            size, magic = decode_records(data, BLANK)[0].tolist()
            if (size, magic) == (file_size - (pos - segment.base), MESSAGE_MAGIC_BLANK):
                return True
    return False


def _taken(take: Iterable[tuple[int, str]], names: Sequence[str]) -> dict[int, int]:
    """The number of the source to take by index. Raises OptionError for an unknown source."""
    for _, name in take:
        if name not in names:
            raise OptionError(f"take: expected one of {', '.join(names)}, found {name}")
    return {index: names.index(name) for index, name in take}


def _check_taken(take: dict[int, int], logs: Iterable[RestoredLog]) -> None:
    """Raises OptionError for an index of `take` that is not undecided."""
    found = {piece.first_index for log in logs for piece in log.pieces if piece.why == TAKEN}
    if unknown := sorted(take.keys() - found):
        raise OptionError(
            f"take: expected an undecided entry, and a source with a copy of it, found {unknown[0]}: see --plan"
        )


def _decider(undecided: str, confirmed: dict[int, tuple[int, ...]], take: dict[int, int]) -> Decide:
    def decide(run: Run) -> tuple[tuple[int, ...], str] | None:
        for group in run.variants:
            if take.get(run.first_index) in group:
                return group, TAKEN
        found = tuple(source for source in confirmed.get(run.start, ()) if source in run.sources)
        if found:
            return found, QUEUE_UNIT
        if undecided != BY_MAJORITY:
            return None
        if run.is_suspect:
            return run.alike[0], WRITTEN_SO
        if run.is_contradicted:
            return run.variants[0], MAJORITY
        return (run.variants[run.majority], MAJORITY) if run.majority >= 0 else None

    return decide
