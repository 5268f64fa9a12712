"""Dispatched units minus stored units: where the messages of a log and the units of its ConsumeQueues disagree.

Messages are in the order of the log, and so are the units of a queue, so that nothing has to be shuffled. Units that do
not ascend are looked up one by one.

Not covered: units that ``INNER_MULTI_DISPATCH`` (LMQ) should have written, and ``batchconsumequeue/``. Their messages
are not reported as missing. Existing units of LMQ are checked against the message's own list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format import layout
from pyspark_dledger.format.arrow_functions import are_in, distinct
from pyspark_dledger.format.dispatched_rows import MAX_QUEUE_OFFSET, Longs, QueueName, is_valid_queue
from pyspark_dledger.format.message import Message
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.queue_files import SPARE_FILLERS, UNITS_AT_ONCE
from pyspark_dledger.log.io.queue_units import LAST_EXT_ADDRESS, QueueUnits, is_filler
from pyspark_dledger.log.io.salvage_fillers import decided_offsets
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.dispatched import MessageArrays, QueueNames, arrays_of_messages
from pyspark_dledger.log.units.stored import StoredQueues, StoredUnits

Bools = npt.NDArray[np.bool_]

# A unit without a message: `expected` is the message's size by the unit. After the log, `found` is where that ends.
NO_MESSAGE, AFTER_LOG = "noMessage", "afterLog"
WITHOUT_MESSAGE = frozenset((NO_MESSAGE, AFTER_LOG))
# A unit with another size, tagsCode or delivery time than its message; for that, `expected` is the storeTimestamp.
OTHER_SIZE, OTHER_TAGS, OTHER_DELIVERY = "otherSize", "otherTags", "otherDelivery"
# A unit of a message that names another queue, that belongs in no queue, or that names another queueOffset.
OTHER_QUEUE, NOT_DISPATCHED, OTHER_PLACE = "otherQueue", "notDispatched", "otherPlace"
# Units never written before others that were.
NEVER_WRITTEN = "neverWritten"
# A message without a unit. `found` is where its queue ends, or the position in the unit at the message's queueOffset.
NO_QUEUE, AFTER_QUEUE, NO_UNIT, OTHER_UNIT = "noQueue", "afterQueue", "noUnit", "otherUnit"
# `found` is the queueOffset at which its queue begins.
BEFORE_FIRST = "beforeFirst"
# Java gives no unit to a message with the queueOffset of an earlier one. `found` is the position of that one.
REPEATED = "repeated"
# No rebuild fills the gap between the end of its queue, `found`, and the message's queueOffset.
TOO_FAR = "tooFar"
# The topic was deleted, and with `BEFORE_QUEUE` created again: `found` is the position of the queue's first message.
NO_TOPIC, BEFORE_QUEUE = "noTopic", "beforeQueue"
DELETED = frozenset((NO_TOPIC, BEFORE_QUEUE))

MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
"""The property with further queues of a message."""
_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
_WITH_POSITION = frozenset((AFTER_QUEUE, TOO_FAR, OTHER_UNIT, REPEATED, BEFORE_FIRST, BEFORE_QUEUE))
# A builder of queues writes at most so many: a pull of a consumer.
_MAX_GAP_COPIES = 1024
# Further messages count as messages without a unit.
_MAX_REPEATED = 1000


class UnitDifference(NamedTuple):
    """A disagreement about the unit at a queueOffset; ``offset`` is the position of its message in the log."""

    code: str
    queue: QueueName
    queue_offset: int
    offset: int | None
    expected: int | str | QueueName | None
    found: int | QueueName | None


class UnitComparison:
    """Compares messages with the units of `stored` queues. `open_log` opens the log for lookups of single messages."""

    def __init__(self, stored: StoredQueues, open_log: Callable[[], StoreView]) -> None:
        self._stored = stored
        self._open_log = open_log
        self.names = QueueNames(queue.name for queue in stored.queues)

    @cached_property
    def log(self) -> StoreView:
        """The log, which most comparisons do not need."""
        return self._open_log()

    @cached_property
    def _decided(self) -> Longs:
        """The positions of messages that a salvage listed: a queue has them only if their place in it is sure."""
        return np.array(sorted(decided_offsets(self.log.paths)), np.int64)

    @cached_property
    def _max_gap(self) -> int:
        """The longest gap in a queue that a rebuild fills."""
        log = self.log
        size = sum(log.segment_end(segment) - segment.base for segment in log.segments)
        return SPARE_FILLERS + size // layout.CONSUME_QUEUE_UNIT_SIZE

    def message_at(self, offset: int) -> Message | None:
        """The message at an offset of the log; None without one."""
        return message_at(self.log.segments, offset, self.log.segment_end)

    def of_units(
        self, units: StoredUnits, messages: MessageArrays, low: int, high: int, log_end: int
    ) -> Iterator[UnitDifference]:
        """The disagreements about units, given all messages of ``[low, high)``; the log ended at `log_end`.

        Units of expired messages agree.
        """
        is_inside = (low <= units.offset) & (units.offset < min(high, log_end))
        inside = units.take(is_inside)
        number, is_found = messages.find(inside.offset)
        yield from self._compared(inside.take(is_found), messages, number[is_found])
        yield from self._without_message(inside.take(~is_found), log_end)
        # A live log may have grown: units after the end that is known are looked up in the current log.
        yield from self._outside(units.take(~is_inside), log_end)

    def _compared(self, units: StoredUnits, messages: MessageArrays, number: Longs) -> Iterator[UnitDifference]:
        """Compare each unit with its message, whose number is given."""
        size, queue, stored = messages.size[number], messages.queue[number], messages.stored[number]
        queue_offset, tags_code = messages.queue_offset[number], messages.tags_code[number]
        for at in np.flatnonzero(size != units.size).tolist():
            yield self._difference(OTHER_SIZE, units, at, int(size[at]), int(units.size[at]))
        is_delay = np.array([topic == layout.SCHEDULE_TOPIC for topic, _ in self.names.names], bool)[units.queue]
        delays = units.tags_code - stored
        # The delays of the levels are a setting of the broker, but always whole seconds.
        fits = np.where(is_delay, (delays >= 0) & (delays % 1000 == 0), units.tags_code == tags_code)
        for at in np.flatnonzero(~fits & (units.tags_code > LAST_EXT_ADDRESS)).tolist():
            code, expected = (OTHER_DELIVERY, stored) if is_delay[at] else (OTHER_TAGS, tags_code)
            yield self._difference(code, units, at, int(expected[at]), int(units.tags_code[at]))
        in_own = queue == units.queue
        for at in np.flatnonzero(~in_own).tolist():
            yield from self._in_other_queue(units, at, int(queue[at]))
        is_dispatched = messages.is_dispatched[number]
        for at in np.flatnonzero(in_own & ~is_dispatched).tolist():
            transaction = layout.TRANSACTIONS[int(messages.sys_flag[number[at]]) & layout.FLAG_TRANSACTION_MASK]
            yield self._difference(NOT_DISPATCHED, units, at, transaction, None)
        for at in np.flatnonzero(in_own & is_dispatched & (queue_offset != units.queue_offset)).tolist():
            own = int(queue_offset[at])
            is_right = self._is_gap_copy(units, at, own) if own else self._is_appended(units, at)
            if not (is_right or self._is_end_copy(units, at, own)):
                yield self._difference(OTHER_PLACE, units, at, int(queue_offset[at]), int(units.queue_offset[at]))

    def _is_gap_copy(self, units: StoredUnits, at: int, own_offset: int) -> bool:
        """Whether all units up to a message's own one are copies of it, in the place of messages that are lost."""
        first = int(units.queue_offset[at])
        if not 0 < own_offset - first <= _MAX_GAP_COPIES:
            return False
        copies = self._stored.queues[int(units.queue[at])].at(first, own_offset - first + 1)
        return bool((copies["commitLogOffset"] == units.offset[at]).all())

    def _is_end_copy(self, units: StoredUnits, at: int, own_offset: int) -> bool:
        """Whether a unit is a copy of a message's own one at a queue's end, in the place of messages that are lost."""
        place = int(units.queue_offset[at])
        queue = self._stored.queues[int(units.queue[at])]
        first = max(own_offset, place - _MAX_GAP_COPIES)
        between = queue.at(first, max(place - first, 0))
        is_copy = (between["commitLogOffset"] == units.offset[at]) & (between["size"] == units.size[at])
        is_own = int(queue.at(own_offset, 1)["commitLogOffset"][0]) == int(units.offset[at])
        return own_offset < place and is_own and bool((is_copy | is_filler(between)).all())

    def _is_appended(self, units: StoredUnits, at: int) -> bool:
        """Whether Java appended a message with queueOffset 0: a message of its queue before it has that place."""
        queue = self._stored.queues[int(units.queue[at])]
        if queue.files and queue.files[0].first > 0:
            return True
        first = int(queue.at(0, 1)["commitLogOffset"][0])
        found = self.message_at(first) if first < units.offset[at] else None
        return found is not None and (found.topic, found.queue_id) == queue.name

    def _in_other_queue(self, units: StoredUnits, at: int, queue: int) -> Iterator[UnitDifference]:
        """A unit of another queue's message, which may be dispatched to several queues."""
        own = self.names.names[int(units.queue[at])]
        place = int(units.queue_offset[at])
        expected = self._multi_dispatched(int(units.offset[at]), own[0])
        if expected is None:
            yield self._difference(OTHER_QUEUE, units, at, self.names.names[queue], own)
        elif expected != place:
            yield self._difference(OTHER_PLACE, units, at, expected, place)

    def _multi_dispatched(self, offset: int, topic: str) -> int | None:
        """The queueOffset of a message in the queue `topic`, from its list of queues; None if it is not listed."""
        found = self.message_at(offset)
        names = found.properties.get(MULTI_DISPATCH, "").split(",") if found is not None else []
        offsets = found.properties.get(_MULTI_QUEUE_OFFSET, "").split(",") if found is not None else []
        listed = dict(zip(names, offsets, strict=False)).get(topic, "")
        return int(listed) if listed.isdecimal() else None

    def _without_message(self, units: StoredUnits, log_end: int) -> Iterator[UnitDifference]:
        for at, offset in enumerate(units.offset.tolist()):
            end = self.log.max_offset if offset >= log_end else log_end
            code, found = (AFTER_LOG, end) if offset >= end else (NO_MESSAGE, None)
            yield self._difference(code, units, at, int(units.size[at]), found)

    def _outside(self, units: StoredUnits, log_end: int) -> Iterator[UnitDifference]:
        """Compare units that point elsewhere, unlike their neighbours; expired ones are skipped."""
        if not len(units.offset):
            return
        begin = self.log.segments[0].base if self.log.segments else 0
        units = units.take((units.offset >= begin) | (units.offset < 0))
        known: dict[int, Message] = {}
        for offset in set(units.offset.tolist()):
            if offset >= 0 and (found := self.message_at(offset)) is not None:
                known[offset] = found
        messages = arrays_of_messages(known, self.names)
        number, is_found = messages.find(units.offset)
        yield from self._compared(units.take(is_found), messages, number[is_found])
        yield from self._without_message(units.take(~is_found), log_end)

    def of_messages(
        self, messages: MessageArrays, units: StoredUnits, wanted: npt.NDArray[np.bool_]
    ) -> Iterator[UnitDifference]:
        """The wanted messages without a unit in their queue, given the units that point there; in the log's order."""
        numbers = self._missing(messages, units, wanted)
        code = np.full(len(numbers), NO_QUEUE, object)
        found = np.full(len(numbers), -1, np.int64)
        queue, queue_offset, offset = (
            values[numbers] for values in (messages.queue, messages.queue_offset, messages.offset)
        )
        for number in distinct(queue).tolist():
            name = self.names.names[number]
            at = np.flatnonzero(queue == number)
            if (stored := self._stored.get(name)) is not None:
                code[at], found[at] = _found_at(stored, queue_offset[at])
                begin = self._begin_again(stored)
                is_before = at[offset[at] < begin]
                code[is_before], found[is_before] = BEFORE_QUEUE, begin
            elif self._stored.is_deleted(name[0]):
                code[at] = NO_TOPIC
        after = np.flatnonzero(code == AFTER_QUEUE)
        if len(after):
            code[after[queue_offset[after] - found[after] > self._max_gap]] = TOO_FAR
        is_earlier = (code == OTHER_UNIT) & (found < offset)
        for at in np.flatnonzero(is_earlier)[:_MAX_REPEATED].tolist():
            before = self.message_at(int(found[at]))
            claimed = (before.topic, before.queue_id, before.queue_offset) if before else None
            if claimed == (*self.names.names[int(queue[at])], queue_offset[at]):
                code[at] = REPEATED
        for at in np.flatnonzero((code != OTHER_UNIT) | (found != offset)).tolist():
            position, value = int(offset[at]), int(found[at]) if code[at] in _WITH_POSITION else None
            yield UnitDifference(
                code[at], self.names.names[int(queue[at])], int(queue_offset[at]), position, position, value
            )

    def _begin_again(self, queue: QueueUnits) -> int:
        """The position of a queue's first message, if that has queueOffset 0; 0 if it has another one."""
        first = queue.at(0, 1)
        position = int(first["commitLogOffset"][0])
        found = self.message_at(position) if first["size"][0] > 0 and position > 0 else None
        claimed = (found.topic, found.queue_id, found.queue_offset) if found is not None else None
        return position if claimed == (*queue.name, 0) else 0

    def _missing(self, messages: MessageArrays, units: StoredUnits, wanted: Bools) -> Longs:
        """The numbers of wanted messages without a unit in their queue."""
        is_missing = wanted & messages.is_dispatched & ((messages.sys_flag & layout.FLAG_INNER_BATCH) == 0)
        is_missing &= (messages.queue_offset >= 0) & (messages.queue_offset <= MAX_QUEUE_OFFSET)
        number, is_found = messages.find(units.offset)
        if len(messages):
            is_missing[number[is_found & (messages.queue[number] == units.queue)]] = False
        missing = np.flatnonzero(is_missing)
        queue = messages.queue[missing]
        outside = [number for number in distinct(queue).tolist() if self._has_no_units(self.names.names[number])]
        missing = missing[~are_in(queue, np.array(outside, np.int64))]
        missing = missing[~self._are_elsewhere(messages.queue[missing], messages.offset[missing])]
        return missing[~are_in(messages.offset[missing], self._decided)] if len(missing) else missing

    def _has_no_units(self, name: QueueName) -> bool:
        """Whether no queue can have this name, its messages are in batchconsumequeue, or it could not be read."""
        return not is_valid_queue(name) or name[0] in self._stored.batch_topics or self._stored.is_unread(name)

    def _are_elsewhere(self, numbers: Longs, offsets: Longs) -> Bools:
        """Whether a queue has a unit for an offset out of order; very long queues are not searched."""
        found = np.zeros(len(offsets), bool)
        for number in distinct(numbers).tolist():
            if number < len(self._stored.queues):
                wanted = numbers == number
                found[wanted] = are_in(offsets[wanted], self._stored.positions_of(number))
        return found

    def _difference(
        self, code: str, units: StoredUnits, at: int, expected: int | str | QueueName, found: int | QueueName | None
    ) -> UnitDifference:
        queue, queue_offset, offset = (int(values[at]) for values in (units.queue, units.queue_offset, units.offset))
        return UnitDifference(code, self.names.names[queue], queue_offset, offset, expected, found)


def _found_at(queue: QueueUnits, offsets: Longs) -> tuple[npt.NDArray[np.object_], Longs]:
    """What a queue has at queueOffsets instead of the unit of a message: a code, and a position or the queue's end."""
    code, found = np.full(len(offsets), NO_UNIT, object), np.full(len(offsets), queue.end, np.int64)
    code[offsets >= queue.end] = AFTER_QUEUE
    inside = np.flatnonzero(offsets < queue.end)
    inside = inside[np.argsort(offsets[inside], kind="stable")]
    places = offsets[inside]
    for part in np.split(np.arange(len(inside)), np.flatnonzero(np.diff(places // UNITS_AT_ONCE)) + 1):
        if len(part):
            first = int(places[part[0]])
            units = queue.at(first, int(places[part[-1]]) - first + 1)[places[part] - first]
            is_unit = units["size"] != 0
            code[inside[part[is_unit]]] = OTHER_UNIT
            found[inside[part]] = units["commitLogOffset"]
    if queue.count:
        is_before = offsets < queue.queue_offset(0)
        code[is_before], found[is_before] = BEFORE_FIRST, queue.queue_offset(0)
    return code, found
