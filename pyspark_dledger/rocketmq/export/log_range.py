"""Finds the range of a log to export, and checks whether the log still has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Filters
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.options import Offset, ReadOptions
from pyspark_dledger.log.plan import Partition, plan_between, plan_read, read_partition
from pyspark_dledger.log.tail.tail import TailOffset
from pyspark_dledger.log.tail.tail_view import entry_ref
from pyspark_dledger.rocketmq.export.forms import ExportSettings

if TYPE_CHECKING:
    from pyspark_dledger.log.store_view import StoreView

_MAX_ROW_BYTES = 64 * 1024 * 1024
_PARTITION_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class LogRange:
    """Positions ``[start, end)`` of a log, which are starts of rows or the log's end.

    ``committed_index`` is the committed bound; ``beyond_committed`` counts the entries of the range after it. Both are
    None if the bound is unknown. ``last`` is the last row of the range, with the CRC-32 of its bytes.
    """

    start: int
    end: int
    committed_index: int | None
    beyond_committed: int | None
    last: TailOffset

    def to_json(self) -> dict[str, Any]:
        """The fields of the manifest."""
        return {
            "start": self.start,
            "end": self.end,
            "committedIndex": self.committed_index,
            "beyondCommitted": self.beyond_committed,
            "last": self.last._asdict(),
        }


def range_from_json(value: Mapping[str, Any]) -> LogRange:
    """A range from `LogRange.to_json`. Raises KeyError, TypeError and ValueError for anything else."""
    last = TailOffset(**value["last"])
    found = LogRange(value["start"], value["end"], value["committedIndex"], value["beyondCommitted"], last)
    positions = (found.start, found.end, last.pos)
    others = (found.committed_index, found.beyond_committed, last.index, last.term, last.crc)
    if not all(type(number) is int and 0 <= number <= INT64_MAX for number in positions):
        raise ValueError
    if not all(number is None or (type(number) is int and -1 <= number <= INT64_MAX) for number in others):
        raise ValueError
    return found


def partitions_of(log: StoreView, settings: ExportSettings, columns: tuple[str, ...]) -> list[Partition]:
    """The partitions of the exported range; the same for the same settings even if the log has grown.

    Several small segments form one partition, up to maxPartitionBytes.
    """
    options = settings.options
    options = replace(options, max_partition_bytes=options.max_partition_bytes or _PARTITION_BYTES)
    return plan_between(log, columns, options, settings.filters, settings.committed_index, settings.start, settings.end)


def range_of(log: StoreView, options: ReadOptions) -> LogRange:
    """The range of the rows that the options choose. Raises StoreError if there are none."""
    committed = committed_bound(log, options).index if log.ledger_segments else None
    bound = options.committed_bound if committed is None else committed
    whole = replace(options, max_partition_bytes=INT64_MAX, min_partitions=None, committed_bound=bound)
    ranges = [part for partition in plan_read(log, ("pos",), whole, Filters()) for part in partition.ranges]
    nothing = StoreError(f"{log.path}: no rows to export: check dledger state and the options of the read")
    if not ranges:
        raise nothing
    # Positions in the options need not be starts of rows.
    start, end = ranges[0].start, ranges[-1].end
    if options.starting_offsets.kind == "pos" and options.starting_offsets.value > start:
        start = _first_row_at(log, options.starting_offsets.value, end)
    if options.ending_offsets.kind == "pos" and options.ending_offsets.value < end:
        end = _first_row_at(log, options.ending_offsets.value, end)
    if start >= end:
        raise nothing
    last, last_index = _last_row(log, start, end)
    return LogRange(start, end, committed, _count_beyond(log, committed, start, last_index), last)


def _count_beyond(log: StoreView, committed: int | None, start: int, last_index: int | None) -> int | None:
    """How many entries from position `start` to the last index are after the committed bound."""
    if committed is None or last_index is None or last_index <= committed:
        return None if committed is None else 0
    first = _first_value(log, "index", max(start, log.ledger_segments[0].base))
    return last_index - (committed if first is None else max(committed, first - 1))


def _first_row_at(log: StoreView, pos: int, end: int) -> int:
    """The start of the first row at or after `pos`; at most `end`."""
    first = _first_value(log, "pos", pos)
    return end if first is None else min(first, end)


def _first_value(log: StoreView, column: str, pos: int) -> int | None:
    """The first value of a column that is not null, in rows at or after `pos`."""
    options = ReadOptions(
        starting_offsets=Offset("pos", pos), fail_on_data_loss=False, max_batch_rows=1, verify_crc=False
    )
    for partition in plan_read(log, (column,), options, Filters()):
        for batch in read_partition(partition):
            known = batch[column].drop_null()
            if len(known):
                return int(known[0].as_py())
    return None


def _last_row(log: StoreView, start: int, end: int) -> tuple[TailOffset, int | None]:
    """The last row in ``[start, end)`` with the CRC-32 of its bytes, and the last index at or before it."""
    for segment, found in log.ends.values():
        if found.pos == end and found.last_pos >= start:
            index, term = (found.last_index, found.last_term) if segment.source == DLEDGER else (None, None)
            return TailOffset(index, term, found.last_pos, _crc(log, found.last_pos, end - found.last_pos)), index
    options = ReadOptions(max_partition_bytes=INT64_MAX, verify_crc=False)
    for segment in reversed([each for each in log.segments if each.base < end and each.end > start]):
        begin = max(start, segment.base)
        parts = plan_between(log, ("index", "term", "pos", "size"), options, Filters(), None, begin, end)
        last = index = None
        for batch in (batch for part in parts for batch in read_partition(part) if batch.num_rows):
            last, known = batch, batch["index"].drop_null()
            index = known[-1].as_py() if len(known) else index
        if last is not None:
            row = last.slice(last.num_rows - 1).to_pylist()[0]
            return TailOffset(row["index"], row["term"], row["pos"], _crc(log, row["pos"], row["size"])), index
    return TailOffset(pos=start), None


def current_last_row(log: StoreView, found: LogRange) -> TailOffset:
    """The last row of a range in the current log: `found.last` if that row is unchanged."""
    if found.last.pos is not None and found.end <= max((end.pos for _, end in log.ends.values()), default=0):
        rows = (entry_ref(log, source, found.last.pos) for source in (DLEDGER, COMMITLOG))
        if any(row is not None and row.offset == found.last for row in rows):
            return found.last
    return _last_row(log, found.start, found.end)[0]


def _crc(log: StoreView, pos: int, size: int) -> int:
    """The CRC-32 of the bytes at a position; of a row that is too long for an entry, of its first bytes."""
    segment = next((each for each in log.segments if each.base <= pos < each.end), None)
    return log.engine.crc32(b"" if segment is None else segment.read(pos, min(size, _MAX_ROW_BYTES)))
