"""Plans a read: options and filters become ranges of segments, and these become partitions."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark_dledger.common.fields import changed
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.process_memory import collector_paused, free_address_space
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters, IntFilter, ScanRequest, Segment
from pyspark_dledger.log.committed import Bound, check_replicas, committed_bound
from pyspark_dledger.log.gaps import FileGap, gap_batches
from pyspark_dledger.log.io.store_engine import engine_of, scan_once
from pyspark_dledger.log.options import Offset, ReadOptions
from pyspark_dledger.log.origin import Origin, is_there_as_planned, origin_of, with_fingerprints
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.time_ranges import in_time

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.engine import Engine
    from pyspark_dledger.log.conditions import Lookup
    from pyspark_dledger.log.io.unread_files import UnreadFiles


_MIN_TARGET_BYTES = 1024
# If the address space is limited: a batch is made while the one before is written, and its buffers double.
_BATCHES_IN_MEMORY = 16
_MIN_BATCH_BYTES = 64 * 1024
WIDE_COLUMNS = frozenset({"body", "entryBody", "properties"})


@dataclass(frozen=True)
class Partition:
    """The input of one task: ranges of segments and gaps between them, in the order of the log.

    ``origin`` is what the plan was made of; ``fails`` is the option failOnDataLoss.
    """

    ranges: tuple[ScanRequest | FileGap, ...]
    engine: str
    origin: Origin | None = field(default=None, repr=False)  # an export of a log that grows compares plans
    fails: bool = field(default=True, repr=False)

    @property
    def size(self) -> int:
        """Bytes of the log that the partition covers."""
        return sum(part.end - part.start for part in self.ranges)

    def with_ranges(self, change: Callable[[ScanRequest | FileGap], ScanRequest | FileGap | None]) -> Partition:
        """The same with each range changed, or without it if `change` returns None."""
        changed_ranges = map(change, self.ranges)
        return replace(self, ranges=tuple(part for part in changed_ranges if part is not None))


@dataclass(frozen=True)
class _Window:
    """The positions ``[start, end)`` at which wanted rows can begin.

    ``entry_start`` and ``entry_end`` are bounds at which entries are known to begin, so a scan can begin and end there.
    """

    start: int = 0
    end: int = INT64_MAX
    entry_start: int = 0
    entry_end: int = INT64_MAX

    def starting_at(self, pos: int, is_entry: bool) -> _Window:
        return replace(self, start=max(self.start, pos), entry_start=max(self.entry_start, pos if is_entry else 0))

    def ending_at(self, pos: int, is_entry: bool) -> _Window:
        end = min(self.entry_end, pos if is_entry else INT64_MAX)
        return replace(self, end=min(self.end, pos), entry_end=end)


def read_partition(partition: Partition, *, is_once: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises StoreError and, with mode=FAILFAST, MalformedError.

    A file that expired since it was planned is data loss, see `report_loss`; another one, or none, is an error. With
    `is_once`, it leaves nothing in the page cache that was not there; see `scan_once`.
    """
    for part in _as_planned(partition):
        yield from scan_range(part, partition.engine, is_once=is_once)


def read_judged(partition: Partition) -> Iterator[pa.RecordBatch]:
    """As `read_partition`, for those who say what is damaged.

    Raises UnreadableError for a file that cannot be read from some byte on: the rest is not damaged, it is unknown.
    """
    for part in _as_planned(partition):
        for batch, error in _with_errors(part, partition.engine):
            if error is not None:
                raise error
            yield batch


