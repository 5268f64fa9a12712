"""The log of a group, read as a salvage would restore it: damaged ranges come from an intact replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.codec import EntryHeader, encode_entry_header
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MAGIC_NORMAL, segment_name
from pyspark_dledger.format.spec import DLEDGER, LogEnd, Segment
from pyspark_dledger.log.io.entry_reads import entry_in, segment_at
from pyspark_dledger.log.io.healed_segment import HealedFile, HealedPart
from pyspark_dledger.log.io.store_engine import store_engine
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.salvage.compared_stores import map_in_threads
from pyspark_dledger.log.salvage.lost_entries import Repair
from pyspark_dledger.log.salvage.pieces import Piece
from pyspark_dledger.log.salvage.plan import FILL, SalvageOptions, check_sources, committed_index, plan_salvage
from pyspark_dledger.log.salvage.plan_rows import undecided_text
from pyspark_dledger.log.salvage.restored_log import Extent, RestoredLog, end_of, start_of
from pyspark_dledger.log.store_segments import HEAD_BYTES, FileEnds
from pyspark_dledger.log.store_view import StoreView


def open_store(path: str, options: ReadOptions) -> StoreView:
    """The store at `path`, healed if the options say so."""
    store = StoreView(path, options)
    return HealedStore(store) if options.heal else store


class HealedStore(StoreView):
    """A store whose log is the one that a salvage of it and its replicas would restore. Nothing is written.

    Entries that no replica has intact are as in the first replica that has their file and has not diverged. All
    replicas are read once. Raises OptionError and StoreError as `plan_salvage`.
    """

    def __init__(self, store: StoreView) -> None:
        super().__init__(store.path, replace(store.options, replicas=None, heal=False))
        self._stores = [store, *store.replicas]
        check_sources(self._stores)
        options = SalvageOptions(undecided=FILL, engine=store.options.engine)
        self._plan = plan_salvage(self._stores, options, map_in_threads)
        self._undecided = {(log.source, each.pos): each for log in self._plan.logs for each in log.undecided}
        self.engine = store_engine(store.options.engine)
        self.segments = [segment for log in self._plan.logs for segment in self._files(log)]
        ledger = self._plan.log(DLEDGER)
        self.restored_committed = committed_index(self._plan, ledger) if ledger is not None else None

    @property
    def sources(self) -> list[StoreView]:
        return self._stores

    def without(self, error: UnreadableError) -> HealedStore:
        """Raises the error: a file that cannot be read is damage of a replica."""
        raise error

    def refreshed(self) -> HealedStore:
        """The same store: replicas are not written during a read."""
        return self

    def check_segments(self, *, gaps_are_rows: bool) -> None:
        """Nothing: a file that is missing or not a file is damage of a replica."""

    @cached_property
    def ends(self) -> dict[str, tuple[Segment, LogEnd]]:
        """For each source, its last segment with entries and where the log ends in it."""
        return {log.source: self._end(log) for log in self._plan.logs}

    def file_ends(self, segment: Segment, is_final: bool = False) -> FileEnds:
        """See `StoreView.file_ends`."""
        head = segment.read(segment.base, HEAD_BYTES)
        return FileEnds(head, entry_in(head, segment, segment.base) if segment.source == DLEDGER else None, b"")

    def segment_end(self, segment: Segment) -> int:
        """The position up to which a segment is walked: its end, or the end of the log."""
        return min(segment.end, self.ends[segment.source][1].pos)

    def _end(self, log: RestoredLog) -> tuple[Segment, LogEnd]:
        last = log.extents[-1]
        last_pos = last.last_pos if isinstance(last, Piece) else last.pos
        segment = segment_at([each for each in self.segments if each.source == log.source], last_pos)
        assert segment is not None
        return segment, LogEnd(log.end, 1, log.last_index, log.last_term, log.last_index, log.last_term, last_pos, -1)

    def _files(self, log: RestoredLog) -> Iterator[Segment]:
        extents = log.extents
        at = 0
        for base in range(log.base, log.end, log.file_size):
            parts: list[HealedPart] = []
            files = [self._file(log.source, number, base) for number in range(len(self._stores))]
            while at < len(extents) and start_of(extents[at]) < base + log.file_size:
                part = self._part(log, extents[at], files)
                parts[-1:] = _joined(parts[-1:], part)
                at += 1
            path = next((part.segment.path for part in parts if part.segment is not None), segment_name(base))
            yield Segment(HealedFile(path, base, tuple(parts)), segment_name(base), base, log.file_size, log.source)

    def _part(self, log: RestoredLog, extent: Extent, files: list[Segment | None]) -> HealedPart:
        start, end = start_of(extent), end_of(extent)
        if isinstance(extent, Piece):
            return HealedPart(start, end, files[extent.donor], self._name(extent.donor))
        if isinstance(extent, Repair):
            numbers = extent.index, extent.term, extent.pos, 0, 0, 0, extent.size - ENTRY_HEADER_SIZE
            header = encode_entry_header(EntryHeader(MAGIC_NORMAL, extent.size, *numbers))
            return HealedPart(start, end, files[extent.donor], self._plan.names[extent.donor], header)
        undecided = self._undecided.get((log.source, start))
        if undecided is not None:
            number = min(number for group in undecided.variants for number in group)
            problem = f"{undecided_text(undecided, self._plan)}, and nothing shows that one is right"
            return HealedPart(start, end, files[number], self._name(number), problem=problem)
        diverged = {number for tail in log.tails if tail.start < end and start < tail.end for number in tail.sources}
        own = (file for number, file in enumerate(files) if file is not None and number not in diverged)
        return HealedPart(start, end, next(own, None), is_lost=True)

    def _file(self, source: str, number: int, base: int) -> Segment | None:
        return segment_at([each for each in self._stores[number].segments if each.source == source], base)

    def _name(self, number: int) -> str | None:
        return self._plan.names[number] if number > 0 else None


def _joined(before: Sequence[HealedPart], part: HealedPart) -> list[HealedPart]:
    """The part, joined with the one before it if that is adjacent and of the same replica."""
    is_one = bool(part.header) or part.problem is not None
    if before and before[0].end == part.start and before[0][2:] == part[2:] and not is_one:
        return [before[0]._replace(end=part.end)]
    return [*before, part]
