"""Decides how one log is put together: which source each entry is copied from, and what no source has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import MAX_ENTRY_SIZE, MIN_BLANK_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import host_sizes
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.copies.runs import Evidence, Run
from pyspark_dledger.log.copies.segment_copy import Damage
from pyspark_dledger.log.copies.stale_tails import Bounds, OwnEnd, stale_runs
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.salvage.lost_entries import (
    Gap,
    LostEntry,
    entries_after,
    entries_before,
    known_after,
    lost_entries,
)
from pyspark_dledger.log.salvage.matching import LastEntry, Tail, common_end, last_entries, matching, tails
from pyspark_dledger.log.salvage.pieces import Decide, Piece, Undecided, chosen_pieces
from pyspark_dledger.log.salvage.repairs import ReadSource, Repair, has_damaged_header, repaired

_HEAD_BYTES = 88
"""Of a message, up to its storeTimestamp and some more."""

Extent = Piece | LostEntry | Repair
"""A part of a restored log."""


@dataclass(frozen=True)
class Witnesses:
    """What the sources know apart from the entries themselves, by their numbers.

    ``ends`` are those of their own logs. ``committed`` are the indexes that their files prove committed. ``max_term``
    is the highest term of any of their currterm files, None if unknown: no entry can have a higher one. ``has_blank``
    says whether a source ends a file of old messages at a position; ``read`` reads a source.
    """

    names: tuple[str, ...]
    index_files: tuple[DLedgerIndex, ...]
    ends: tuple[OwnEnd, ...]
    committed: dict[int, int]
    max_term: int | None
    has_blank: Callable[[int], bool]
    read: ReadSource


@dataclass(frozen=True)
class RestoredLog:
    """The log that a salvage writes, ``[base, end)`` in files of ``file_size`` bytes.

    ``leader`` is the number of the source that has the last entry. ``lost`` are replaced by fillers, ``repairs`` get a
    new header. ``undecided`` are among the lost, unless the salvage is refused. ``tails`` are in sources, but not in
    this log. ``lost_after`` is the highest committed index after the end, None if everything committed is restored.
    ``lost_until`` is the position up to which a source's queues or bytes show messages of a CommitLog after its end.
    """

    source: str
    base: int
    end: int
    file_size: int
    leader: int
    pieces: tuple[Piece, ...]
    lost: tuple[LostEntry, ...]
    repairs: tuple[Repair, ...]
    undecided: tuple[Undecided, ...]
    tails: tuple[Tail, ...]
    damages: tuple[Damage, ...]
    contradicting: tuple[Run, ...]
    messages: int
    lost_after: int | None = None
    lost_until: int | None = None

    @property
    def is_longer(self) -> bool:
        """Whether it is known that the log was longer."""
        return self.lost_after is not None or self.lost_until is not None

    @property
    def first_index(self) -> int:
        return min((_indexes(each)[0] for each in self._parts), default=-1)

    @property
    def last_index(self) -> int:
        return max((_indexes(each)[1] for each in self._parts), default=-1)

    @property
    def last_term(self) -> int:
        return max((each.term for each in self._parts), default=-1)

    @property
    def _parts(self) -> list[Extent]:
        """The first and last of each kind."""
        parts = self.extents
        return [*parts[:1], *parts[-1:]]

    @property
    def extents(self) -> list[Extent]:
        """All parts of the log by position."""
        parts: list[Extent] = [*self.pieces, *self.lost, *self.repairs]
        return sorted(parts, key=start_of)


def start_of(extent: Extent) -> int:
    """The position at which a part of a log begins."""
    return extent.start if isinstance(extent, Piece) else extent.pos


def end_of(extent: Extent) -> int:
    """The position at which a part of a log ends."""
    return extent.end if isinstance(extent, Piece) else extent.pos + extent.size


def _indexes(extent: Extent) -> tuple[int, int]:
    return (extent.first_index, extent.last_index) if isinstance(extent, Piece) else (extent.index, extent.index)


def restore(
    evidence: Sequence[Evidence], file_size: int, witnesses: Witnesses, decide: Decide, log_of: int | None = None
) -> RestoredLog:
    """Put the log of all segments together.

    `log_of` is the number of the source whose log it is, by default the one with the last entry. Raises StoreError if
    no source has an entry, or if they contradict each other.
    """
    source = evidence[0].source
    runs = [_checked(run, witnesses.max_term) for each in evidence for run in each.runs]
    stale: list[Run] = []
    if source == DLEDGER and log_of is None:
        bounds = Bounds(max(witnesses.committed.values(), default=-1), witnesses.max_term)
        stale = stale_runs([run for run in runs if not run.is_suspect], witnesses.ends, bounds)
        runs = [run for run in runs if run not in stale]
    lasts = last_entries(runs, range(len(witnesses.names)))
    if not lasts:
        raise StoreError(
            f"expected intact entries in {', '.join(witnesses.names)}, found none: there is nothing to salvage"
        )
    if source == DLEDGER:
        leader, limits = _leader(runs, lasts, witnesses, log_of)
        _check_same_group(runs, lasts, limits, witnesses)
        if log_of is None:
            # Of a source without an intact entry, checkpoint and index still count.
            limits |= {number: index for number, index in witnesses.committed.items() if number not in lasts}
    else:
        leader, limits = max(lasts, key=lambda number: (lasts[number].end, -number)), dict.fromkeys(lasts, -1)
        if log_of is not None:
            leader = log_of
        runs = _without_diverged(runs, leader, witnesses, log_of is not None)
    pieces, undecided, contradicting = chosen_pieces(runs, limits, decide)
    if not pieces:
        raise StoreError(f"expected entries that can be decided, found {len(undecided)} that cannot: the copies differ")
    base = min(each.base for each in evidence)
    builder = _Builder(source, base, file_size, witnesses, limits)
    lost = list(builder.lost_between(pieces, undecided))
    whole = {number for number in limits if number in lasts and lasts[number].index <= limits[number]}
    lost += builder.lost_at_end(pieces, lost, limits[leader], whole, runs)
    end = max(pieces[-1].end, lost[-1].pos + lost[-1].size if lost else 0)
    unclear = {each.pos for each in undecided}
    damaged = {(each.pos, each.size): each for each in lost if each.is_known}
    runs, stale = ([run for run in each if not _has_damaged_header(run, damaged)] for each in (runs, stale))
    left_out = (*tails(runs, limits, leader), *tails(stale, {}, -1))
    read = _without_tails(witnesses.read, left_out)
    kept, repairs = repaired([each for each in lost if each.pos not in unclear], sorted(limits), read)
    lost = sorted([*kept, *(each for each in lost if each.pos in unclear)])
    log = RestoredLog(
        source,
        base,
        end,
        file_size,
        leader,
        tuple(pieces),
        tuple(lost),
        tuple(repairs),
        tuple(undecided),
        left_out,
        tuple(damage for each in evidence for damage in each.damages),
        tuple(contradicting),
        sum(run.messages for run in runs if not run.is_suspect),
    )
    committed = max((index for number, index in witnesses.committed.items() if number in limits), default=-1)
    is_whole = source != DLEDGER or committed <= log.last_index
    return log if is_whole else replace(log, lost_after=committed)


def _has_damaged_header(run: Run, damaged: dict[tuple[int, int], LostEntry]) -> bool:
    """Whether the run is one entry, at the place of a lost one, whose header is damaged."""
    expected = damaged.get((run.start, run.end - run.start))
    return expected is not None and has_damaged_header(expected, run.first_index, run.term)


def _without_tails(read: ReadSource, left_out: Sequence[Tail]) -> ReadSource:
    """Reads nothing where a source has entries that are not of the log."""

    def read_own(number: int, start: int, end: int) -> bytes:
        is_other = any(number in tail.sources and tail.start < end and start < tail.end for tail in left_out)
        return b"" if is_other else read(number, start, end)

    return read_own


def _checked(run: Run, max_term: int | None) -> Run:
    """The run; suspect if its term is higher than every current term, and neither a unit nor a second source has it."""
    is_odd = max_term is not None and run.term > max_term and not run.confirmed and len(run.sources) == 1
    return run._replace(is_suspect=True) if is_odd else run


def _leader(
    runs: Sequence[Run], lasts: dict[int, LastEntry], witnesses: Witnesses, log_of: int | None
) -> tuple[int, dict[int, int]]:
    """The source with the last entry whose log has all committed entries, and the limits of `matching`."""
    if log_of is not None:
        if log_of not in lasts:
            raise StoreError(f"{witnesses.names[log_of]}: expected intact entries, found none: choose another log")
        return log_of, matching(runs, log_of, lasts[log_of].index, witnesses.committed)
    order = sorted(lasts, key=lambda number: (lasts[number], -number), reverse=True)
    for number in order:
        limits = matching(runs, number, lasts[number].index, witnesses.committed)
        if all(
            limits.get(other, -1) >= min(committed, lasts[other].index)
            for other, committed in witnesses.committed.items()
            if other in lasts and other in limits
        ):
            return number, limits
    names = ", ".join(witnesses.names[number] for number in order)
    raise StoreError(
        f"no log of {names} has all entries that the others have committed: choose one (--log-of), and export the "
        "others"
    )


def _without_diverged(runs: list[Run], leader: int, witnesses: Witnesses, is_chosen: bool) -> list[Run]:
    """The runs without what other sources have after their log of messages diverged from the leader's.

    Raises StoreError for diverged logs unless the leader was chosen.
    """
    for other, name in enumerate(witnesses.names):
        is_one = partial(_is_one_message, witnesses.read, (leader, other))
        end = common_end(runs, leader, other, is_one) if other != leader else None
        if end is None:
            continue
        if not is_chosen:
            raise StoreError(
                f"{name}: from position {end} on the log differs from that of {witnesses.names[leader]}: the logs "
                "diverged. Choose the one to restore (--log-of); dledger diff shows both"
            )
        runs = [kept for run in runs if (kept := _without(run, other, end)) is not None]
    return runs


def _is_one_message(read: ReadSource, sources: Sequence[int], run: Run) -> bool:
    """Whether copies at one place are of one message: other messages differ in both times."""
    copies = [_identity(read(number, run.start, run.start + _HEAD_BYTES)) for number in sources]
    return sum(len(set(values)) == 1 for values in zip(*copies, strict=True)) >= 3


def _identity(head: bytes) -> tuple[bytes, ...]:
    """The fields bodyCRC, queueOffset, bornTimestamp and storeTimestamp of a message."""
    born_host, _ = host_sizes(int.from_bytes(head[36:40], "big"))
    return head[8:12], head[20:28], head[40:48], head[48 + born_host : 56 + born_host]


def _without(run: Run, source: int, end: int) -> Run | None:
    """The run without a source if it begins at `end` or later; None if no other source has it."""
    if run.start < end or source not in run.sources:
        return run
    variants = tuple(group for each in run.variants if (group := tuple(number for number in each if number != source)))
    return run._replace(variants=variants, majority=-1) if variants else None


def _check_same_group(
    runs: Sequence[Run], lasts: dict[int, LastEntry], limits: dict[int, int], witnesses: Witnesses
) -> None:
    """Raises StoreError for a source that has indexes of the log, but no entry of it."""
    for number in sorted(set(lasts) - set(limits)):
        own = [run for run in runs if number in run.sources and not run.is_suspect]
        others = [
            run for run in runs if number not in run.sources and not run.is_suspect and limits.keys() & run.sources
        ]
        if any(one.start < two.end and two.start < one.end for one in own for two in others):
            raise StoreError(
                f"{witnesses.names[number]}: expected entries of {witnesses.names[min(limits)]}, found none in common: "
                "it is of another group: leave it out"
            )


class _Builder:
    """Finds what is lost between the pieces of a log."""

    def __init__(self, source: str, base: int, file_size: int, witnesses: Witnesses, limits: dict[int, int]) -> None:
        self._source, self._base, self._file_size, self._witnesses = source, base, file_size, witnesses
        self._limits = limits
        self._index_files = [witnesses.index_files[number] for number in sorted(limits)]

    def lost_between(self, pieces: Sequence[Piece], undecided: Sequence[Undecided]) -> Iterator[LostEntry]:
        unclear = {each.pos: each for each in undecided}
        anchors = [*pieces, *(_anchor(each) for each in undecided)]
        before: Piece | None = None
        for piece in sorted(anchors):
            yield from self._front(piece) if before is None else self._gap(before, piece)
            if piece.start in unclear and piece.donor < 0:
                yield LostEntry(piece.start, piece.end - piece.start, piece.first_index, piece.term, True)
            before = piece

    def lost_at_end(
        self, pieces: Sequence[Piece], lost: Sequence[LostEntry], last: int, whole: set[int], runs: Sequence[Run]
    ) -> list[LostEntry]:
        """Entries after the last one of the log that index units or headers still know.

        They are committed, or a source has them in its log; the log of the sources `whole` is this one to its end.
        """
        if self._source != DLEDGER:
            return []
        after = max(
            [LostEntry(pieces[-1].end, 0, pieces[-1].last_index, pieces[-1].term, True)]
            + [LostEntry(each.pos + each.size, 0, each.index, each.term, True) for each in lost[-1:]]
        )
        until = {number: max(self._witnesses.committed.get(number, -1), last) for number in self._limits}
        for number in whole:
            until[number] = max(until[number], self._witnesses.ends[number].last_index)
        found = [
            known_after(after.index, after.pos, after.term, until[number], files, self._file_size)
            for number in self._limits
            for files in [self._witnesses.index_files[number]]
        ]
        headers = [
            LostEntry(run.start, run.end - run.start, run.first_index, run.term, True)
            for run in runs
            if run.is_suspect and run.first_index == run.last_index <= max(until.get(each, -1) for each in run.sources)
        ]
        known = max(found, key=len, default=[])
        return known or entries_after(after.index, after.pos, after.term, headers, self._file_size)

    def _front(self, first: Piece) -> Iterator[LostEntry]:
        if first.start == self._base:
            return
        if self._source != DLEDGER:
            yield from self._lost_messages(self._base, first.start)
            return
        counts = (
            entries_before(first.first_index, self._base, first.start, first.term, files) for files in self._index_files
        )
        known = max((count for count in counts if count is not None), default=None)
        least = -(-(first.start - self._base) // MAX_ENTRY_SIZE)
        count = first.first_index if self._base == 0 else known if known is not None else least
        if not count or count > first.first_index:
            raise StoreError(
                f"expected the entry {first.first_index} at {self._base}, where the log begins, found it at "
                f"{first.start}"
            )
        gap = Gap(self._base, first.start, first.first_index - count, first.first_index - 1, -1, first.term)
        yield from lost_entries(gap._replace(low=min(first.term, 0)), self._index_files, self._file_size)

    def _gap(self, before: Piece, after: Piece) -> Iterator[LostEntry]:
        if before.end == after.start:
            return
        if self._source != DLEDGER:
            yield from self._lost_messages(before.end, after.start)
        elif after.first_index > before.last_index + 1:
            gap = Gap(before.end, after.start, before.last_index + 1, after.first_index - 1, before.term, after.term)
            yield from lost_entries(gap, self._index_files, self._file_size)
        elif after.start != -(-before.end // self._file_size) * self._file_size:
            raise StoreError(
                f"expected entry {after.first_index} at {before.end}, found it at {after.start}: the sources have "
                "entries at different positions, which only DLedger 0.4.0 writes: such replicas cannot be salvaged"
            )

    def _lost_messages(self, start: int, end: int) -> Iterator[LostEntry]:
        """What is lost of old messages, file by file, without the blanks that end files."""
        while start < end:
            stop = min((start // self._file_size + 1) * self._file_size, end)
            is_file_end = stop % self._file_size == 0
            space = stop - start - (MIN_BLANK_SIZE if is_file_end else 0)
            is_blank = is_file_end and (space < MIN_MESSAGE_SIZE or self._witnesses.has_blank(start))
            if not is_blank:
                yield LostEntry(start, space, -1, -1, False)
            start = stop


def _anchor(each: Undecided) -> Piece:
    """An undecided entry as a piece without a donor."""
    return Piece(each.pos, each.pos + each.size, each.pos, each.index, each.index, each.term, -1, (), "")
