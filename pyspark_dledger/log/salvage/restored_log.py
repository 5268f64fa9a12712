"""Decides how one log is put together: which source each entry is copied from, and what no source has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import MAX_ENTRY_SIZE, MIN_BLANK_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.format.state_files import Epoch
from pyspark_dledger.log.copies.lost_ends import LostEnd, OwnEnd
from pyspark_dledger.log.copies.message_units import MessageUnits
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.copies.segment_copy import Damage
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.salvage.lost_entries import (
    Gap,
    IsElsewhere,
    LostEntry,
    PlaceOf,
    ReadSource,
    Repair,
    entries_after,
    entries_before,
    known_after,
    lost_entries,
)
from pyspark_dledger.log.salvage.matching import Tail
from pyspark_dledger.log.salvage.pieces import Piece, Undecided

Extent = Piece | LostEntry | Repair
"""A part of a restored log."""


@dataclass(frozen=True)
class Witnesses:
    """What the sources know apart from the entries themselves, by their numbers.

    ``ends`` are those of their own logs. ``committed`` are the indexes that their files prove committed, ``terms``
    those of their currterm files: no entry can have a higher one. ``has_blank`` says whether a source ends a file of
    old messages at a position; ``read`` reads a source, ``is_elsewhere`` and ``place_of`` ask the queues of all,
    ``units`` are those of each source.
    ``last_epochs`` are those of controller mode that begin in the log of a source, ``epochs`` all of its intact file.
    """

    names: tuple[str, ...]
    index_files: tuple[DLedgerIndex, ...]
    ends: tuple[OwnEnd, ...]
    committed: dict[int, int]
    terms: dict[int, int]
    has_blank: Callable[[int], bool]
    read: ReadSource
    is_elsewhere: IsElsewhere = lambda *_: False
    place_of: PlaceOf = lambda *_: None
    last_epochs: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, tuple[Epoch, ...]] = field(default_factory=dict)
    units: tuple[MessageUnits, ...] = ()


@dataclass(frozen=True)
class RestoredLog:
    """The log that a salvage writes, ``[base, end)`` in files of ``file_size`` bytes.

    ``leader`` is the number of the source that has the last entry. ``lost`` are replaced by fillers, ``repairs`` get a
    new header. ``undecided`` are among the lost, unless the salvage is refused. ``tails`` are in sources, but not in
    this log. ``lost_after`` is the highest committed index after the end, None if everything committed is restored.
    ``lost_until`` is the position up to which a source's queues or bytes show messages of a CommitLog after its end,
    ``lost_ends`` are those at unknown positions. ``stops`` are the positions at which sources have another log.
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
    lost_ends: tuple[LostEnd, ...] = ()
    stops: dict[int, int] = field(default_factory=dict)

    def with_sources(self, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> RestoredLog:
        """The log with other numbers of the sources that have something."""
        pieces = (
            each._replace(
                sources=change(each.sources),
                others=tuple(map(change, each.others)),
                unequal=change(each.unequal),
            )
            for each in self.pieces
        )
        return replace(
            self,
            pieces=tuple(pieces),
            repairs=tuple(each._replace(sources=change(each.sources)) for each in self.repairs),
            undecided=tuple(each._replace(variants=tuple(map(change, each.variants))) for each in self.undecided),
            tails=tuple(each._replace(sources=change(each.sources)) for each in self.tails),
        )

    @property
    def is_longer(self) -> bool:
        """Whether it is known that the log was longer."""
        return self.lost_after is not None or self.lost_until is not None or bool(self.lost_ends)

    @property
    def lost_from(self) -> int:
        """Where messages of a CommitLog began that are lost after its end: a shorter rest of a file has none."""
        rest = -self.end % self.file_size
        return self.end + rest if rest < MIN_MESSAGE_SIZE else self.end

    @property
    def first_index(self) -> int:
        return min((indexes_of(each)[0] for each in self._parts), default=-1)

    @property
    def last_index(self) -> int:
        return max((indexes_of(each)[1] for each in self._parts), default=-1)

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


def indexes_of(extent: Extent) -> tuple[int, int]:
    """The first and last index of a part of a log; -1 for old messages."""
    return (extent.first_index, extent.last_index) if isinstance(extent, Piece) else (extent.index, extent.index)


class LogBuilder:
    """Finds what is lost between the pieces of a log that begins at `base`, with the index `first` if that is given.

    ``problem`` says why the entries around a place contradict each other; what is lost there has no place then.
    """

    def __init__(
        self,
        source: str,
        base: int,
        file_size: int,
        witnesses: Witnesses,
        limits: dict[int, int],
        leader: int,
        first: int | None = None,
    ) -> None:
        self._source, self._base, self._file_size, self._witnesses = source, base, file_size, witnesses
        self._limits, self._first = limits, first
        self.problem = ""
        # The units of others can be of entries that they truncated or that the leader never had.
        order = sorted(limits, key=lambda number: (number != leader, witnesses.names[number]))
        self._index_files = [witnesses.index_files[number] for number in order]

    def lost_between(self, pieces: Sequence[Piece], undecided: Sequence[Undecided]) -> Iterator[LostEntry]:
        unclear = {each.pos: each for each in undecided}
        anchors = [*pieces, *(_anchor(each) for each in undecided)]
        before: Piece | None = None
        for piece in sorted(anchors):
            try:
                yield from list(self._front(piece) if before is None else self._gap(before, piece))
            except StoreError as error:
                self.problem = self.problem or str(error)
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
            [LostEntry(each.end, 0, each.last_index, each.term, True) for each in pieces[-1:]]
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
            if run.is_suspect and after.index < run.first_index <= max(until.get(each, -1) for each in run.sources)
        ]
        known = max(found, key=len, default=[])
        return [
            *known,
            *self._up_to_headers(known[-1] if known else after, sorted(headers, key=lambda each: each.index)),
        ]

    def _up_to_headers(self, tail: LostEntry, headers: Sequence[LostEntry]) -> Iterator[LostEntry]:
        """The entries after the last one that is known, up to the last damaged one whose header is left."""
        for header in headers:
            between: list[LostEntry] = []
            end = tail.pos + tail.size
            gap = Gap(end, header.pos, tail.index + 1, header.index - 1, tail.term, header.term)
            if gap.entries > 0:
                try:
                    between = lost_entries(gap, self._index_files, self._file_size)
                except StoreError:
                    return  # they have no room: the header is damaged
            last = between[-1] if between else tail
            found = entries_after(last.index, last.pos + last.size, last.term, [header], self._file_size)
            if header.index > tail.index and found:
                yield from (*between, header)
                tail = header

    def _front(self, first: Piece) -> Iterator[LostEntry]:
        if first.start == self._base:
            return
        if self._source != DLEDGER:
            yield from self._lost_messages(self._base, first.start)
            return
        if self._first is not None:
            gap = Gap(self._base, first.start, self._first, first.first_index - 1, min(first.term, 0), first.term)
            yield from lost_entries(gap, self._index_files, self._file_size) if gap.entries > 0 else ()
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
