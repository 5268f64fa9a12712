"""The ``audit`` table: disagreements of the log and the ConsumeQueues, in both directions.

Messages are in the order of the log, and so are the units of a queue, so that nothing has to be shuffled. Units that do
not ascend are looked up one by one.

Not covered: units that ``INNER_MULTI_DISPATCH`` (LMQ) should have written, ``batchconsumequeue/``, and queues in
RocksDB. Their messages are not reported as missing. Existing units of LMQ are checked against the message's own list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.format import layout
from pyspark_dledger.format.distinct_numbers import are_in, distinct
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import SCHEDULE_TOPIC
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.entry_reads import read_existing, segment_at
from pyspark_dledger.log.io.epochs import is_of_controller_mode
from pyspark_dledger.log.io.files import OnUnreadable, ignore_error, raise_error
from pyspark_dledger.log.io.queue_files import last_units, queues
from pyspark_dledger.log.io.store_checkpoint import read_store_checkpoint
from pyspark_dledger.log.io.store_paths import StorePaths
from pyspark_dledger.log.io.unread_files import UnreadFiles
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, table_schema
from pyspark_dledger.log.verify.queue_checks import MULTI_DISPATCH
from pyspark_dledger.rocketmq import message_arrays
from pyspark_dledger.rocketmq.consume_queue.queue_units import (
    LAST_EXT_ADDRESS,
    QueueUnits,
    batch_queues,
    is_filler,
    is_selected,
    is_written,
    queue_root,
)
from pyspark_dledger.rocketmq.message_arrays import LocatedMessage, Longs, MessageArrays, QueueNames, message_at

MESSAGE_NOT_IN_QUEUE = "messageNotInQueue"
UNIT_WITHOUT_MESSAGE = "unitWithoutMessage"
WRONG_SIZE = "wrongSize"
WRONG_TAGS_CODE = "wrongTagsCode"
WRONG_QUEUE = "wrongQueue"
QUEUE_OFFSET_GAP = "queueOffsetGap"
AUDIT_CODES = {
    MESSAGE_NOT_IN_QUEUE: "a committed message without a unit: no consumer sees it",
    UNIT_WITHOUT_MESSAGE: "a unit without a message in the log; expired ones are not listed",
    WRONG_SIZE: "a unit with another size than its message",
    WRONG_TAGS_CODE: "a unit whose tagsCode is neither the hash of the message's tags nor its delivery time",
    WRONG_QUEUE: "a unit for a message of another queue, or of none (prepared, rolled back)",
    QUEUE_OFFSET_GAP: "a unit at another place than its message's queueOffset, or units never written",
}

# Longer queues are not searched for units that do not ascend.
_MAX_SEARCHED_UNITS = 4_000_000
_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"

Row = dict[str, Any]


@dataclass(frozen=True)
class AuditPart:
    """The messages of `partition`, all those of ``[low, high)``, and the units that point there.

    ``no_bound`` says why no entry is known to be committed; None if one is. Only messages before ``confirmed`` must be
    in a queue.
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


class _Units(NamedTuple):
    """Written units; ``queue`` is a number of `QueueNames`."""

    offset: Longs
    size: Longs
    tags_code: Longs
    queue: Longs
    queue_offset: Longs

    def take(self, which: npt.NDArray[Any]) -> _Units:
        return _Units(*(values[which] for values in self))

    def __len__(self) -> int:
        return len(self.offset)


