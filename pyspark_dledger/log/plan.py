"""Planning a read: which ranges of which segments, in which partitions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters, IntFilter, ScanRequest, Segment
from pyspark_dledger.log.committed import Bound, check_replicas, committed_bound
from pyspark_dledger.log.holes import Hole, hole_batches
from pyspark_dledger.log.io.store_engine import engine_of
from pyspark_dledger.log.options import Offset, ReadOptions
from pyspark_dledger.log.store_view import StoreView

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_PARTITION_BYTES = 128 * 1024 * 1024
# A task costs Spark about 30 ms, in which a scan that sends few bytes passes over a gigabyte.
_SELECTIVE_PARTITION_BYTES = 1024 * 1024 * 1024
_SMALLEST_TARGET = 1024
_WIDE_COLUMNS = frozenset({"body", "entryBody", "properties"})


@dataclass(frozen=True)
class Partition:
    """What one task reads: ranges of segments and holes between them, in the order of the log."""

    ranges: tuple[ScanRequest | Hole, ...]
    engine: str

    @property
    def size(self) -> int:
        """Bytes of the log that the partition covers."""
        return sum(part.end - part.start for part in self.ranges)


@dataclass(frozen=True)
class _Window:
    """The part of the log that can hold wanted rows: those that begin at positions ``[start, end)``.

    ``entry_start`` and ``entry_end`` bound it where entries are known to begin, so that a scan may begin and end there.
    """

    start: int = 0
    end: int = INT64_MAX
    entry_start: int = 0
    entry_end: int = INT64_MAX

    def starting(self, pos: int, is_entry: bool) -> _Window:
        return replace(self, start=max(self.start, pos), entry_start=max(self.entry_start, pos if is_entry else 0))

    def ending(self, pos: int, is_entry: bool) -> _Window:
        end = min(self.entry_end, pos if is_entry else INT64_MAX)
        return replace(self, end=min(self.end, pos), entry_end=end)


def read_partition(partition: Partition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises StoreError and, with mode=FAILFAST, MalformedError."""
    from pyspark_dledger.format.scan.bodies import expand

    for part in partition.ranges:
        if isinstance(part, Hole):
            yield from hole_batches(part)
        else:
            yield from expand(engine_of(partition.engine, part.segment).scan(part), part)


def plan_read(store: StoreView, columns: tuple[str, ...], options: ReadOptions, filters: Filters) -> list[Partition]:
    """The partitions that together have the wanted rows, each once, in the order of the log.

    Raises StoreError where the replicas contradict the store, or read_committed finds no committed index.
    """
    bound = committed_bound(store, options) if store.ledger_segments else Bound(None, None)
    if store.replicas:
        check_replicas(store, bound.index)
    if options.isolation_level == "read_committed" and bound.index is None and store.ledger_segments:
        raise StoreError(
            f"{store.path}: expected a committed index to read up to (isolationLevel=read_committed), found none "
            f"({bound.reason}): committedBound=end trusts the end of the log"
        )
    return plan_up_to(store, columns, options, filters, bound.index)


def plan_up_to(
    store: StoreView, columns: tuple[str, ...], options: ReadOptions, filters: Filters, committed: int | None
) -> list[Partition]:
    """The partitions of a read with a given committed index."""
    if _never_holds(filters):
        return []
    return _plan(store, columns, options, filters, committed, _window(store, options, filters, committed))


def plan_between(
    store: StoreView,
    columns: tuple[str, ...],
    options: ReadOptions,
    filters: Filters,
    committed: int | None,
    start: int,
    end: int,
) -> list[Partition]:
    """The partitions of the rows that begin at positions ``[start, end)``, both where the walk over the log arrives.

    Of `options` only those count that say how rows are read and how much of them is one partition.
    """
    if _never_holds(filters):
        return []
    return _plan(store, columns, options, filters, committed, _Window(start, end, start, end))


