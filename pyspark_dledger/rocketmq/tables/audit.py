"""The ``audit`` table: the log against the ConsumeQueue, both ways.

Messages are in the order of the log and the units of a queue ascend in it, too, so a part of the log is held against
the units that point into it, and nothing is shuffled. Units that do not ascend are looked up one by one.

Not covered: what ought to be in queues of ``INNER_MULTI_DISPATCH`` (LMQ) and in ``batchconsumequeue/``, and queues in
RocksDB. Their messages are not missed, and units of LMQ are checked against the message's own list.
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
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.layout import SCHEDULE_TOPIC
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.io.queue_files import last_units, queues
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import Table, TableColumn, batches_of, table_schema
from pyspark_dledger.rocketmq import message_arrays
from pyspark_dledger.rocketmq.consume_queue.queue_units import LAST_EXT_ADDRESS, QueueUnits, is_filler
from pyspark_dledger.rocketmq.consume_queue.store_queues import batch_queues, is_selected, queue_root
from pyspark_dledger.rocketmq.message_arrays import Found, Longs, Messages, QueueNames, message_at

MESSAGE_NOT_IN_QUEUE = "messageNotInQueue"
UNIT_WITHOUT_MESSAGE = "unitWithoutMessage"
WRONG_SIZE = "wrongSize"
WRONG_TAGS_CODE = "wrongTagsCode"
WRONG_QUEUE = "wrongQueue"
QUEUE_OFFSET_GAP = "queueOffsetGap"
CODES = {
    MESSAGE_NOT_IN_QUEUE: "a committed message without a unit: no consumer sees it",
    UNIT_WITHOUT_MESSAGE: "a unit without a message in the log; expired ones are not listed",
    WRONG_SIZE: "a unit with another size than its message",
    WRONG_TAGS_CODE: "a unit whose tagsCode is neither the hash of the message's tags nor its delivery time",
    WRONG_QUEUE: "a unit for a message of another queue, or of none (prepared, rolled back)",
    QUEUE_OFFSET_GAP: "a unit at another place than its message's queueOffset, or units never written",
}

# As many messages as a task holds at once.
_PART_BYTES = 128 * 1024 * 1024
_LONGEST_SEARCH = 4_000_000
_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"

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

Row = dict[str, Any]


@dataclass(frozen=True)
class AuditPart:
    """The messages of `partition`, which has those of ``[low, high)``, and the units that point there.

    ``no_bound`` says why nothing is known to be committed, where that is so.
    """

    path: str
    options: ReadOptions
    root: Path
    partition: Partition
    low: int
    high: int
    log_end: int
    no_bound: str | None


def plan(log: StoreView, options: ReadOptions) -> list[AuditPart]:
    """Parts of the log. Raises StoreError where the queues cannot be read."""
    root = queue_root(log)
    if log.paths.only is not None:
        raise StoreError(f"{log.path}: expected a whole store to audit, found one segment: give the root's path")
    options = replace(options, max_partition_bytes=options.max_partition_bytes or _PART_BYTES)
    bound = committed_bound(log, options) if log.ledger_segments else None
    reason = bound.reason if bound is not None and bound.index is None else None
    partitions = plan_read(log, message_arrays.COLUMNS, options, Filters(kind=("message",)))
    end = log.max_offset
    highest = max((unit.commit_log_offset for unit in last_units(root)), default=0)
    return [
        AuditPart(log.path, options, root, partition, low, high, end, reason)
        for partition, low, high in _windows(partitions, log.engine.NAME, end, highest)
    ]


def _windows(
    partitions: list[Partition], engine: str, log_end: int, highest: int
) -> Iterator[tuple[Partition, int, int]]:
    """Partitions and the positions that are theirs, which together are all from the first one on.

    Positions without messages are cut into smaller ones, because units may point to any of them: missing files, and
    what is behind the end of the log, up to the `highest` unit.
    """
    nothing = Partition((), engine)
    starts = [partition.ranges[0].start for partition in partitions]
    ends = [*starts[1:], log_end][: len(starts)]
    for partition, low, high in zip(partitions, starts, ends, strict=True):
        if all(isinstance(part, FileGap) for part in partition.ranges):
            yield from ((nothing, *cut) for cut in _cuts(low, high))
        else:
            yield partition, low, high
    *behind, (last, _) = _cuts(log_end, highest + 1)
    yield from ((nothing, *cut) for cut in behind)
    yield nothing, last, INT64_MAX


def _cuts(low: int, high: int) -> Iterator[tuple[int, int]]:
    """At least one range, at most a thousand."""
    step = max(_PART_BYTES, -(-(high - low) // 1000))
    for start in range(low, max(high, low + 1), step):
        yield start, min(start + step, high)


def read(part: AuditPart) -> Iterator[pa.RecordBatch]:
    """The rows of a part, by code, then in the order of the log.

    Raises StoreError where a message is in no queue and nothing tells whether it ought to be.
    """
    wanted = (row for row in _Audit(part).rows() if is_selected(row["topic"], row["queueId"], part.options))
    yield from batches_of(_SCHEMA, wanted, part.options.max_batch_rows)


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


class _Audit:
    """One part, held against its units."""

    def __init__(self, part: AuditPart) -> None:
        self.part = part
        found = queues(part.root)
        self.names = QueueNames((queue.topic, queue.queue_id) for queue in found)
        self.queues = [QueueUnits(queue) for queue in found]
        self.batch_topics = {queue.topic for queue in batch_queues(part.root)}

    @cached_property
    def log(self) -> StoreView:
        """For what is looked up by itself; most parts need none of it."""
        return StoreView(self.part.path, self.part.options)

    def rows(self) -> Iterator[Row]:
        units, gaps = self._units()
        yield from gaps
        ranges = tuple(part for part in self.part.partition.ranges if not isinstance(part, FileGap))
        scanned = message_arrays.scanned(read_partition(replace(self.part.partition, ranges=ranges)), self.names)
        # Behind the end that the plan knew a live log has grown: looked up as it is now.
        is_inside = (self.part.low <= units.offset) & (units.offset < min(self.part.high, self.part.log_end))
        inside = units.take(is_inside)
        places, has_message = scanned.find(inside.offset)
        yield from self._compared(inside.take(has_message), scanned, places[has_message])
        yield from self._without_message(inside.take(~has_message))
        yield from self._strays(units.take(~is_inside))
        in_queue = np.zeros(len(scanned), bool)
        in_queue[places[has_message & (self._queues_of(scanned, places) == inside.queue)]] = True
        yield from self._missing(scanned, in_queue)

    @staticmethod
    def _queues_of(found: Messages, places: Longs) -> Longs:
        return found.queue[places] if len(found) else np.full(len(places), -1, np.int64)

    def _units(self) -> tuple[_Units, list[Row]]:
        """The units that point into the part, in the order of the log, and the gaps before them."""
        gaps: list[Row] = []
        parts = [_Units(*(np.empty(0, np.int64) for _ in _Units._fields))]
        for number, queue in enumerate(self.queues):
            start, stop = queue.lower_bound(self.part.low), queue.lower_bound(self.part.high)
            if start >= stop:
                continue
            queue_offsets, units = queue.read(start, stop)
            # Where the queue begins nothing is missing.
            before = queue.queue_offset(start - 1) if start else -1
            is_written = (units["size"] != 0) | (units["commitLogOffset"] != 0) | (units["tagsCode"] != 0)
            written, places = units[is_written], queue_offsets[is_written]
            gaps += self._gaps(number, np.concatenate([[before], places]), is_first=start == 0)
            written, places = written[~is_filler(written)], places[~is_filler(written)]
            parts.append(
                _Units(
                    written["commitLogOffset"].astype(np.int64),
                    written["size"].astype(np.int64),
                    written["tagsCode"].astype(np.int64),
                    np.full(len(written), number, np.int64),
                    places,
                )
            )
        joined = _Units(*(np.concatenate(values) for values in zip(*parts, strict=True)))
        return joined.take(np.argsort(joined.offset, kind="stable")), gaps

    def _gaps(self, number: int, places: Longs, is_first: bool) -> Iterator[Row]:
        for place in np.flatnonzero(np.diff(places) > 1).tolist():
            if place or not is_first:
                first, last = int(places[place]) + 1, int(places[place + 1]) - 1
                which = f"units {first} to {last}" if first < last else f"unit {first}"
                yield self._row(QUEUE_OFFSET_GAP, number, first, None, which, "none written")

    def _row(
        self, code: str, number: int, queue_offset: int, offset: int | None, expected: object, found: object
    ) -> Row:
        topic, queue_id = self.names.names[number]
        return {
            "code": code,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": queue_offset,
            "commitLogOffset": offset,
            "expected": str(expected),
            "found": str(found),
        }

    def _unit_row(self, code: str, units: _Units, number: int, expected: object, found: object) -> Row:
        queue, place, offset = (int(values[number]) for values in (units.queue, units.queue_offset, units.offset))
        return self._row(code, queue, place, offset, expected, found)

    # Units

    def _compared(self, units: _Units, found: Messages, places: Longs) -> Iterator[Row]:
        """Each unit against the message that it points to."""
        size, queue, stored = found.size[places], found.queue[places], found.stored[places]
        queue_offset, tags_code = found.queue_offset[places], found.tags_code[places]
        for number in np.flatnonzero(size != units.size).tolist():
            yield self._unit_row(WRONG_SIZE, units, number, int(size[number]), int(units.size[number]))
        is_delay = np.array([topic == SCHEDULE_TOPIC for topic, _ in self.names.names])[units.queue]
        waits = units.tags_code - stored
        # The delays of the levels are a setting of the broker, but always whole seconds.
        fits = np.where(is_delay, (waits >= 0) & (waits % 1000 == 0), units.tags_code == tags_code)
        for number in np.flatnonzero(~fits & (units.tags_code > LAST_EXT_ADDRESS)).tolist():
            expected = f"whole seconds after {int(stored[number])}" if is_delay[number] else int(tags_code[number])
            yield self._unit_row(WRONG_TAGS_CODE, units, number, expected, int(units.tags_code[number]))
        in_own = queue == units.queue
        for number in np.flatnonzero(~in_own).tolist():
            yield from self._in_other_queue(units, number, int(queue[number]))
        is_dispatched = found.is_dispatched[places]
        for number in np.flatnonzero(in_own & ~is_dispatched).tolist():
            transaction = layout.TRANSACTIONS[int(found.sys_flag[places[number]]) & layout.FLAG_TRANSACTION_MASK]
            yield self._unit_row(WRONG_QUEUE, units, number, f"no unit of a message that is {transaction}", "one")
        for number in np.flatnonzero(in_own & is_dispatched & (queue_offset != units.queue_offset)).tolist():
            expected, place = int(queue_offset[number]), int(units.queue_offset[number])
            yield self._unit_row(QUEUE_OFFSET_GAP, units, number, expected, place)

    def _in_other_queue(self, units: _Units, number: int, queue: int) -> Iterator[Row]:
        """A unit of another queue's message, which may be dispatched to several queues."""
        own = self.names.names[int(units.queue[number])]
        place = int(units.queue_offset[number])
        expected = self._multi_dispatched(int(units.offset[number]), own[0])
        if expected is None:
            topic, queue_id = self.names.names[queue]
            yield self._unit_row(WRONG_QUEUE, units, number, f"{topic}/{queue_id}", f"{own[0]}/{own[1]}")
        elif expected != place:
            yield self._unit_row(QUEUE_OFFSET_GAP, units, number, expected, place)

    def _multi_dispatched(self, offset: int, topic: str) -> int | None:
        """The queueOffset that a message has in the queue `topic` by its list of queues; None where it has none."""
        found = message_at(self.log, offset)
        names = found.properties.get(_MULTI_DISPATCH, "").split(",") if found is not None else []
        places = found.properties.get(_MULTI_QUEUE_OFFSET, "").split(",") if found is not None else []
        listed = dict(zip(names, places, strict=False)).get(topic, "")
        return int(listed) if listed.isdecimal() else None

    def _without_message(self, units: _Units) -> Iterator[Row]:
        for number in range(len(units)):
            end = self.log.max_offset if units.offset[number] >= self.part.log_end else self.part.log_end
            found = f"the log ends at {end}" if units.offset[number] >= end else "none"
            yield self._unit_row(
                UNIT_WITHOUT_MESSAGE, units, number, f"a message of {int(units.size[number])} bytes", found
            )

    def _strays(self, units: _Units) -> Iterator[Row]:
        """Units that point elsewhere than their neighbours; what has expired is left out."""
        if not len(units):
            return
        begin = self.log.segments[0].base if self.log.segments else 0
        units = units.take((units.offset >= begin) | (units.offset < 0))
        known: dict[int, Found] = {}
        for offset in set(units.offset.tolist()):
            if offset >= 0 and (found := message_at(self.log, offset)) is not None:
                known[offset] = found
        single = message_arrays.direct(known.values(), self.names)
        places, has_message = single.find(units.offset)
        yield from self._compared(units.take(has_message), single, places[has_message])
        yield from self._without_message(units.take(~has_message))

    # Messages

    def _missing(self, found: Messages, in_queue: npt.NDArray[np.bool_]) -> Iterator[Row]:
        """The committed messages that no unit of their queue points to."""
        is_batch = (found.sys_flag & layout.FLAG_INNER_BATCH) != 0
        is_missing = found.is_dispatched & ~in_queue & ~is_batch
        if self.part.no_bound is not None and (is_missing & ~found.is_committed).any():
            raise StoreError(
                f"{self.part.path}: expected a committed index, because only what is committed has to be in a queue, "
                f"found none ({self.part.no_bound}): committedBound=end trusts the end of the log"
            )
        missing = np.flatnonzero(is_missing & found.is_committed)
        missing = missing[~self._is_elsewhere(found.queue[missing], found.offset[missing])]
        for number in missing.tolist():
            queue, place, offset = (int(values[number]) for values in (found.queue, found.queue_offset, found.offset))
            there = self._at(queue, place, offset)
            if there is not None and self.names.names[queue][0] not in self.batch_topics:
                yield self._row(MESSAGE_NOT_IN_QUEUE, queue, place, offset, f"a unit of {offset}", there)

    def _is_elsewhere(self, numbers: Longs, offsets: Longs) -> npt.NDArray[np.bool_]:
        """Whether a queue has a unit of an offset out of its order; a very long queue is not searched."""
        is_elsewhere = np.zeros(len(offsets), bool)
        for number in np.unique(numbers).tolist():
            queue = self.queues[number] if number < len(self.queues) else None
            if queue is not None and queue.count <= _LONGEST_SEARCH:
                _, units = queue.read(0, queue.count)
                wanted = numbers == number
                is_elsewhere[wanted] = np.isin(offsets[wanted], units["commitLogOffset"][units["size"] > 0])
        return is_elsewhere

    def _at(self, number: int, place: int, offset: int) -> str | None:
        """What stands in a queue where a message's unit should; None if it is its unit after all."""
        if number >= len(self.queues):
            return "no queue"
        queue = self.queues[number]
        if place >= queue.end:
            return f"the queue ends at {queue.end}"
        rank = queue.rank_of(place)
        if rank is None:
            return "none written"
        _, units = queue.read(rank, rank + 1)
        if not len(units) or not int(units["size"][0]):
            return "none written"
        there = int(units["commitLogOffset"][0])
        return f"a unit of {there}" if there != offset else None


TABLE = Table(
    "audit",
    "one row per disagreement of log and ConsumeQueue",
    COLUMNS,
    plan,
    read,
    frozenset({"topic", "queueId", "replicas"}),
)
