"""Queues of a store, as text and rows: where they begin and end, their fillers and copies, and what they lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import Row, cell, print_table, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.errors import StoreError

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.copy_ranges import Ranges
    from pyspark_dledger.log.diff.verdict import GroupVerdict
    from pyspark_dledger.log.io.queue_files import Queue

_MAX_SHOWN = 50


def queue_ends(log: Log) -> list[Row]:
    """A row for each queue: topic, queueId, minOffset, maxOffset; null with a problem where a file cannot be read.

    ``minOffset`` is the first queue offset with a message in the log.
    """
    from pyspark_dledger.log.io.queue_files import queues
    from pyspark_dledger.log.units.stored import queue_root

    if log.paths.root is None:
        return []
    problems: list[Exception] = []
    try:
        rows = [_row(log, queue) for queue in queues(queue_root(log), problems.append)]
    except (StoreError, OSError) as error:
        return [_problem(error)]
    return [*rows, *(_problem(error) for error in problems)]


def _row(log: Log, queue: Queue) -> Row:
    from pyspark_dledger.log.io.queue_units import QueueUnits

    row = {"topic": queue.topic, "queueId": queue.queue_id}
    try:
        first, end = QueueUnits(queue).bounds(log.min_offset)
    except StoreError as error:
        return {**row, "minOffset": None, "maxOffset": None, "problem": str(error)}
    return {**row, "minOffset": first, "maxOffset": end, "problem": None}


def _problem(error: Exception) -> Row:
    return {"topic": None, "queueId": None, "minOffset": None, "maxOffset": None, "problem": str(error)}


def print_queue_ends(out: Output, rows: list[Row]) -> None:
    """Print the first queues."""
    if not rows:
        out.line("no ConsumeQueue")
        return
    has_problem = any(row["problem"] for row in rows)
    shown = rows[:_MAX_SHOWN]
    print_table(out, shown if has_problem else [{k: row[k] for k in row if k != "problem"} for row in shown])
    if len(rows) > _MAX_SHOWN:
        out.line(f"and {len(rows) - _MAX_SHOWN} more queues: --json prints all")


def gap_units(log: Log) -> tuple[int, int]:
    """The numbers of fillers, and of units that are copies of a neighbour: the log does not have their messages.

    Fillers before the first message of a queue do not count: a queue that begins in the middle of a file has them.
    Raises StoreError where the queues cannot be read.
    """
    import numpy as np

    from pyspark_dledger.log.io.queue_files import queues, read_units
    from pyspark_dledger.log.io.queue_units import has_message, is_filler
    from pyspark_dledger.log.units.stored import is_selected, queue_root

    fillers = copies = 0
    for queue in queues(queue_root(log)):
        last: int | None = None
        for units in chain.from_iterable(map(read_units, queue.files if is_selected(*queue.name, log.options) else ())):
            messages = np.flatnonzero(has_message(units))
            offsets = units["commitLogOffset"][messages]
            if last is not None or len(offsets):
                fillers += int(is_filler(units)[0 if last is not None else messages[0] :].sum())
            if len(offsets):
                copies += int(np.count_nonzero(offsets[1:] == offsets[:-1])) + (int(offsets[0]) == last)
                last = int(offsets[-1])
    return fillers, copies


MAX_QUEUES = 20
_QueuePlace = tuple[str | None, int | None, int | None]


def lost_queues(logs: Sequence[Log], verdict: GroupVerdict) -> list[Row]:
    """A row for each range of queue offsets that is lost: topic, queueId, firstQueueOffset and lastQueueOffset.

    Empty if nothing is lost, or no index and queue knows what it was.
    """
    from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
    from pyspark_dledger.rocketmq.lost.known_units import entries_of_index

    if verdict.lost != "some":
        return []
    wanted = [*verdict.lost_entries.ranges, *verdict.filled_entries.ranges]
    wanted += [verdict.lost_end] if verdict.lost_end is not None else []
    indexes = [(first, last + 1) for first, last in wanted]
    known = {entry.offset for log in logs for entry in entries_of_index(log.index_files, indexes)}
    found = _in_queues(logs, ((offset, offset + 1) for offset in known))
    found |= {place for log in logs for place in SalvageFillers(log.paths).queue_offsets(verdict.filled_entries.ranges)}
    return list(_ranges(found))


def lost_queues_of_positions(logs: Sequence[Log], lost: Ranges) -> list[Row]:
    """The same for positions of CommitLogs that are intact nowhere."""
    return list(_ranges(_in_queues(logs, ((first, last + 1) for first, last in lost.ranges))))


def _in_queues(logs: Sequence[Log], places: Iterator[tuple[int, int]]) -> set[_QueuePlace]:
    """Topic, queue and queue offset of the messages that begin in places of the log."""
    from pyspark_dledger.rocketmq.lost.known_units import known_messages

    # Remote queues are not listed.
    roots = {log.paths.root for log in logs if isinstance(log.paths.root, Path)}
    known = known_messages(roots, places, with_keys=False)
    return {(each.topic, each.queue_id, each.queue_offset) for each in known.values() if each.topic is not None}


def _ranges(known: Iterable[_QueuePlace]) -> Iterator[Row]:
    ordered = sorted(known, key=lambda item: (item[0] or "", item[1] or 0, item[2] or 0))
    rows: Iterator[Row] = (
        {"topic": topic, "queueId": queue_id, "firstQueueOffset": offset, "lastQueueOffset": offset}
        for topic, queue_id, offset in ordered
    )
    return merge_adjacent(rows, _joined)


def _joined(last: Row, row: Row) -> Row | None:
    is_next = (last["topic"], last["queueId"]) == (row["topic"], row["queueId"])
    is_next = is_next and last["lastQueueOffset"] + 1 == row["firstQueueOffset"]
    return {**last, "lastQueueOffset": row["lastQueueOffset"]} if is_next else None


def queues_text(rows: Sequence[Row]) -> str:
    """The first ranges in words."""
    shown = []
    for row in rows[:MAX_QUEUES]:
        offsets = range_text(row["firstQueueOffset"], row["lastQueueOffset"])
        shown.append(f"{cell(row['topic'])} queue {row['queueId']} offset {offsets}")
    return ", ".join(shown) + (f" and {len(rows) - MAX_QUEUES} more" if len(rows) > MAX_QUEUES else "")