def _plan(
    store: StoreView,
    columns: tuple[str, ...],
    options: ReadOptions,
    filters: Filters,
    committed: int | None,
    window: _Window,
) -> list[Partition]:
    wanted = _with_window(filters, window)
    template = ScanRequest(
        segment=Segment("", "", 0, 0, DLEDGER),
        start=0,
        end=0,
        columns=columns,
        filters=wanted,
        mode=options.mode,
        verify_crc=options.verify_crc,
        committed_index=committed,
        max_body_bytes=options.max_body_bytes,
        max_batch_rows=options.max_batch_rows,
        max_batch_bytes=options.max_batch_bytes,
    )
    ranges = list(_ranges(store, template, window))
    selective = _is_selective(columns, filters)
    target = options.max_partition_bytes or (_SELECTIVE_PARTITION_BYTES if selective else _MAX_PARTITION_BYTES)
    total = sum(part.end - part.start for part in ranges)
    if options.min_partitions is not None:
        target = max(min(target, -(-total // options.min_partitions)), 1)
    pieces = _pieces(store, ranges, target)
    while options.min_partitions is not None and len(pieces) < options.min_partitions and target > _SMALLEST_TARGET:
        # Cuts lie at entries, so pieces come out larger than asked for.
        target //= 2
        before, pieces = len(pieces), _pieces(store, ranges, target)
        if len(pieces) == before:
            break
    is_packed = options.min_partitions is None and (selective or options.max_partition_bytes is not None)
    packs = _pack(pieces, target) if is_packed else [[piece] for piece in pieces]
    return [Partition(tuple(pack), store.engine.NAME) for pack in packs]


def _is_selective(columns: tuple[str, ...], filters: Filters) -> bool:
    """Whether a scan sends few bytes for many that it passes over."""
    conditions = (filters.topic, filters.tags, filters.queue_id, filters.store_timestamp)
    return not _WIDE_COLUMNS & set(columns) or any(condition is not None for condition in conditions)


def _pieces(store: StoreView, ranges: list[ScanRequest | Hole], target: int) -> list[ScanRequest | Hole]:
    return [piece for part in ranges for piece in _split(store, part, target)]


def _never_holds(filters: Filters) -> bool:
    for condition in (filters.index, filters.term, filters.pos, filters.queue_id, filters.store_timestamp):
        if condition is not None and (condition.low > condition.high or condition.values == ()):
            return True
    return () in (filters.kind, filters.topic, filters.tags)


def _window(store: StoreView, options: ReadOptions, filters: Filters, committed: int | None) -> _Window:
    window = _Window()
    if options.starting_offsets.kind != "earliest":
        pos, is_entry = _place(store, options.starting_offsets, options.fail_on_data_loss, "startingOffsets")
        window = window.starting(pos, is_entry)
    if options.ending_offsets.kind != "latest":
        window = window.ending(*_place(store, options.ending_offsets, False, "endingOffsets"))
    if store.ledger_segments and options.isolation_level == "read_committed" and committed is not None:
        window = window.ending(_behind(store, committed), True)
    if filters.index is not None and store.ledger_segments:
        window = window.starting(store.position_of(filters.index.low), True)
        window = window.ending(_behind(store, filters.index.high), True)
    if filters.pos is not None:
        window = window.starting(filters.pos.low, False).ending(min(filters.pos.high, INT64_MAX - 1) + 1, False)
    if filters.committed is not None and committed is not None and store.ledger_segments:
        behind = _behind(store, committed)
        window = window.ending(behind, True) if filters.committed else window.starting(behind, True)
    return window


def _behind(store: StoreView, index: int) -> int:
    """Where the entry after `index` begins."""
    return store.position_of(min(index, INT64_MAX - 1) + 1)


def _place(store: StoreView, offset: Offset, fail_on_data_loss: bool, option: str) -> tuple[int, bool]:
    """The position that an offset means, and whether an entry is known to begin there."""
    if offset.kind == "earliest":
        return 0, False
    if offset.kind == "latest":
        return INT64_MAX, False
    if offset.kind == "pos":
        first = store.segments[0].base if store.segments else 0
        if offset.value < first and fail_on_data_loss:
            raise StoreError(_below(store, option, f"pos {offset.value}", f"the first segment at pos {first}"))
        return offset.value, False
    first_index = store.first_entries[0][1][1] if store.first_entries else 0
    if offset.value < first_index and fail_on_data_loss:
        raise StoreError(_below(store, option, f"index {offset.value}", f"the first entry with index {first_index}"))
    return store.position_of(offset.value), True


def _below(store: StoreView, option: str, wanted: str, found: str) -> str:
    return (
        f"{store.path}: {option}: expected {wanted}, found {found}: start there or later, or set failOnDataLoss=false"
    )


def _with_window(filters: Filters, window: _Window) -> Filters:
    """`filters` with the window's bounds on pos, so that a range may begin before the window or reach over its end."""
    if window.start == 0 and window.end == INT64_MAX:
        return filters
    given = filters.pos or IntFilter()
    pos = IntFilter(max(given.low, window.start), min(given.high, window.end - 1), given.values)
    return replace(filters, pos=pos)


def _ranges(store: StoreView, template: ScanRequest, window: _Window) -> Iterator[ScanRequest | Hole]:
    """The segments, and the holes between them, that can hold wanted rows."""
    before = None
    for segment in store.segments:
        if before is not None and before.end < segment.base:
            yield from _hole(store, template, window, before, segment)
        before = segment
        start = max(segment.base, window.entry_start)
        end = min(store.segment_end(segment), window.entry_end)
        is_inside = window.start < segment.end and segment.base < window.end
        if start < end and is_inside and not _is_excluded(store, segment, template.filters):
            yield replace(template, segment=segment, start=start, end=end)


def _hole(store: StoreView, template: ScanRequest, window: _Window, before: Segment, after: Segment) -> Iterator[Hole]:
    """A place where files are missing; nothing is missing behind the end of the log."""
    last = store.ends.get(after.source)
    is_inside = last is not None and after.base <= last[0].base
    if is_inside and before.end < window.end and after.base > window.start:
        yield Hole(template, before.end, after.base, after.source)


def _is_excluded(store: StoreView, segment: Segment, filters: Filters) -> bool:
    """Whether no row of the segment can pass: old messages have no index and term; the terms of a log never fall."""
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


def _split(store: StoreView, part: ScanRequest | Hole, target: int) -> list[ScanRequest | Hole]:
    """A range as pieces of about `target` bytes, cut at entry boundaries; pieces outside the window are left out."""
    if isinstance(part, Hole) or part.end - part.start <= target:
        return [part]
    cuts = store.engine.split(part.segment, part.start, part.end, target)
    pieces = [
        replace(part, start=start, end=end, end_is_boundary=end != part.end)
        for start, end in zip([part.start, *cuts], [*cuts, part.end], strict=True)
    ]
    wanted = part.filters.pos or IntFilter()
    return [piece for piece in pieces if piece.end > wanted.low and piece.start <= wanted.high]


def _pack(pieces: list[ScanRequest | Hole], target: int) -> list[list[ScanRequest | Hole]]:
    """Neighbouring pieces together, up to `target` bytes."""
    packs: list[list[ScanRequest | Hole]] = []
    size = 0
    for piece in pieces:
        length = piece.end - piece.start
        if not packs or size + length > target:
            packs.append([])
            size = 0
        packs[-1].append(piece)
        size += length
    return packs
