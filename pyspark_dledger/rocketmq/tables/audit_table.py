"""The ``audit`` table: disagreements of the log and the ConsumeQueues, in both directions; see `units.comparison`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.entry_reads import read_existing, segment_at
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error, raise_error
from pyspark_dledger.log.io.queue_files import last_units, queues
from pyspark_dledger.log.io.state_files import confirmed_end
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.io.unread_files import UnreadFiles
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, table_schema
from pyspark_dledger.log.units import comparison, dispatched
from pyspark_dledger.log.units.comparison import UnitComparison, UnitDifference
from pyspark_dledger.log.units.dispatched import MessageArrays
from pyspark_dledger.log.units.stored import StoredQueues, StoredUnits, Unwritten, is_selected, queue_root

MESSAGE_NOT_IN_QUEUE = "messageNotInQueue"
UNIT_WITHOUT_MESSAGE = "unitWithoutMessage"
WRONG_SIZE = "wrongSize"
WRONG_TAGS_CODE = "wrongTagsCode"
WRONG_QUEUE = "wrongQueue"
QUEUE_OFFSET_GAP = "queueOffsetGap"
WRONG_FILE_SIZE = "wrongFileSize"
AUDIT_CODES = {
    MESSAGE_NOT_IN_QUEUE: "a committed message without a unit: no consumer sees it",
    UNIT_WITHOUT_MESSAGE: "a unit without a message in the log; expired ones are not listed",
    WRONG_SIZE: "a unit with another size than its message",
    WRONG_TAGS_CODE: "a unit whose tagsCode is neither the hash of the message's tags nor its delivery time",
    WRONG_QUEUE: "a unit for a message of another queue, or of none (prepared, rolled back)",
    QUEUE_OFFSET_GAP: "a unit at another place than its message's queueOffset, or units never written",
    WRONG_FILE_SIZE: "a file of another size than most: a broker does not start with it",
}

Row = dict[str, Any]


class _Text(NamedTuple):
    """The code of a difference in the table, and the formats of what is expected and found."""

    code: str
    expected: str = "{0.expected}"
    found: str = "{0.found}"


_TEXTS = {
    comparison.NO_MESSAGE: _Text(UNIT_WITHOUT_MESSAGE, "a message of {0.expected} bytes", "none"),
    comparison.AFTER_LOG: _Text(UNIT_WITHOUT_MESSAGE, "a message of {0.expected} bytes", "the log ends at {0.found}"),
    comparison.OTHER_SIZE: _Text(WRONG_SIZE),
    comparison.OTHER_TAGS: _Text(WRONG_TAGS_CODE),
    comparison.OTHER_DELIVERY: _Text(WRONG_TAGS_CODE, "whole seconds after {0.expected}"),
    comparison.OTHER_QUEUE: _Text(WRONG_QUEUE, "{0.expected[0]}/{0.expected[1]}", "{0.found[0]}/{0.found[1]}"),
    comparison.NOT_DISPATCHED: _Text(WRONG_QUEUE, "no unit of a message that is {0.expected}", "one"),
    comparison.OTHER_PLACE: _Text(QUEUE_OFFSET_GAP),
    comparison.NEVER_WRITTEN: _Text(QUEUE_OFFSET_GAP, "unit{0.expected}", "none written"),
    comparison.NO_QUEUE: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "no queue"),
    comparison.AFTER_QUEUE: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "the queue ends at {0.found}"),
    comparison.TOO_FAR: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "the queue ends at {0.found}"),
    comparison.NO_UNIT: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "none written"),
    comparison.BEFORE_FIRST: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "the queue begins at {0.found}"),
    comparison.REPEATED: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "a unit of {0.found}"),
    comparison.OTHER_UNIT: _Text(MESSAGE_NOT_IN_QUEUE, "a unit of {0.expected}", "a unit of {0.found}"),
}


@dataclass(frozen=True)
class AuditPart:
    """The messages of `partition`, all those of ``[low, high)``, and the units that point there.

    ``no_bound`` says why no entry is known to be committed; None if one is. Only messages before ``confirmed`` must be
    in a queue. The part that ``is_first`` also checks files, and units before its own.
    """

    path: str
    options: ReadOptions
    root: Path
    partition: Partition
    low: int
    high: int
    log_end: int
    no_bound: str | None
    confirmed: int
    is_first: bool


class QueueAudit:
    """Compares one part with its units."""

    def __init__(self, part: AuditPart, unread: UnreadFiles | None = None) -> None:
        """`unread` is what is left out, and gets what more cannot be read, which is an error without it."""
        self.part = part
        on_unreadable = raise_error if unread is None else unread.add
        self._is_strict = unread is None
        self._stored = StoredQueues(part.root, on_unreadable)
        self._comparison = UnitComparison(self._stored, lambda: StoreView(part.path, part.options))
        if unread is None and part.options.unread is None:
            unread = UnreadFiles(StorePaths(part.path))
        self.unread = unread if unread is not None else self._comparison.log.unread

    def rows(self) -> Iterator[Row]:
        """The disagreements. Raises StoreError if a message without a unit may be uncommitted."""
        for queue, file, usual in self._stored.files_of_other_sizes() if self.part.is_first else ():
            values = (WRONG_FILE_SIZE, *queue.name, file.first, None, f"{usual} bytes", f"{file.size} bytes")
            yield dict(zip(_SCHEMA.names, values, strict=True))
        units, unwritten = self._units()
        for gap in unwritten:
            places = f" {gap.first}" if gap.first == gap.last else f"s {gap.first} to {gap.last}"
            name = self._stored.queues[gap.queue].name
            yield _row(UnitDifference(comparison.NEVER_WRITTEN, name, gap.first, None, places, None))
        partition = self.part.partition.with_ranges(lambda part: None if isinstance(part, FileGap) else part)
        batches = read_partition(partition)
        messages = dispatched.arrays_of_batches(get_engine(partition.engine), batches, self._comparison.names)
        for each in self._comparison.of_units(units, messages, self.part.low, self.part.high, self.part.log_end):
            if each.code not in comparison.WITHOUT_MESSAGE or not self._is_unknown(each):
                yield _row(each)
        yield from self._missing(messages, units)

    def _units(self) -> tuple[StoredUnits, list[Unwritten]]:
        """The units that point into the part, in the order of the log, and the gaps before them."""
        starts = self._stored.bounds(self.part.low)
        found, unwritten = self._stored.between(starts, self._stored.bounds(self.part.high))
        if self.part.is_first:
            # A damaged unit can make those before it look like units of expired messages.
            head, _ = self._stored.between([0] * len(starts), starts, first=self.part.low)
            found = head.joined(found)
        for low, high in self.unread.extents:
            found = found.take((found.offset < low) | (found.offset >= high))
        return found, unwritten

    def _is_unknown(self, each: UnitDifference) -> bool:
        """Whether a message cannot be read."""
        assert each.offset is not None and isinstance(each.expected, int)
        segment = segment_at(self._comparison.log.segments, each.offset)
        if segment is not None and not self.unread.covers(each.offset, each.offset + 1):
            try:
                size = min(max(each.expected, 1), segment.end - each.offset)
                read_existing(segment.path, each.offset - segment.base, size)
            except UnreadableError as error:
                if self._is_strict:
                    raise
                self.unread.add_segment(segment, error)
        return self.unread.covers(each.offset, each.offset + 1)

    def _missing(self, messages: MessageArrays, units: StoredUnits) -> Iterator[Row]:
        """The committed messages without a unit in their queue."""
        of_messages, confirmed = self._comparison.of_messages, messages.offset < self.part.confirmed
        if self.part.no_bound is not None and any(of_messages(messages, units, confirmed & ~messages.is_committed)):
            raise StoreError(
                f"{self.part.path}: expected a committed index, because only committed messages must be in a queue, "
                f"found none ({self.part.no_bound}): committedBound=end trusts the end of the log"
            )
        missing = of_messages(messages, units, confirmed & messages.is_committed)
        yield from (_row(each) for each in missing if each.code not in comparison.DELETED)


def _row(each: UnitDifference) -> Row:
    text = _TEXTS[each.code]
    texts = text.expected.format(each), text.found.format(each)
    return dict(zip(_SCHEMA.names, (text.code, *each.queue, each.queue_offset, each.offset, *texts), strict=True))


# The table

# The messages of a part are all in the memory of its task.
_PART_BYTES = 128 * 1024 * 1024
_MAX_EMPTY_PARTS = 1000
# Parts without messages read all queues, so there are not many for few units.
_UNITS_OF_EMPTY_PART = 1_000_000

COLUMNS = (
    TableColumn("code", pa.string(), "see below"),
    TableColumn("topic", pa.string(), "name of the topic"),
    TableColumn("queueId", pa.int32(), "queue of the topic"),
    TableColumn("queueOffset", pa.int64(), "number in the queue"),
    TableColumn("commitLogOffset", pa.int64(), "position of the message (pos + 48 under DLedger)"),
    TableColumn("expected", pa.string(), "what was expected"),
    TableColumn("found", pa.string(), "what was found"),
)
_SCHEMA = table_schema(COLUMNS)


def plan(log: StoreView, options: ReadOptions, on_unreadable: OnUnreadable = raise_error) -> list[AuditPart]:
    """Parts of the log. Raises StoreError, and calls `on_unreadable` for queues that cannot be read."""
    root = queue_root(log)
    if log.paths.only is not None:
        raise StoreError(f"{log.path}: expected a whole store to audit, found one segment: give the root's path")
    options = replace(options, max_partition_bytes=options.max_partition_bytes or _PART_BYTES)
    bound = committed_bound(log, options) if log.ledger_segments else None
    reason = bound.reason if bound is not None and bound.index is None else None
    columns = (*dispatched.COLUMNS, "committed")
    partitions = plan_read(log, columns, options, Filters(kind=("message",)))
    end = log.max_offset
    highest = max((unit.commit_log_offset for unit in last_units(root, on_unreadable)), default=0)
    units = sum(file.units for queue in queues(root, ignore_error) for file in queue.files)
    most = min(1 + units // _UNITS_OF_EMPTY_PART, _MAX_EMPTY_PARTS)
    confirmed = confirmed_end(root, on_unreadable)
    return [
        AuditPart(log.path, options, root, partition, low, high, end, reason, confirmed, is_first=number == 0)
        for number, (partition, low, high) in enumerate(_windows(partitions, log.engine.NAME, end, highest, most))
    ]


def _windows(
    partitions: list[Partition], engine: str, log_end: int, highest: int, most: int
) -> Iterator[tuple[Partition, int, int]]:
    """Partitions with their positions; together they cover all positions from the first one on.

    Positions without messages are split, because any number of units may point to them: missing files, and positions
    after the end of the log up to the `highest` unit, each into at most `most` parts.
    """
    empty = Partition((), engine)
    starts = [partition.ranges[0].start for partition in partitions]
    ends = [*starts[1:], log_end][: len(starts)]
    for partition, low, high in zip(partitions, starts, ends, strict=True):
        if all(isinstance(part, FileGap) for part in partition.ranges):
            yield from ((empty, *split) for split in _split(low, high, most))
        else:
            yield partition, low, high
    *after, (last, _) = _split(log_end, highest + 1, most)
    yield from ((empty, *split) for split in after)
    yield empty, last, INT64_MAX


def _split(low: int, high: int, most: int) -> Iterator[tuple[int, int]]:
    """At least one range, and at most `most`."""
    step = max(_PART_BYTES, -(-(high - low) // most))
    for start in range(low, max(high, low + 1), step):
        yield start, min(start + step, high)


def read(part: AuditPart, unread: UnreadFiles | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a part, by code, then in the order of the log; without what is `unread`, by default an error.

    Raises StoreError if a message is in no queue, and it is unknown whether it is committed.
    """
    found = QueueAudit(part, unread).rows()
    rows = (row for row in found if is_selected(row["topic"], row["queueId"], part.options))
    yield from batches_of(COLUMNS, rows, part.options.max_batch_rows)


TABLE = Table("audit", "one row per disagreement of log and ConsumeQueue", COLUMNS, plan, read)
