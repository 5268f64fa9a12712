"""A read-only view of a store on disk: its files, its segments, where its log ends and where its entries are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.common.uris import store_path
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, LogEnd, Segment, SurveyRequest, TermRun
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at, row_at, segment_at
from pyspark_dledger.log.io.files import OnUnreadable, map_reads, raise_error
from pyspark_dledger.log.io.state_files import read_checkpoint
from pyspark_dledger.log.io.store_engine import engine_over
from pyspark_dledger.log.io.store_paths import find_store, not_files, with_data_dirs
from pyspark_dledger.log.io.store_use import check_finished
from pyspark_dledger.log.log_ends import NO_ENTRY, KnownEnds, LogEnds
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_segments import FileEnds, StoreSegments, list_store

if TYPE_CHECKING:
    from pyspark_dledger.log.io.unread_files import UnreadFiles

_Store = TypeVar("_Store", bound="StoreView")
_Answer = TypeVar("_Answer")


class RowRange(NamedTuple):
    """The positions ``[start, end)`` of a row."""

    start: int
    end: int


class Seen(NamedTuple):
    """What a look at a store found, so that a later one need not read it again."""

    segments: StoreSegments | None = None
    index_files: DLedgerIndex | None = None
    ends: KnownEnds = KnownEnds()


class StoreView:
    """One store, read when it is needed and never written.

    `options` choose the store and the engine: selfId, dataDirs, replicas, engine. Further data folders can also follow
    `path` after commas. With ``unread``, files of the log that cannot be read are left out; see `unread`. Raises
    StoreError where it has no readable store.
    """

    restored_committed: int | None = None
    """The committed index of a log that is put together from replicas."""

    def __init__(self, path: str, options: ReadOptions, seen: Seen | None = None) -> None:
        self.path, more = with_data_dirs(store_path(path))
        self.options = options = replace(options, data_dirs=(*more, *(options.data_dirs or ()))) if more else options
        self.engine = engine_over((self.path, *(options.data_dirs or ())), options.engine)
        try:
            self.paths = find_store(self.path, options.self_id, options.data_dirs)
            if seen is None:
                check_finished(self.path)
            self._seen = seen = seen if seen is not None else Seen()
            index = self.paths.node_dir / "index" if self.paths.node_dir is not None else None
            self.index_files = DLedgerIndex(index, seen.index_files)
            check_pos = self.dialect != "0.4"
            self._segments = list_store(
                self.paths, check_pos, self.engine, self.index_files, seen.segments, options.unread
            )
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be read ({error.strerror}): check its permissions") from None
        self.segments = self._segments.segments

    @cached_property
    def unread(self) -> UnreadFiles:
        """What cannot be read of the store, and what of the log is unknown because of it."""
        from pyspark_dledger.log.io.unread_files import UnreadFiles  # imports numpy, which is slow to load

        def last_base() -> int:
            return max((segment.base for segment, _ in self.ends.values()), default=-1)

        return UnreadFiles(self.paths, self._segments.unread, last_base, self.indexes_in)

    @property
    def on_unreadable(self) -> OnUnreadable:
        """Called with a file other than a log's that cannot be read: adds it to `unread`, or raises without that."""
        return raise_error if self.options.unread is None else self.unread.add

    def indexes_in(self, unread: Segment) -> tuple[int, int] | None:
        """The first and last index that a file which was left out can have; None for a CommitLog's."""
        if unread.source != DLEDGER:
            return None
        before = next((each for each in reversed(self.ledger_segments) if each.base < unread.base), None)
        end = self.engine.log_end(before, before.base, True) if before is not None else None
        following = (index for segment, (_, index, _) in self.first_entries if segment.base > unread.base)
        return end.last_index + 1 if end is not None else 0, next(following, INT64_MAX + 1) - 1

    def without(self: _Store, error: UnreadableError) -> _Store:  # noqa: PYI019 - Self needs Python 3.11
        """The store and its replicas without the file of a log that `error` names; raises `error` for another file."""
        known = self.options.unread or ()
        files = {segment.path for store in (self, *self.replicas) for segment in store.segments}
        if error.path not in files:
            raise error
        return type(self)(self.path, replace(self.options, unread=(*known, error)))

    @property
    def sources(self) -> list[StoreView]:
        """The stores that the log is read from."""
        return [self]

    @property
    def argument(self) -> str:
        """The path that names the store with its further data folders."""
        return ",".join((self.path, *(self.options.data_dirs or ())))

    def refreshed(self: _Store) -> _Store:  # noqa: PYI019 - Self needs Python 3.11
        """The store at this moment.

        Folders in which nothing changed, the beginnings of files, and the log below its last entry (if that is still
        there) are not read again.
        """
        ends = self._log_ends.known() if "_log_ends" in self.__dict__ else self._seen.ends
        return type(self)(self.path, self.options, Seen(self._segments, self.index_files, ends))

    def check_segments(self, *, gaps_are_rows: bool) -> None:
        """Raises UnreadableError for a folder or a broken link in place of a file of the log.

        With `gaps_are_rows`, only for the first or last file: between others, a missing file has rows.
        """
        if self.options.unread is not None:
            return
        for path in not_files((*self.paths.data_dirs, *self.paths.commitlog_dirs)):
            low, high = (self.segments[0].base, self.segments[-1].end) if self.segments else (0, 0)
            is_row = gaps_are_rows and low <= int(path.name) < high
            if self.paths.only is None and not is_row:
                raise UnreadableError(str(path), "not a file")

    @cached_property
    def ledger_segments(self) -> list[Segment]:
        """The segments of the DLedger part."""
        return [segment for segment in self.segments if segment.source == DLEDGER]

    @cached_property
    def dialect(self) -> str:
        """``0.4`` if a snapshot folder shows DLedger 0.4.0, else ``0.3``: all versions before have its format."""
        node_dir = self.paths.node_dir
        return "0.4" if node_dir is not None and (node_dir / "snapshot").is_dir() else "0.3"

    @cached_property
    def _checkpoint(self) -> tuple[Checkpoint | None, str]:
        return read_checkpoint(self.paths.node_dir) if self.paths.node_dir is not None else (None, "no checkpoint file")

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The node's checkpoint, if it has a readable one."""
        return self._checkpoint[0]

    @property
    def checkpoint_committed_index(self) -> int:
        """The checkpoint's committed index, which can be beyond the end of the log; -1 without one."""
        committed = self.checkpoint.committed_index if self.checkpoint is not None else None
        return -1 if committed is None else committed

    @property
    def checkpoint_file(self) -> str:
        """The name of the file that the checkpoint comes from, or the reason why there is none."""
        return self._checkpoint[1]

    @cached_property
    def replicas(self: _Store) -> list[_Store]:  # noqa: PYI019 - Self needs Python 3.11
        """The other replicas, from the option ``replicas``."""
        options = ReadOptions(engine=self.options.engine, unread=self.options.unread)
        try:
            return [type(self)(path, options) for path in self.options.replicas or ()]
        except UnreadableError:
            raise
        except StoreError as error:
            raise StoreError(f"{error} (a replica is named by its dledger-<id> folder)") from None

    @cached_property
    def _log_ends(self) -> LogEnds:
        return LogEnds(self.segments, self.paths, self.engine, self.index_files, self.checkpoint, self._seen.ends)

    @property
    def ends(self) -> dict[str, tuple[Segment, LogEnd]]:
        """For each source, its last segment with entries and where the log ends in it."""
        return self._log_ends.by_source

    @property
    def end(self) -> LogEnd:
        """The end of the DLedger log."""
        return self.ends[DLEDGER][1] if DLEDGER in self.ends else NO_ENTRY

    @property
    def min_offset(self) -> int:
        """The position of the first segment; 0 without one."""
        return self.segments[0].base if self.segments else 0

    @property
    def max_offset(self) -> int:
        """The position at which the log ends; without entries that of the first segment."""
        return max((end.pos for _, end in self.ends.values()), default=self.min_offset)

    @cached_property
    def claimed_end(self) -> int:
        """The position after all that was in the log: its entries, damaged bytes after them, and what queues point to.

        A start that ends the log earlier truncates it.
        """
        ends = [self.max_offset]
        for segment, end in self.ends.values():
            problems = self.engine.survey(SurveyRequest(segment, end.pos, end.pos, verify_crc=False)).problems
            ends += [each.pos + each.size for each in problems if each.code == "trailingBytes"]
        root = self.paths.root
        if root is not None and self.paths.only is None and (root / "consumequeue").is_dir():
            from pyspark_dledger.log.io.queue_files import last_units  # imports numpy, which is slow to load

            ends += [unit.commit_log_offset + unit.size for unit in last_units(root, self.on_unreadable)]
        return max(ends)

    def segment_end(self, segment: Segment) -> int:
        """The position up to which a segment is walked: its end, or the end of the log."""
        return self._log_ends.segment_end(segment)

    def file_ends(self, segment: Segment, is_final: bool = False) -> FileEnds:
        """The first and last bytes of a segment's file, as when the store was opened; see `StoreSegments.file_ends`."""
        return self._segments.file_ends(segment, is_final)

    def first_entry(self, segment: Segment) -> tuple[int, int, int] | None:
        """Pos, index and term of a DLedger segment's first entry."""
        pos = segment.base
        header = self.file_ends(segment).entry
        if header is None:
            pos = self.engine.seek(segment, segment.base, segment.end, INT64_MIN)
            header = entry_at(segment, pos)
        return (pos, header.index, header.term) if header is not None else None

    @cached_property
    def first_entries(self) -> list[tuple[Segment, tuple[int, int, int]]]:
        """The DLedger segments with entries up to the end of the log, each with pos, index and term of its first."""
        segments = list(self._written_segments())
        firsts = zip(segments, map_reads(self.first_entry, segments, self.path), strict=True)
        return [(segment, first) for segment, first in firsts if first is not None]

    def _written_segments(self) -> Iterator[Segment]:
        last = self.ends[DLEDGER][0].base if DLEDGER in self.ends else -1
        return (segment for segment in self.ledger_segments if segment.base <= last)

    @cached_property
    def begin_index(self) -> int:
        """The index of the first DLedger entry; -1 without one."""
        firsts = map(self.first_entry, self._written_segments())
        return next((first[1] for first in firsts if first is not None), -1)

    def position_of(self, index: int) -> int:
        """The position of the first entry with at least `index`; the end of the log without one.

        The index file's position counts if the entry there confirms it; else the log is searched.
        """
        if index > self.end.last_index:
            return self.end.pos
        firsts = self.first_entries
        place = max(bisect_right(firsts, index, key=lambda item: item[1][1]) - 1, 0)
        segment, (first_pos, _, _) = firsts[place]
        unit = self.index_files.confirmed_unit(segment, index)
        if unit is not None:
            return unit.pos
        end = self.segment_end(segment)
        pos = self.engine.seek(segment, first_pos, end, index)
        if pos < end:
            return pos
        return firsts[place + 1][1][0] if place + 1 < len(firsts) else self.end.pos

    def indexed(self, index: int) -> int | None:
        """The position of an entry on which the index file and the log agree."""
        unit = self.index_files.unit(index) if index >= 0 else None
        segment = segment_at(self.ledger_segments, unit.pos) if unit is not None else None
        confirmed = self.index_files.confirmed_unit(segment, index) if segment is not None else None
        return confirmed.pos if confirmed is not None else None

    def row_of_message(self, offset: int) -> RowRange | None:
        """The row whose message begins at `offset`; None if none does. Its bytes are not checked.

        ConsumeQueues, IndexFiles and offsetMsgIds have such offsets.
        """
        segment, pos, limit = segment_at(self.segments, offset), offset, INT64_MAX
        if segment is None or segment.source != COMMITLOG:
            pos, limit = offset - ENTRY_HEADER_SIZE, self.end.pos
            segment = segment_at(self.ledger_segments, pos)
        found = row_at(segment, pos)
        return RowRange(pos, found.end) if found is not None and pos < limit else None

    def term_runs(self) -> list[TermRun]:
        """The terms of all DLedger entries, each with its first index and number of entries."""
        runs = (
            run
            for segment in self.ledger_segments
            for run in self.engine.term_runs(segment, segment.base, self.segment_end(segment))
        )
        return list(merge_adjacent(runs, TermRun.joined))

    @property
    def divided_commitlog_offset(self) -> int:
        """Where the old CommitLog ends and DLedger begins, as Java's recovery finds it; -1 if it never was DLedger.

        With DLedger files: where the first one starts; else the end of the last old CommitLog file (DLedgerCommitLog).
        """
        if self._segments.divided is not None:
            return self._segments.divided
        return self.segments[-1].end if self.segments and self.paths.node_dir is not None else -1


def answer(store: _Store, question: Callable[[_Store], _Answer]) -> _Answer:
    """What `question` returns for a store that leaves out what cannot be read.

    It is asked again without a file of which a read fails in the middle. Raises UnreadableError for a file that is not
    of the log or of a replica's.
    """
    while True:
        try:
            return question(store)
        except UnreadableError as error:
            store = store.without(error)


def with_end(store: _Store) -> _Store:
    """The store; raises UnreadableError if the end of its log cannot be read."""
    _ = store.ends
    return store
