"""Where the ConsumeQueues of a store begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import Row, print_table
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.errors import StoreError

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.io.queue_files import Queue

_MAX_QUEUES = 50


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
    shown = rows[:_MAX_QUEUES]
    print_table(out, shown if has_problem else [{k: row[k] for k in row if k != "problem"} for row in shown])
    if len(rows) > _MAX_QUEUES:
        out.line(f"and {len(rows) - _MAX_QUEUES} more queues: --json prints all")
