"""A store on disk, opened for reading only: its segments, its state, and scans over it."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.common.options import nearest
from pyspark_dledger.common.uris import store_path
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.codec import decode_blank
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, MESSAGE_HEADER_SIZE, MIN_BLANK_SIZE
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Before, Filters, LogEnd, Segment, TermRun
from pyspark_dledger.log.committed import Bound, best, read_checkpoint, read_current_term
from pyspark_dledger.log.io.entry_reads import DLedgerIndex, entry_at, lone_segment, read_at, segment_at
from pyspark_dledger.log.io.files import looked_up, path_of
from pyspark_dledger.log.io.segment_listing import Listing, listing
from pyspark_dledger.log.io.store_engine import engine_over
from pyspark_dledger.log.io.store_paths import file_size, find_store
from pyspark_dledger.log.options import ReadOptions, find_option, option_filters, parse_options
from pyspark_dledger.log.plan import Partition, plan, read_partition
from pyspark_dledger.log.replicas import check_replicas, quorum_bound

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.codec import IndexUnit
    from pyspark_dledger.log.verify.findings import Finding

_HEAD_BYTES = 64 * 1024
_UNITS_TRIED = 1_000
_NO_ENTRY = LogEnd(0, 0, -1, -1, -1, -1, -1, -1)


class _Last(NamedTuple):
    """The last entry of a source: the base of its segment, where it stands, its index and term."""

    base: int
    pos: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int

    @classmethod
    def of(cls, segment: Segment, end: LogEnd) -> _Last:
        return cls(segment.base, end.last_pos, end.last_index, end.last_term)


class _Known(NamedTuple):
    """What an earlier look at a store found, by which a later one saves reading.

    Segments are by what they are without the entry before them. ``sought`` says why the log seemed to go on behind its
    end, and did not.
    """

    listings: tuple[Listing, Listing] | None
    segments: dict[Segment, Segment]
    lasts: dict[str, _Last]
    index_files: DLedgerIndex | None
    sought: tuple[Any, ...] | None


def _whole(segment: Segment) -> Segment:
    return replace(segment, before=None)


@dataclass(frozen=True)
class State:
    """What a store is and where it stands; -1 where there is no such index or offset.

    Offsets are bytes of the log, indexes are of DLedger. ``committed_index`` is None where no bound is known, and
    ``committed_from`` then says why. ``min_offset`` and ``max_offset`` are where the first row begins and the log ends.
    """

    node: str | None
    path: str
    dialect: str
    begin_index: int
    end_index: int
    end_term: int
    committed_index: int | None
    committed_from: str | None
    checkpoint_committed_index: int | None
    checkpoint_end_index: int | None
    curr_term: int | None
    vote_leader: str | None
    divided_commitlog_offset: int
    data_file_size: int | None
    index_file_size: int | None
    min_offset: int
    max_offset: int
    abort: bool


def open_log(path: str | os.PathLike[str], **options: Any) -> Log:
    """Open the store at `path`, read-only.

    Takes the options of a read that choose a store: selfId, dataDirs, replicas, groupSize, engine, committedBound.
    Raises StoreError where `path` holds no readable store, OptionError for a wrong option.
    """
    return Log(os.fspath(path), parse_options(options))


class Log:
    """One store. Nothing of it is read before it is asked for, and nothing is ever written."""

    def __init__(self, path: str, options: ReadOptions, before: Log | None = None) -> None:
        self.path = path = store_path(path)
        self.options = options
        self.engine = engine_over((path, *(options.data_dirs or ())), options.engine)
        self._known = _Known(None, {}, {}, None, None) if before is None else before.what_is_known()
        self._sought: tuple[Any, ...] | None = None
        try:
            self.paths = find_store(path, options.self_id, options.data_dirs)
            self.segments = self._list_segments()
        except OSError as error:
            raise StoreError(f"{error.filename}: cannot be read ({error.strerror}): check its permissions") from None

    def refreshed(self) -> Log:
        """The store as it stands now.

        What is known of it is not read again: folders in which nothing changed, the heads of files, and the log below
        its last entry, as long as that still stands there.
        """
        return Log(self.path, self.options, self)

    def what_is_known(self) -> _Known:
        """What a later look at the store need not find out again."""
        ends = self.__dict__.get("ends")  # where it was asked for
        lasts = self._known.lasts if ends is None else {source: _Last.of(*end) for source, end in ends.items()}
        segments = self.segments[:-1]  # what the last file begins with may have been written since
        index_files = self.__dict__.get("index_files", self._known.index_files)
        known = {_whole(segment): segment for segment in segments}
        return _Known(self._listings, known, lasts, index_files, self._sought)

    def _list_segments(self) -> list[Segment]:
        only = self.paths.only
        known = self._known.listings
        self._listings = (
            listing(self.paths.data_dirs, DLEDGER, self.dialect != "0.4", known[0] if known else None),
            listing(self.paths.commitlog_dirs, COMMITLOG, True, known[1] if known else None),
        )
        ledger, old = map(list, (found.segments for found in self._listings))
        self._divided = ledger[0].base if ledger else None
        pairs = list(zip([None, *ledger], ledger, strict=False))
        ledger = list(looked_up(lambda pair: self._with_before(*pair), pairs, self.path))
        if only is not None:
            listed = [segment for segment in ledger + old if path_of(segment.path) == only]
            return listed or [lone_segment(only, DLEDGER if self.paths.data_dirs else COMMITLOG)]
        if ledger:
            # What lies at or behind the first DLedger file is DLedger's, whatever commitlog/ holds there.
            first = ledger[0].base
            old = [replace(part, size=min(part.size, first - part.base)) for part in old if part.base < first]
        return old + ledger

    def _with_before(self, previous: Segment | None, segment: Segment) -> Segment:
        """The segment, with the entry before it where it does not begin with one itself and is not just empty."""
        if segment in self._known.segments:
            return self._known.segments[segment]
        head = read_at(segment.path, 0, ENTRY_HEADER_SIZE)
        is_whole = entry_at(segment, segment.base) is not None
        if previous is None or is_whole or (len(head) >= MIN_BLANK_SIZE and decode_blank(head) is not None):
            return segment
        if self.paths.only is not None and path_of(segment.path) != self.paths.only:
            return segment
        if not read_at(segment.path, 0, _HEAD_BYTES).strip(b"\0"):
            return segment
        return replace(segment, before=self._entry_before(previous, segment.base))

    def _entry_before(self, previous: Segment, base: int) -> Before | None:
        """Index and term of the last entry of `previous` that index files and log agree on; else of its last entry."""
        unit = self._agreed_unit(previous, _last_unit_below(self.index_files, base))
        if unit is not None:
            return Before(unit.index, unit.term, unit.pos + unit.size)
        end = self.engine.log_end(previous, previous.base, True) if previous.end == base else _NO_ENTRY
        return Before(end.last_index, end.last_term, end.pos) if end.entries > 0 else None

    def _agreed_unit(self, segment: Segment, last: int) -> IndexUnit | None:
        """The last index unit up to index `last` with which an entry of the segment agrees; only some are tried."""
        for index in range(last, max(last - _UNITS_TRIED, -1), -1):
            unit = self.index_files.unit(index)
            if unit is not None and unit.pos < segment.base:
                return None
            if unit is not None and self._indexed(segment, index) is not None:
                return unit
        return None

    @cached_property
    def ledger_segments(self) -> list[Segment]:
        """The segments of the DLedger part."""
        return [segment for segment in self.segments if segment.source == DLEDGER]

    @cached_property
    def dialect(self) -> str:
        """``0.4`` where a snapshot folder shows DLedger 0.4.0, else ``0.3``, whose format all versions before share."""
        node_dir = self.paths.node_dir
        return "0.4" if node_dir is not None and (node_dir / "snapshot").is_dir() else "0.3"

    @cached_property
    def index_files(self) -> DLedgerIndex:
        node_dir = self.paths.node_dir
        return DLedgerIndex(node_dir / "index" if node_dir is not None else None, self._known.index_files)

    @cached_property
    def ends(self) -> dict[str, tuple[Segment, LogEnd]]:
        """For each source, its last segment that holds anything, and where the log ends in it."""
        ends = {}
        for segment in reversed(self.segments):
            if segment.source in ends:
                continue
            end = self._end_in(segment)
            if end.entries > 0:
                ends[segment.source] = (segment, end)
        return ends

    def _end_in(self, segment: Segment) -> LogEnd:
        start = self._last_known_in(segment)
        if start == segment.base:
            start = self._committed_in(segment)
        # Of a file alone nothing else tells whether it goes on behind damage.
        end = self.engine.log_end(segment, start, self.paths.only is not None)
        if end.entries == 0 and not self._is_blank(segment):
            # Perhaps its first entry was just written.
            end = self.engine.log_end(segment, start, False)
            if end.entries == 0:
                return self.engine.log_end(segment, start, True)
        while segment.source == DLEDGER and end.entries > 0 and self._goes_on(segment, end):
            # A log that is being written has grown meanwhile; what is damaged still ends where it ended.
            later = self.engine.log_end(segment, end.last_pos, False)
            if later.last_index <= end.last_index:
                return self._sought_end(segment, start, end)
            end = later
        return end

    def _sought_end(self, segment: Segment, start: int, end: LogEnd) -> LogEnd:
        """The end, looked for in all of the segment, unless an earlier look did so for the same reasons and in vain.

        Java leaves index units of entries that it cut.
        """
        checkpointed = self.checkpoint.end_index if self.checkpoint is not None else None
        reasons = (end.pos, end.last_index, end.last_term, self.index_files.unit(end.last_index + 1), checkpointed)
        found = end if reasons == self._known.sought else self.engine.log_end(segment, start, True)
        self._sought = reasons if found.pos == end.pos else None
        return found

    def _is_blank(self, segment: Segment) -> bool:
        """Whether a segment without entries up front is one that was only created ahead: zeros, and no index of it."""
        if read_at(segment.path, 0, _HEAD_BYTES).strip(b"\0"):
            return False
        known = (
            self.checkpoint.end_index if self.checkpoint is not None and self.checkpoint.end_index is not None else -1
        )
        unit = self.index_files.unit(known) if segment.source == DLEDGER and known >= 0 else None
        return unit is None or unit.pos < segment.base

    def _committed_in(self, segment: Segment) -> int:
        """Where the checkpoint's committed entry stands in the segment, by the index file; else the segment's base.

        What is committed is never cut, so the end is behind it, and a large file need not be walked to find it.
        """
        index = self.checkpoint.committed_index if self.checkpoint is not None else -1
        unit = self._agreed_unit(segment, index) if segment.source == DLEDGER and segment.check_pos else None
        return unit.pos if unit is not None else segment.base

    def _last_known_in(self, segment: Segment) -> int:
        """Where the log's last entry stood at an earlier look, if it stands there still; else the segment's base."""
        last = self._known.lasts.get(segment.source)
        if last is None or last.base != segment.base:
            return segment.base
        if segment.source == COMMITLOG:
            head = read_at(segment.path, last.pos - segment.base, MESSAGE_HEADER_SIZE)
            return last.pos if has_message_magic(head, 0, len(head)) else segment.base
        header = entry_at(segment, last.pos)
        is_same = header is not None and (header.index, header.term) == (last.index, last.term)
        return last.pos if is_same and self._is_of_current_term(last.term) else segment.base

    def _is_of_current_term(self, term: int) -> bool:
        """Whether no later term has begun, whose leader may have cut off an entry of `term`; Java leaves its bytes."""
        node_dir = self.paths.node_dir
        current = read_current_term(node_dir)[0] if node_dir is not None else None
        return current is None or current.curr_term is None or current.curr_term <= term

    def indexed(self, index: int) -> int | None:
        """Where an entry stands that the index file and the log agree on."""
        unit = self.index_files.unit(index) if index >= 0 else None
        segment = segment_at(self.ledger_segments, unit.pos) if unit is not None else None
        return self._indexed(segment, index) if segment is not None else None

    def _indexed(self, segment: Segment, index: int) -> int | None:
        """Where the index file says that an entry of the segment stands, if an entry there agrees."""
        unit = self.index_files.unit(index) if index >= 0 and segment.check_pos else None
        header = entry_at(segment, unit.pos) if unit is not None else None
        if unit is None or header is None or (header.index, header.size, header.term) != (index, unit.size, unit.term):
            return None
        return unit.pos

    def _goes_on(self, segment: Segment, end: LogEnd) -> bool:
        """Whether the index or the checkpoint knows of entries behind what looks like the end.

        A unit of an earlier term is one of an entry that was cut off.
        """
        unit = self.index_files.unit(end.last_index + 1)
        if unit is not None and end.pos <= unit.pos < segment.end and unit.term >= end.last_term:
            return True
        is_last = self.paths.only is None and segment == self.ledger_segments[-1]
        return is_last and self.checkpoint is not None and self.checkpoint.end_index > end.last_index

    @property
    def end(self) -> LogEnd:
        """The end of the DLedger log."""
        return self.ends[DLEDGER][1] if DLEDGER in self.ends else _NO_ENTRY

    @cached_property
    def _checkpoint(self) -> tuple[Any, str]:
        return read_checkpoint(self.paths.node_dir) if self.paths.node_dir is not None else (None, "no checkpoint file")

    @property
    def checkpoint(self) -> Any:
        return self._checkpoint[0]

    @cached_property
    def replicas(self) -> list[Log]:
        """The other replicas that were given."""
        options = ReadOptions(engine=self.options.engine)
        try:
            return [Log(path, options) for path in self.options.replicas or ()]
        except StoreError as error:
            raise StoreError(f"{error} (a replica is named by its dledger-<id> folder)") from None

    def first_entry(self, segment: Segment) -> tuple[int, int, int] | None:
        """Pos, index and term of a DLedger segment's first entry."""
        pos = segment.base
        header = entry_at(segment, pos)
        if header is None:
            pos = self.engine.seek(segment, segment.base, segment.end, INT64_MIN)
            header = entry_at(segment, pos)
        return (pos, header.index, header.term) if header is not None else None

    @cached_property
    def first_entries(self) -> list[tuple[Segment, tuple[int, int, int]]]:
        """The DLedger segments up to the end that hold entries, each with its first."""
        last = self.ends[DLEDGER][0].base if DLEDGER in self.ends else -1
        segments = [segment for segment in self.ledger_segments if segment.base <= last]
        firsts = zip(segments, looked_up(self.first_entry, segments, self.path), strict=True)
        return [(segment, first) for segment, first in firsts if first is not None]

    def segment_end(self, segment: Segment) -> int:
        """Where the walk over a segment ends: its end, or the end of the log."""
        last, end = self.ends.get(segment.source, (None, _NO_ENTRY))
        if last is None:
            # Nothing but zeros is a log that was never written; anything else is damage, and shown.
            return segment.base if self._is_blank(segment) else segment.end
        if segment.base > last.base:
            return segment.end if self._lost_its_entries(segment, end) else segment.base
        is_short = segment == last and _is_short(segment)
        return segment.end if segment != last or is_short else end.pos

    def _lost_its_entries(self, segment: Segment, end: LogEnd) -> bool:
        """Whether a segment behind the log's end held entries once: it is too short, or written and the log went on."""
        if _is_short(segment):
            return True
        went_on = (
            segment.source == DLEDGER and self.checkpoint is not None and self.checkpoint.end_index > end.last_index
        )
        return went_on and not self._is_blank(segment)

    def position_of(self, index: int) -> int:
        """Where the first entry with at least `index` stands; the end of the log if there is none.

        The index file is asked first; what it says counts if the entry there agrees.
        """
        if index > self.end.last_index:
            return self.end.pos
        firsts = self.first_entries
        place = max(bisect_right(firsts, index, key=lambda item: item[1][1]) - 1, 0)
        segment, (first_pos, _, _) = firsts[place]
        indexed = self._indexed(segment, index)
        if indexed is not None:
            return indexed
        end = self.segment_end(segment)
        pos = self.engine.seek(segment, first_pos, end, index)
        if pos < end:
            return pos
        return firsts[place + 1][1][0] if place + 1 < len(firsts) else self.end.pos

    def term_runs(self) -> list[TermRun]:
        """The terms of all DLedger entries, run by run."""
        runs: list[TermRun] = []
        for segment in self.ledger_segments:
            for run in self.engine.term_runs(segment, segment.base, self.segment_end(segment)):
                if runs and runs[-1].term == run.term:
                    runs[-1] = runs[-1]._replace(entries=runs[-1].entries + run.entries)
                else:
                    runs.append(run)
        return runs

    def bound(self, options: ReadOptions) -> Bound:
        """The committed index under `options`, never beyond the end of the log."""
        wanted = options.committed_bound
        if isinstance(wanted, int):
            return Bound(min(wanted, self.end.last_index), "option")
        if wanted == "end":
            return Bound(self.end.last_index, "end")
        proofs = {
            "checkpoint": self.checkpoint_bound,
            "consumeQueue": self._consume_queue_bound,
            "quorum": lambda: quorum_bound(self, self.replicas, options.group_size),
        }
        names = [wanted] if wanted != "auto" else ["checkpoint", "consumeQueue", *(["quorum"] if self.replicas else [])]
        return best([proofs[name]() for name in names], self.end.last_index)

    def checkpoint_bound(self) -> Bound:
        """What the checkpoint says that is committed; it may lie beyond the end of the log."""
        checkpoint, name = self._checkpoint
        if checkpoint is None:
            return Bound(None, None, f"checkpoint: {name}")
        return Bound(checkpoint.committed_index, name)

    def _consume_queue_bound(self) -> Bound:
        root, index = self.paths.root, None
        if root is not None and self.paths.node_dir is not None and (root / "consumequeue").is_dir():
            from pyspark_dledger.log.io.queue_files import proven_index  # needs numpy, which takes a while to load

            index = self.proven_by_queues(partial(proven_index, root))
        if index is None:
            return Bound(None, None, "consumeQueue: no unit that points to an entry of this log")
        return Bound(index, "consumeQueue")

    def proven_by_queues(self, proven: Callable[[list[Segment], int], int | None]) -> int | None:
        """The index that ConsumeQueues prove committed: what `proven` finds in segments, up to a position.

        They are read later than the log's end, and may know of what was written since. A queue that is ahead of a log
        that was cut may point to bytes that Java left there.
        """
        index = proven(self.ledger_segments, INT64_MAX)
        if index is None or index <= self.end.last_index or index <= self.refreshed().end.last_index:
            return index
        return proven(self.ledger_segments, self.end.pos)

    @cached_property
    def state(self) -> State:
        """What the store is and where it stands."""
        bound = self.bound(self.options) if self.ledger_segments else Bound(None, None)
        term = read_current_term(self.paths.node_dir)[0] if self.paths.node_dir is not None else None
        ledger, root = self.ledger_segments, self.paths.root
        begin = self.first_entries[0][1][1] if self.first_entries else -1
        return State(
            node=self.paths.node,
            path=self.path,
            dialect=self.dialect if ledger or self.paths.node_dir is not None else "commitlog",
            begin_index=begin,
            end_index=self.end.last_index,
            end_term=self.end.last_term,
            committed_index=bound.index,
            committed_from=bound.source or bound.reason or None,
            checkpoint_committed_index=self.checkpoint.committed_index if self.checkpoint is not None else None,
            checkpoint_end_index=self.checkpoint.end_index if self.checkpoint is not None else None,
            curr_term=term.curr_term if term is not None else None,
            vote_leader=term.vote_leader if term is not None else None,
            divided_commitlog_offset=self.divided_commitlog_offset,
            data_file_size=max((segment.size for segment in ledger or self.segments), default=None),
            index_file_size=max((file.size for file in self.index_files.files), default=None),
            min_offset=self.segments[0].base if self.segments else 0,
            max_offset=max((end.pos for _, end in self.ends.values()), default=0),
            abort=root is not None and (root / "abort").exists(),
        )

    @property
    def divided_commitlog_offset(self) -> int:
        """Where the old CommitLog ends and DLedger begins, as Java's recovery finds it; -1 if it never was DLedger.

        DLedger files exist: where the first one starts; else the end of the last old CommitLog file (DLedgerCommitLog).
        """
        if self._divided is not None:
            return self._divided
        return self.segments[-1].end if self.segments and self.paths.node_dir is not None else -1

    def findings(self) -> list[Finding]:
        """Everything that is wrong with the store or worth knowing; see `findings.CATALOGUE`. Reads all of it."""
        from pyspark_dledger.log.verify.verify_store import verify

        return list(verify(self))

    def plan(self, columns: tuple[str, ...], options: ReadOptions, filters: Filters) -> list[Partition]:
        """The partitions that together hold the wanted rows, each once, in the order of the log."""
        bound = self.bound(options) if self.ledger_segments else Bound(None, None)
        if self.replicas:
            check_replicas(self, self.replicas, bound.index)
        if options.isolation_level == "read_committed" and bound.index is None and self.ledger_segments:
            raise StoreError(
                f"{self.path}: expected a committed index to read up to (isolationLevel=read_committed), found none "
                f"({bound.reason}): committedBound=end trusts the end of the log"
            )
        return plan(self, columns, options, filters, bound.index)

    def scan(self, columns: list[str] | tuple[str, ...] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Rows of the log as record batches of `columns` (all of the ``log`` table by default), in order.

        `options` are those of a Spark read, by the same names. Raises OptionError, StoreError and, with mode=FAILFAST,
        MalformedError.
        """
        given = parse_options(options)
        merged = replace(self.options, **{field: getattr(given, field) for field in map(_field, options)})
        log = self if _chooses_same(merged, self.options) else Log(self.path, merged)
        partitions = log.plan(_checked_columns(columns, merged), merged, option_filters(merged))
        return (batch for partition in partitions for batch in read_partition(partition))


def _last_unit_below(files: DLedgerIndex, base: int) -> int:
    """The last index whose unit gives a position below `base`, by halves; -1 without one."""
    if not files.files:
        return -1
    low, high = files.files[0].base // INDEX_UNIT_SIZE, files.files[-1].end // INDEX_UNIT_SIZE
    while low < high:
        middle = (low + high) // 2
        unit = files.unit(middle)
        if unit is not None and unit.pos < base:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _is_short(segment: Segment) -> bool:
    """Whether a file is shorter than its segment, or gone."""
    return (file_size(path_of(segment.path)) or 0) < segment.size


def _field(option: str) -> str:
    return find_option(option).field


def _chooses_same(first: ReadOptions, second: ReadOptions) -> bool:
    """Whether two sets of options open a store in the same way."""
    chosen = operator.attrgetter("self_id", "data_dirs", "replicas", "engine")
    return bool(chosen(first) == chosen(second))


def _checked_columns(columns: Iterable[str] | None, options: ReadOptions) -> tuple[str, ...]:
    from pyspark_dledger.format.columns import COLUMN_BY_NAME, DEFAULT_NAMES, ENTRY_BODY

    if columns is None:
        return (*DEFAULT_NAMES, *((ENTRY_BODY.name,) if options.include_entry_body else ()))
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in COLUMN_BY_NAME:
            raise OptionError(f"unknown column {name}: {nearest(name, COLUMN_BY_NAME)}")
    return names
