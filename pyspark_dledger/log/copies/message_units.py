"""What ConsumeQueues and IndexFiles say about copies of a message whose bytes differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_dledger.common.integers import INT64_MAX, MAX_TIMESTAMP, MIN_TIMESTAMP
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.arrow_functions import distinct
from pyspark_dledger.format.codec import ConsumeQueueUnit
from pyspark_dledger.format.layout import (
    FLAG_TRANSACTION_MASK,
    PROPERTY_TAGS,
    TRANSACTIONS_OUTSIDE_QUEUES,
)
from pyspark_dledger.format.message import Message, message_in
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.key_files import hash_of_tags, hashes_of_keys, key_units
from pyspark_dledger.log.io.queue_files import Queue, last_units, queues, readable_units
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.io.salvage_fillers import TOPIC as FILLER_TOPIC

# Messages that are looked up; further ones stay undecided.
MAX_LOOKED_UP = 10_000


class CopyEvidence(NamedTuple):
    """What speaks for a copy, the more the better.

    ``is_copy``: it is no filler of a salvage. ``has_times``: its times are in the years 1 to 9999. ``queue`` is 2 if
    the unit at the copy's queue offset has its position, size and tags, 1 without the tags, else 0. ``keys``: its keys
    are exactly those that IndexFiles have for its position.
    """

    is_copy: bool
    has_times: bool
    queue: int
    keys: bool


class MessageUnits:
    """The units of all replicas below `roots`, for messages at `positions` of the log."""

    def __init__(self, roots: Iterable[Path], positions: Iterable[int]) -> None:
        self._roots = list(dict.fromkeys(roots))
        self._positions = positions
        self._unreadable: list[UnreadableError] = []

    @cached_property
    def _queues(self) -> list[dict[tuple[str, int], Queue]]:
        all_queues = (queues(root, self._unreadable.append) for root in self._roots)
        found = ({(queue.topic, queue.queue_id): queue for queue in each} for each in all_queues)
        return [by_name for by_name in found if by_name]

    @property
    def has_queues(self) -> bool:
        """Whether there are queues, also those that cannot be read."""
        return bool(self._queues or self._unreadable)

    @cached_property
    def _hashes(self) -> dict[int, set[int]]:
        """The hashes of keys by position."""
        wanted = distinct(np.fromiter(self._positions, np.int64))
        found: dict[int, set[int]] = {}

        def is_wanted(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
            offsets = units["commitLogOffset"].astype(np.int64)
            # Faster than isin: few are wanted.
            place = np.minimum(np.searchsorted(wanted, offsets), len(wanted) - 1)
            return np.asarray(wanted[place] == offsets)

        for root in self._roots if len(wanted) else ():
            for unit in key_units(root, is_wanted, ignore_error):
                found.setdefault(unit.offset, set()).add(unit.key_hash)
        return found

    def damaged(self, copies: Sequence[tuple[int, bytes]]) -> list[bool]:
        """Which copies of a message, each with its position, are damaged: another one has more evidence."""
        found = [self._evidence(position, data) for position, data in copies]
        return [any(_is_more(other, one) for other in found) for one in found]

    def in_queue(self, position: int, data: bytes) -> bool:
        """Whether a queue has the message where this copy says that it is, or none can have it yet or ever."""
        message = message_in(data)
        if message is None:
            return False
        return _is_outside(message) or self._queue_score(message, position) > 0 or position > self._dispatched

    def is_elsewhere(self, position: int, data: bytes) -> bool:
        """Whether a queue has another message where this copy says that it is, or does not reach so far."""
        return any(unit is None or unit.size for unit in self._units_of_others(position, data))

    def is_other(self, position: int, data: bytes) -> bool:
        """Whether a queue has another message where this copy says that it is: one that is too short shows nothing."""
        return any(unit is not None and unit.size for unit in self._units_of_others(position, data))

    def _units_of_others(self, position: int, data: bytes) -> list[ConsumeQueueUnit | None]:
        """The units at the queueOffset of a copy, unless one of them has its position."""
        message = message_in(data)
        if message is None or self.in_queue(position, data):
            return []
        return [_unit_of(queue, message) for queue in self._queues_of(message)]

    def has_position(self, position: int, data: bytes) -> bool:
        """Whether the queue of a copy has a message of its size at its position, also at another queueOffset."""
        message = message_in(data)
        found = self._queues_of(message) if message is not None else []
        return message is not None and any(_has_unit(queue, position, message.total_size) for queue in found)

    def place_of(self, position: int, data: bytes) -> int | None:
        """Where the message begins that queues have at the place of this copy: its own position, or an earlier one.

        None if they have neither.
        """
        found = self.places_of(data)
        return position if position in found else min((each for each in found if 0 < each < position), default=None)

    def places_of(self, data: bytes) -> set[int]:
        """Where the messages begin that queues have at the place of this copy.

        Messages that are in no queue can have queueOffset 0.
        """
        message = message_in(data)
        if message is None or message.queue_offset < 0 or _is_outside(message):
            return set()
        units = [_unit_of(queue, message) for queue in self._queues_of(message)]
        return {unit.commit_log_offset for unit in units if unit is not None and unit.size > 0}

    def _queues_of(self, message: Message) -> list[Queue]:
        name = message.topic, message.queue_id
        return [by_name[name] for by_name in self._queues if name in by_name]

    @cached_property
    def _dispatched(self) -> int:
        """The last message that a queue has: messages get their units in the order of the log."""
        ends = [unit.commit_log_offset for root in self._roots for unit in last_units(root, self._unreadable.append)]
        return INT64_MAX if self._unreadable else max(ends, default=-1)

    def _evidence(self, position: int, data: bytes) -> CopyEvidence:
        message = message_in(data)
        if message is None:
            return CopyEvidence(is_copy=True, has_times=True, queue=0, keys=False)
        topic, hashes = message.topic, self._hashes.get(position)
        times = (message.born_timestamp, message.store_timestamp)
        return CopyEvidence(
            topic != FILLER_TOPIC,
            all(MIN_TIMESTAMP <= time <= MAX_TIMESTAMP for time in times),
            self._queue_score(message, position),
            hashes is not None and _are_of(hashes, topic, message.properties),
        )

    def _queue_score(self, message: Message, position: int) -> int:
        return max((_score(by_name, message, position) for by_name in self._queues), default=0)


def _is_outside(message: Message) -> bool:
    """Whether a message is never in a queue, by the state of its transaction."""
    return message.sys_flag & FLAG_TRANSACTION_MASK in TRANSACTIONS_OUTSIDE_QUEUES


def _are_of(hashes: set[int], topic: str, properties: dict[str, str]) -> bool:
    """Whether the hashes of units are those of a message's keys, or those and the one of its tags."""
    keys = hashes_of_keys(topic, properties)
    return hashes in (keys, keys | hash_of_tags(topic, properties))


def _is_more(one: CopyEvidence, other: CopyEvidence) -> bool:
    return one != other and all(here >= there for here, there in zip(one, other, strict=True))


def _score(by_name: dict[tuple[str, int], Queue], message: Message, position: int) -> int:
    queue = by_name.get((message.topic, message.queue_id))
    unit = _unit_of(queue, message) if queue is not None else None
    if unit is None or (unit.commit_log_offset, unit.size) != (position, message.total_size):
        return 0
    return 2 if unit.tags_code == java_hash(message.properties.get(PROPERTY_TAGS, "")) else 1


def _has_unit(queue: Queue, position: int, size: int) -> bool:
    return size in QueueUnits(queue, ignore_error).pointing_into(position, position + 1).size


def _unit_of(queue: Queue, message: Message) -> ConsumeQueueUnit | None:
    """The unit at the queueOffset of a message of the queue; None if the queue does not reach so far."""
    offset = message.queue_offset
    file = next((file for file in queue.files if 0 <= offset - file.first < file.units), None)
    rank = offset - file.first if file is not None else 0
    units = next(readable_units(file, rank, rank + 1), None) if file is not None else None
    return ConsumeQueueUnit(*units[0].tolist()) if units is not None else None