class QueueAudit:
    """Compares one part with its units."""

    def __init__(self, part: AuditPart, unread: UnreadFiles | None = None) -> None:
        """`unread` is what is left out, and gets what more cannot be read, which is an error without it."""
        self.part = part
        self._on_unreadable = raise_error if unread is None else unread.add
        if unread is None and part.options.unread is None:
            unread = UnreadFiles(StorePaths(part.path))
        self.unread = unread if unread is not None else self.log.unread
        self.queues = list(self._readable_queues())
        self.names = QueueNames((units.queue.topic, units.queue.queue_id) for units in self.queues)
        self.batch_topics = self._batch_topics()

    @cached_property
    def log(self) -> StoreView:
        """For lookups of single messages, which most parts do not need."""
        return StoreView(self.part.path, self.part.options)

    def _readable_queues(self) -> Iterator[QueueUnits]:
        for queue in queues(self.part.root, self._on_unreadable):
            try:
                yield QueueUnits(queue)
            except UnreadableError as error:
                self._on_unreadable(error)

    def _batch_topics(self) -> set[str]:
        """The topics of batch messages."""
        try:
            return {queue.topic for queue in batch_queues(self.part.root)}
        except UnreadableError as error:
            self._on_unreadable(error)
            return set()

    def rows(self) -> Iterator[Row]:
        """The disagreements. Raises StoreError if a message without a unit may be uncommitted."""
        units, gaps = self._units()
        yield from gaps
        partition = self.part.partition.with_ranges(lambda part: None if isinstance(part, FileGap) else part)
        messages = message_arrays.arrays_of_batches(get_engine(partition.engine), read_partition(partition), self.names)
        # After the end that the plan knew, a live log may have grown: those units are looked up in the current log.
        is_inside = (self.part.low <= units.offset) & (units.offset < min(self.part.high, self.part.log_end))
        inside = units.take(is_inside)
        number, has_message = messages.find(inside.offset)
        yield from self._compare(inside.take(has_message), messages, number[has_message])
        yield from self._without_message(inside.take(~has_message))
        yield from self._outside(units.take(~is_inside))
        in_queue = np.zeros(len(messages), bool)
        in_queue[number[has_message & (self._queues_of(messages, number) == inside.queue)]] = True
        yield from self._missing(messages, in_queue)

    @staticmethod
    def _queues_of(messages: MessageArrays, number: Longs) -> Longs:
        return messages.queue[number] if len(messages) else np.full(len(number), -1, np.int64)

    def _units(self) -> tuple[_Units, list[Row]]:
        """The units that point into the part, in the order of the log, and the gaps before them."""
        gaps: list[Row] = []
        parts = [_Units(*(np.empty(0, np.int64) for _ in _Units._fields))]
        for number, queue in enumerate(self.queues):
            try:
                start, stop = queue.lower_bound(self.part.low), queue.lower_bound(self.part.high)
                queue_offsets, units = queue.read(start, stop)
            except UnreadableError as error:
                self._on_unreadable(error)
                continue
            if start >= stop:
                continue
            # A queue may begin with any queueOffset.
            before = queue.queue_offset(start - 1) if start else -1
            which = is_written(units)
            written, offsets = units[which], queue_offsets[which]
            gaps += self._gaps(number, np.concatenate([[before], offsets]), is_first=start == 0)
            which = ~is_filler(written)
            written, offsets = written[which], offsets[which]
            parts.append(
                _Units(
                    written["commitLogOffset"].astype(np.int64),
                    written["size"].astype(np.int64),
                    written["tagsCode"].astype(np.int64),
                    np.full(len(written), number, np.int64),
                    offsets,
                )
            )
        joined = _Units(*(np.concatenate(values) for values in zip(*parts, strict=True)))
        for low, high in self.unread.extents:
            joined = joined.take((joined.offset < low) | (joined.offset >= high))
        return joined.take(np.argsort(joined.offset, kind="stable")), gaps

    def _gaps(self, number: int, offsets: Longs, is_first: bool) -> Iterator[Row]:
        for gap in np.flatnonzero(np.diff(offsets) > 1).tolist():
            if gap or not is_first:
                first, last = int(offsets[gap]) + 1, int(offsets[gap + 1]) - 1
                expected = f"units {first} to {last}" if first < last else f"unit {first}"
                yield self._row(QUEUE_OFFSET_GAP, number, first, None, expected, "none written")

    def _row(
        self, code: str, number: int, queue_offset: int, offset: int | None, expected: object, found: object
    ) -> Row:
        values = (code, *self.names.names[number], queue_offset, offset, str(expected), str(found))
        return dict(zip(_SCHEMA.names, values, strict=True))

    def _unit_row(self, code: str, units: _Units, at: int, expected: object, found: object) -> Row:
        queue, queue_offset, offset = (int(values[at]) for values in (units.queue, units.queue_offset, units.offset))
        return self._row(code, queue, queue_offset, offset, expected, found)

    # Units

    def _compare(self, units: _Units, messages: MessageArrays, number: Longs) -> Iterator[Row]:
        """Compare each unit with its message, whose number is given."""
        size, queue, stored = messages.size[number], messages.queue[number], messages.stored[number]
        queue_offset, tags_code = messages.queue_offset[number], messages.tags_code[number]
        for at in np.flatnonzero(size != units.size).tolist():
            yield self._unit_row(WRONG_SIZE, units, at, int(size[at]), int(units.size[at]))
        is_delay = np.array([topic == SCHEDULE_TOPIC for topic, _ in self.names.names])[units.queue]
        delays = units.tags_code - stored
        # The delays of the levels are a setting of the broker, but always whole seconds.
        fits = np.where(is_delay, (delays >= 0) & (delays % 1000 == 0), units.tags_code == tags_code)
        for at in np.flatnonzero(~fits & (units.tags_code > LAST_EXT_ADDRESS)).tolist():
            expected = f"whole seconds after {int(stored[at])}" if is_delay[at] else int(tags_code[at])
            yield self._unit_row(WRONG_TAGS_CODE, units, at, expected, int(units.tags_code[at]))
        in_own = queue == units.queue
        for at in np.flatnonzero(~in_own).tolist():
            yield from self._in_other_queue(units, at, int(queue[at]))
        is_dispatched = messages.is_dispatched[number]
        for at in np.flatnonzero(in_own & ~is_dispatched).tolist():
            transaction = layout.TRANSACTIONS[int(messages.sys_flag[number[at]]) & layout.FLAG_TRANSACTION_MASK]
            yield self._unit_row(WRONG_QUEUE, units, at, f"no unit of a message that is {transaction}", "one")
        for at in np.flatnonzero(in_own & is_dispatched & (queue_offset != units.queue_offset)).tolist():
            yield self._unit_row(QUEUE_OFFSET_GAP, units, at, int(queue_offset[at]), int(units.queue_offset[at]))

    def _in_other_queue(self, units: _Units, at: int, queue: int) -> Iterator[Row]:
        """A unit of another queue's message, which may be dispatched to several queues."""
        own = self.names.names[int(units.queue[at])]
        found = int(units.queue_offset[at])
        expected = self._multi_dispatched(int(units.offset[at]), own[0])
        if expected is None:
            topic, queue_id = self.names.names[queue]
            yield self._unit_row(WRONG_QUEUE, units, at, f"{topic}/{queue_id}", f"{own[0]}/{own[1]}")
        elif expected != found:
            yield self._unit_row(QUEUE_OFFSET_GAP, units, at, expected, found)

    def _multi_dispatched(self, offset: int, topic: str) -> int | None:
        """The queueOffset of a message in the queue `topic`, from its list of queues; None if it is not listed."""
        found = message_at(self.log, offset)
        names = found.properties.get(MULTI_DISPATCH, "").split(",") if found is not None else []
        offsets = found.properties.get(_MULTI_QUEUE_OFFSET, "").split(",") if found is not None else []
        listed = dict(zip(names, offsets, strict=False)).get(topic, "")
        return int(listed) if listed.isdecimal() else None

    def _without_message(self, units: _Units) -> Iterator[Row]:
        for at in range(len(units)):
            if self._is_unknown(int(units.offset[at]), int(units.size[at])):
                continue
            end = self.log.max_offset if units.offset[at] >= self.part.log_end else self.part.log_end
            found = f"the log ends at {end}" if units.offset[at] >= end else "none"
            yield self._unit_row(UNIT_WITHOUT_MESSAGE, units, at, f"a message of {int(units.size[at])} bytes", found)

    def _is_unknown(self, offset: int, size: int) -> bool:
        """Whether a message cannot be read."""
        segment = segment_at(self.log.segments, offset)
        if segment is not None and not self.unread.covers(offset, offset + 1):
            try:
                read_existing(segment.path, offset - segment.base, size)
            except UnreadableError as error:
                if self._on_unreadable is raise_error:
                    raise
                self.unread.add_segment(segment, error)
        return self.unread.covers(offset, offset + 1)

    def _outside(self, units: _Units) -> Iterator[Row]:
        """Compare units that point outside of the part, unlike their neighbours; expired ones are skipped."""
        if not len(units):
            return
        begin = self.log.segments[0].base if self.log.segments else 0
        units = units.take((units.offset >= begin) | (units.offset < 0))
        known: dict[int, LocatedMessage] = {}
        for offset in set(units.offset.tolist()):
            if offset >= 0 and (found := message_at(self.log, offset)) is not None:
                known[offset] = found
        messages = message_arrays.arrays_of_messages(known.values(), self.names)
        number, has_message = messages.find(units.offset)
        yield from self._compare(units.take(has_message), messages, number[has_message])
        yield from self._without_message(units.take(~has_message))

    # Messages

    def _missing(self, messages: MessageArrays, in_queue: npt.NDArray[np.bool_]) -> Iterator[Row]:
        """The committed messages without a unit in their queue."""
        is_batch = (messages.sys_flag & layout.FLAG_INNER_BATCH) != 0
        is_missing = messages.is_dispatched & ~in_queue & ~is_batch & (messages.offset < self.part.confirmed)
        if self.part.no_bound is not None and (is_missing & ~messages.is_committed).any():
            raise StoreError(
                f"{self.part.path}: expected a committed index, because only committed messages must be in a queue, "
                f"found none ({self.part.no_bound}): committedBound=end trusts the end of the log"
            )
        missing = np.flatnonzero(is_missing & messages.is_committed)
        missing = missing[~self._is_unread(messages.queue[missing])]
        missing = missing[~self._is_elsewhere(messages.queue[missing], messages.offset[missing])]
        for number in missing.tolist():
            queue, queue_offset, offset = (
                int(values[number]) for values in (messages.queue, messages.queue_offset, messages.offset)
            )
            found = self._found_at(queue, queue_offset, offset)
            if found is not None and self.names.names[queue][0] not in self.batch_topics:
                yield self._row(MESSAGE_NOT_IN_QUEUE, queue, queue_offset, offset, f"a unit of {offset}", found)

    def _is_unread(self, numbers: Longs) -> npt.NDArray[np.bool_]:
        """Whether a queue cannot be read."""
        names = self.names.names
        unread = [number for number in distinct(numbers).tolist() if self.unread.has_queue(*names[number])]
        return are_in(numbers, np.array(unread, np.int64))

    def _is_elsewhere(self, numbers: Longs, offsets: Longs) -> npt.NDArray[np.bool_]:
        """Whether a queue has a unit for an offset out of order; very long queues are not searched."""
        is_elsewhere = np.zeros(len(offsets), bool)
        for number in distinct(numbers).tolist():
            queue = self.queues[number] if number < len(self.queues) else None
            if queue is not None and queue.count <= _MAX_SEARCHED_UNITS:
                _, units = queue.read(0, queue.count)
                wanted = numbers == number
                is_elsewhere[wanted] = np.isin(offsets[wanted], units["commitLogOffset"][units["size"] > 0])
        return is_elsewhere

    def _found_at(self, number: int, queue_offset: int, offset: int) -> str | None:
        """What a queue has instead of the unit of a message; None if it has that unit."""
        if number >= len(self.queues):
            return "no queue"
        queue = self.queues[number]
        if queue_offset >= queue.end:
            return f"the queue ends at {queue.end}"
        rank = queue.rank_of(queue_offset)
        if rank is None:
            return "none written"
        _, units = queue.read(rank, rank + 1)
        if not len(units) or not int(units["size"][0]):
            return "none written"
        found = int(units["commitLogOffset"][0])
        return f"a unit of {found}" if found != offset else None


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
    partitions = plan_read(log, message_arrays.COLUMNS, options, Filters(kind=("message",)))
    end = log.max_offset
    highest = max((unit.commit_log_offset for unit in last_units(root, on_unreadable)), default=0)
    units = sum(file.units for queue in queues(root, ignore_error) for file in queue.files)
    most = min(1 + units // _UNITS_OF_EMPTY_PART, _MAX_EMPTY_PARTS)
    confirmed = confirmed_end(root, on_unreadable)
    return [
        AuditPart(log.path, options, root, partition, low, high, end, reason, confirmed)
        for partition, low, high in _windows(partitions, log.engine.NAME, end, highest, most)
    ]


def confirmed_end(root: Path, on_unreadable: OnUnreadable = raise_error) -> int:
    """From where on the log is not confirmed in controller mode; 2^63-1 in other modes, 0 if that is unknown."""
    try:
        confirmed = read_store_checkpoint(root).confirm_phy_offset if is_of_controller_mode(root) else 0
    except UnreadableError as error:
        on_unreadable(error)
        return 0
    return confirmed or INT64_MAX


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
    yield from batches_of(_SCHEMA, rows, part.options.max_batch_rows)


TABLE = Table("audit", "one row per disagreement of log and ConsumeQueue", COLUMNS, plan, read)
