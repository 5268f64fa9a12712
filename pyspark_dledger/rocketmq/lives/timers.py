"""Timers: the messages that a broker's timer log has, and where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark_dledger.format.layout import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, PROPERTY_UNIQ_KEY, TIMER_TOPIC
from pyspark_dledger.log.io.entry_reads import message_at
from pyspark_dledger.log.io.rocks_database import TIMERS, timer_records
from pyspark_dledger.log.io.timer_files import (
    MAGIC_DELETE,
    MAGIC_ROLL,
    TimerUnits,
    TimerWheel,
    read_timer_checkpoint,
    timer_units,
)
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables.table import relative_file
from pyspark_dledger.rocketmq.lives.topics import integer

KINDS = {
    "message": "is delivered at `dueTimestamp`",
    "roll": "waits longer than the wheel turns: it is written again at `dueTimestamp`",
    "delete": "deletes a timer message",
}


@dataclass(frozen=True)
class Timer:
    """A unit whose message waits, or a record in a RocksDB; times in milliseconds since 1970.

    ``file`` is relative to the store's root.
    """

    file: str
    position: int | None
    kind: str
    written: int | None
    due: int
    offset: int
    size: int
    topic: str | None
    queue_id: int | None
    uniq_key: str | None
    problem: str | None


def waiting_timers(log: StoreView, root: Path) -> Iterator[Timer]:
    """The units that are due after the broker's timer checkpoint, in the order of the timer log; then a RocksDB's.

    Raises StoreError.
    """
    checkpoint, wheel = read_timer_checkpoint(root), TimerWheel.opened(root)
    read_time = checkpoint.read_time if checkpoint is not None else 0
    for block in timer_units(root):
        positions, times = block.positions, block.times
        # A start reads the units from the checkpoint's file on and corrects the wheel by them.
        corrected = (checkpoint.log_position if checkpoint is not None else 0) - block.file.size
        in_wheel = wheel.has(positions, times) if wheel is not None else positions < 0
        for number in (times >= read_time).nonzero()[0].tolist():
            is_led = bool(in_wheel[number]) or int(positions[number]) >= corrected
            yield _unit(log, block, number, int(positions[number]), int(times[number]), is_led)
    for each in timer_records(root):
        fields = {"position": None, "written": None, "kind": "message", "due": each.due}
        yield _timer(log, each.offset, each.size, file=str(root / TIMERS), **fields)


def _unit(log: StoreView, block: TimerUnits, number: int, position: int, due: int, is_led: bool) -> Timer:
    unit = block.units[number]
    magic = int(unit["magic"])
    found = _timer(
        log,
        int(unit["commitLogOffset"]),
        int(unit["messageSize"]),
        file=block.file.path,
        position=position,
        kind="roll" if magic & MAGIC_ROLL else "delete" if magic & MAGIC_DELETE else "message",
        written=int(unit["writtenTime"]),
        due=due,
    )
    if found.problem is None and not is_led:
        return replace(found, problem="expected a slot of the timer wheel that leads to it, found none")
    return found


def _timer(log: StoreView, offset: int, size: int, *, file: str, **fields: Any) -> Timer:
    """A timer with its message, and what is wrong with that."""
    message = message_at(log.segments, offset, log.segment_end)
    problem = None
    if offset >= log.max_offset:
        problem = f"expected a message before the log's end at {log.max_offset}, found commitLogOffset {offset}"
    elif offset < log.min_offset:
        problem = f"expected a message from {log.min_offset} on, found commitLogOffset {offset}: it has expired"
    elif message is None or message.topic != TIMER_TOPIC or message.total_size != size:
        problem = f"expected a message of {size} bytes in {TIMER_TOPIC}, found none at commitLogOffset {offset}"
    properties = message.properties if message is not None else {}
    return Timer(
        relative_file(log.paths, file),
        **fields,
        offset=offset,
        size=size,
        topic=properties.get(PROPERTY_REAL_TOPIC),
        queue_id=integer(properties.get(PROPERTY_REAL_QUEUE_ID)),
        uniq_key=properties.get(PROPERTY_UNIQ_KEY),
        problem=problem,
    )