def read_known(partition: Partition, unread: UnreadFiles) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, without those for bytes that cannot be read: `unread` gets the files.

    Only the column problem shows such a row.
    """
    for part in _as_planned(partition):
        if isinstance(part, FileGap) or "problem" not in part.columns:
            yield from scan_range(part, partition.engine)
            continue
        for batch, error in _with_errors(part, partition.engine):
            if error is not None:
                unread.add_segment(part.segment, error)
            yield batch if error is None else batch.slice(0, len(batch) - 1)


def _with_errors(part: ScanRequest | FileGap, engine: str) -> Iterator[tuple[pa.RecordBatch, UnreadableError | None]]:
    """The rows of a range, and with its last ones the error if the rest of a file cannot be read."""
    if isinstance(part, FileGap):
        yield from ((batch, None) for batch in scan_range(part, engine))
        return
    from pyspark_dledger.log.io.unread_files import READ_COLUMNS, read_error  # loads numpy

    columns = tuple(dict.fromkeys((*part.columns, *READ_COLUMNS)))
    for batch in scan_range(changed(part, columns=columns), engine):
        yield batch.select(part.columns), read_error(part.segment, batch)


def _as_planned(partition: Partition) -> Iterator[ScanRequest | FileGap]:
    for part in partition.ranges:
        if isinstance(part, FileGap) or is_there_as_planned(part, partition.origin, partition.fails):
            yield part


def scan_range(part: ScanRequest | FileGap, engine: str, is_once: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in the process that planned it: its file is not compared with the plan."""
    from pyspark_dledger.format.scan.bodies import expand

    if isinstance(part, FileGap):
        return gap_batches(part)
    size = max(min(part.max_batch_bytes, free_address_space() // _BATCHES_IN_MEMORY), _MIN_BATCH_BYTES)
    part = replace(part, max_batch_bytes=size) if size < part.max_batch_bytes else part
    found = engine_of(engine, part.segment)
    return expand(scan_once(found, part) if is_once else found.scan(part), part)


def split_partition(partition: Partition, target: int) -> Iterator[Partition]:
    """The same rows in partitions of about `target` bytes, in order; ranges of remote segments stay whole.

    Raises what `read_partition` does before its first row.
    """
    for part in _as_planned(partition):
        splits = [part]
        if isinstance(part, ScanRequest) and not part.segment.file.is_remote:
            splits = _split_all(engine_of(partition.engine, part.segment), [part], target)
        yield from (changed(partition, ranges=(split,)) for split in splits)


def plan_read(
    store: StoreView,
    columns: tuple[str, ...],
    options: ReadOptions,
    filters: Filters,
    lookup: Lookup | None = None,
) -> list[Partition]:
    """The partitions that together have the wanted rows, each once, in the order of the log.

    Rows that the `lookup` does not ask for can be among them: it is not a filter of the scan.
    Raises StoreError if the replicas contradict the store, or if read_committed finds no committed index.
    """
    if options.heal:
        from pyspark_dledger.log.healed_store import HealedStore  # loads pyarrow

        store = store if isinstance(store, HealedStore) else HealedStore(store)
    bound = committed_bound(store, options) if store.ledger_segments else Bound(None, None)
    if store.replicas and store.ledger_segments:
        check_replicas(store, bound.index)
    if options.isolation_level == "read_committed" and bound.index is None and store.ledger_segments:
        raise StoreError(
            f"{store.path}: expected a committed index to read up to (isolationLevel=read_committed), found none "
            f"({bound.reason}): committedBound=end trusts the end of the log"
        )
    return plan_up_to(store, columns, options, filters, bound.index, lookup)


def plan_up_to(
    store: StoreView,
    columns: tuple[str, ...],
    options: ReadOptions,
    filters: Filters,
    committed: int | None,
    lookup: Lookup | None = None,
) -> list[Partition]:
    """The partitions of a read with a given committed index, see `plan_read`. Raises StoreError."""
    store.check_segments(gaps_are_rows=True)
    if matches_nothing(filters):
        return []
    window = _window(store, options, filters, committed)
    return _plan(store, scan_template(columns, options, filters, committed), options, window, lookup)


def plan_between(
    store: StoreView,
    columns: tuple[str, ...],
    options: ReadOptions,
    filters: Filters,
    committed: int | None,
    start: int,
    end: int,
) -> list[Partition]:
    """The partitions of the rows that begin at positions ``[start, end)``. An entry begins at both positions.

    Of `options`, only those for the form of rows and the size of partitions have an effect.
    """
    if matches_nothing(filters):
        return []
    template = scan_template(columns, options, filters, committed)
    return _plan(store, template, options, _Window(start, end, start, end))


def estimated_rows(store: StoreView, size: int) -> int:
    """About how many rows `size` bytes of the log have; -1 if unknown: a CommitLog does not count its messages."""
    whole = store.max_offset - store.min_offset
    if len(store.ledger_segments) < len(store.segments) or whole <= 0:
        return -1
    return round((store.end.last_index - store.begin_index + 1) * size / whole)


def scan_template(
    columns: tuple[str, ...], options: ReadOptions, filters: Filters, committed: int | None = None
) -> ScanRequest:
    """What all scans of a read have in common, without a segment: `columns` of the rows that pass `filters`."""
    return ScanRequest(
        segment=Segment.local("", "", 0, 0, DLEDGER),
        start=0,
        end=0,
        columns=columns,
        filters=filters,
        mode=options.mode,
        verify_crc=options.verify_crc,
        committed_index=committed,
        max_body_bytes=options.max_body_bytes,
        max_batch_rows=options.max_batch_rows,
        max_batch_bytes=options.max_batch_bytes,
    )


@collector_paused()
def _plan(
    store: StoreView, template: ScanRequest, options: ReadOptions, window: _Window, lookup: Lookup | None = None
) -> list[Partition]:
    columns, filters = template.columns, template.filters
    ranges = list(_ranges(store, replace(template, filters=_with_window(filters, window)), window))
    if lookup is not None:
        from pyspark_dledger.log.lookups import looked_up  # loads numpy

        ranges = looked_up(store, ranges, options, filters, lookup)
    if filters.store_timestamp is not None:
        ranges = list(_in_time(store, ranges, filters.store_timestamp, options.clock_tolerance * 1000))
    if not ranges:
        return []
    selective = _is_selective(columns, filters)
    total = sum([part.end - part.start for part in ranges])
    target = partition_size(total, options, selective)
    splits = _split_all(store.engine, ranges, target)
    while options.min_partitions is not None and len(splits) < options.min_partitions and target > _MIN_TARGET_BYTES:
        # Ranges are cut at entries, so they can be larger than the target.
        target //= 2
        before, splits = len(splits), _split_all(store.engine, ranges, target)
        if len(splits) == before:
            break
    is_grouped = options.min_partitions is None and (selective or options.max_partition_bytes is not None)
    splits = with_fingerprints(store, splits)
    groups = _group(splits, target) if is_grouped else [(part,) for part in splits]
    planned = Partition((), store.engine.NAME, origin_of(store), options.fail_on_data_loss)
    return [changed(planned, ranges=tuple(group)) for group in groups]


def _in_time(
    store: StoreView, ranges: list[ScanRequest | FileGap], wanted: IntFilter, tolerance: int
) -> Iterator[ScanRequest | FileGap]:
    """The ranges, without what has only messages of other times than those that the filters ask for."""
    parts = [part for part in ranges if isinstance(part, ScanRequest)]
    pieces = iter(in_time(store, parts, wanted, tolerance))
    for part in ranges:
        yield from [part] if isinstance(part, FileGap) else next(pieces)


def _is_selective(columns: tuple[str, ...], filters: Filters) -> bool:
    """Whether a scan yields few bytes of those that it reads."""
    conditions = (filters.topic, filters.tags, filters.queue_id, filters.store_timestamp)
    return not WIDE_COLUMNS & set(columns) or any(condition is not None for condition in conditions)


def _split_all(engine: Engine, ranges: list[ScanRequest | FileGap], target: int) -> list[ScanRequest | FileGap]:
    # Most are small enough.
    return [
        split
        for part in ranges
        for split in ((part,) if part.end - part.start <= target else _split(engine, part, target))
    ]


def matches_nothing(filters: Filters) -> bool:
    """Whether no row can pass the filters."""
    for condition in (filters.index, filters.term, filters.pos, filters.queue_id, filters.store_timestamp):
        if condition is not None and (condition.low > condition.high or condition.values == ()):
            return True
    return () in (filters.kind, filters.topic, filters.tags)


def _window(store: StoreView, options: ReadOptions, filters: Filters, committed: int | None) -> _Window:
    window = _Window()
    if options.starting_offsets.kind != "earliest":
        pos, is_entry = _position_of(store, options.starting_offsets, options.fail_on_data_loss, "startingOffsets")
        window = window.starting_at(pos, is_entry)
    if options.ending_offsets.kind != "latest":
        window = window.ending_at(*_position_of(store, options.ending_offsets, False, "endingOffsets"))
    if store.ledger_segments and options.isolation_level == "read_committed" and committed is not None:
        window = window.ending_at(_position_after(store, committed), True)
    if filters.index is not None and store.ledger_segments:
        window = window.starting_at(store.position_of(filters.index.low), True)
        window = window.ending_at(_position_after(store, filters.index.high), True)
    if filters.pos is not None:
        window = window.starting_at(filters.pos.low, False).ending_at(min(filters.pos.high, INT64_MAX - 1) + 1, False)
    if filters.committed is not None and committed is not None and store.ledger_segments:
        uncommitted = _position_after(store, committed)
        window = window.ending_at(uncommitted, True) if filters.committed else window.starting_at(uncommitted, True)
    return window


def _position_after(store: StoreView, index: int) -> int:
    """The position of the entry after `index`."""
    return store.position_of(min(index, INT64_MAX - 1) + 1)


def _position_of(store: StoreView, offset: Offset, fail_on_data_loss: bool, option: str) -> tuple[int, bool]:
    """The position of an offset, and whether an entry is known to begin there."""
    if offset.kind == "earliest":
        return 0, False
    if offset.kind == "latest":
        return INT64_MAX, False
    first = ""
    if offset.kind == "pos" and offset.value < store.min_offset:
        first = f"the first segment at pos {store.min_offset}"
    elif offset.kind == "index" and offset.value < store.begin_index:
        first = f"the first entry with index {store.begin_index}"
    if first and fail_on_data_loss:
        raise StoreError(
            f"{store.path}: {option}: expected {offset}, found {first}: start there or later, or set "
            "failOnDataLoss=false"
        )
    return (offset.value, False) if offset.kind == "pos" else (store.position_of(offset.value), True)


def _with_window(filters: Filters, window: _Window) -> Filters:
    """`filters` with the window's bounds on pos: a range may begin before the window or end after it."""
    if window.start == 0 and window.end == INT64_MAX:
        return filters
    given = filters.pos or IntFilter()
    pos = IntFilter(max(given.low, window.start), min(given.high, window.end - 1), given.values)
    return replace(filters, pos=pos)


def _ranges(store: StoreView, template: ScanRequest, window: _Window) -> Iterator[ScanRequest | FileGap]:
    """The parts of segments, and the gaps between them, that can have wanted rows."""
    before = None
    before_end = 0
    for segment in store.segments:
        base, segment_end = segment.base, segment.end
        if before is not None and before_end < base:
            yield from _gap(store, template, window, before, segment)
        before, before_end = segment, segment_end
        start = max(base, window.entry_start)
        end = min(store.segment_end(segment), window.entry_end)
        is_inside = window.start < segment_end and base < window.end
        if start < end and is_inside and not _is_excluded(store, segment, template.filters):
            yield changed(template, segment=segment, start=start, end=end)


def _gap(
    store: StoreView, template: ScanRequest, window: _Window, before: Segment, after: Segment
) -> Iterator[FileGap]:
    """A gap between two files, without those that cannot be read; after the end of the log there are no gaps."""
    last = store.ends.get(after.source)
    is_inside = last is not None and after.base <= last[0].base
    if is_inside and before.end < window.end and after.base > window.start:
        for start, end in store.unread.known_parts(before.end, after.base):
            yield FileGap(template, start, end, after.source)


def _is_excluded(store: StoreView, segment: Segment, filters: Filters) -> bool:
    """Whether no row of the segment can pass: old messages have no index and term, and terms of a log never fall."""
    if segment.source == COMMITLOG:
        return filters.index is not None or filters.term is not None or filters.committed is False
    if filters.term is None:
        return False
    firsts = store.first_entries
    place = bisect_left(firsts, segment.base, key=lambda item: item[0].base)
    if place == len(firsts) or firsts[place][0] != segment:
        return False
    highest = firsts[place + 1][1][2] if place + 1 < len(firsts) else store.end.last_term
    return filters.term.high < firsts[place][1][2] or filters.term.low > highest


def _split(engine: Engine, part: ScanRequest | FileGap, target: int) -> list[ScanRequest | FileGap]:
    """A large range, split at entry boundaries into ranges of about `target` bytes; none outside the window."""
    if isinstance(part, FileGap):
        return [part]
    cuts = engine.split(part.segment, part.start, part.end, target)
    splits = [
        replace(part, start=start, end=end, end_is_boundary=end != part.end or part.end_is_boundary)
        for start, end in zip([part.start, *cuts], [*cuts, part.end], strict=True)
    ]
    wanted = part.filters.pos or IntFilter()
    return [split for split in splits if split.end > wanted.low and split.start <= wanted.high]


def _group(splits: list[ScanRequest | FileGap], target: int) -> Iterable[Sequence[ScanRequest | FileGap]]:
    """Adjacent ranges in groups of up to `target` bytes."""
    groups: list[list[ScanRequest | FileGap]] = []
    size = 0
    for part in splits:
        length = part.end - part.start
        if not groups or size + length > target:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += length
    return groups


_MAX_BYTES = 128 * 1024 * 1024
# A Spark task costs about 30 ms; in that time a scan that yields few bytes reads a gigabyte.
_MAX_SELECTIVE_BYTES = 1024 * 1024 * 1024
# Smaller tasks cost more than they gain; as Spark's files.
_MIN_BYTES = 4 * 1024 * 1024


def partition_size(total: int, options: ReadOptions, selective: bool = False) -> int:
    """The bytes of a partition of a read of `total` bytes; a `selective` scan yields few of them."""
    size = options.max_partition_bytes or _usual_size(total, options.default_parallelism, selective)
    fewest = options.min_partitions
    return size if fewest is None else max(min(size, -(-total // fewest)), 1)


def _usual_size(total: int, cores: int | None, selective: bool) -> int:
    """By default a partition is small enough for one on each core; a selective scan knows those of this machine."""
    if selective:
        return min(max(total // (cores or os.cpu_count() or 1), _MAX_BYTES), _MAX_SELECTIVE_BYTES)
    return _MAX_BYTES if cores is None else min(max(-(-total // cores), _MIN_BYTES), _MAX_BYTES)
