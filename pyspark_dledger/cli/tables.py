"""The tables beside the log's: ``segments``, ``state``, ``audit``, ``consumers``, and ``dump --table``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import open_each
from pyspark_dledger.cli.output.output import (
    Output,
    Row,
    camel_case,
    note,
    print_fields,
    print_rows,
    print_table,
    rows_of,
)
from pyspark_dledger.cli.output.progress import ProgressBar
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log import Log
    from pyspark_dledger.log.io.queue_files import Queue

# What fits a terminal; --json has every column.
_SEGMENT_COLUMNS = (
    *("node", "source", "segment", "entries", "firstIndex", "lastIndex", "lastTerm", "usedBytes", "unwrittenBytes"),
    *("staleBytes", "corruptBytes", "findings"),
)
# Verdicts of the table diff that no healthy group shows.
_DIFFERENCES = frozenset(("damaged", "otherBytes", "diverged", "contradicts"))


def is_finding(table: str, row: Row) -> bool:
    """Whether a row of a table makes the exit code `FINDINGS`."""
    if table == "findings":
        return bool(row["severity"] != "info")
    if table == "diff":
        return row["verdict"] in _DIFFERENCES
    if table == "segments":
        return bool(row["findings"])
    if table == "consumers":
        return bool(row["lost"])
    return table == "audit" or row.get("problem") is not None


def table_batches(log: Log, name: str, progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The batches of a table, part by part."""
    from pyspark_dledger.rocketmq.tables.registry import TABLES

    table = TABLES[name]
    parts = table.plan(log, log.options)
    for number, part in enumerate(parts):
        progress(number, len(parts))
        yield from table.read(part)


def segments(given: argparse.Namespace, out: Output) -> int:
    return _print_each("segments", given, out, _SEGMENT_COLUMNS)


def audit(given: argparse.Namespace, out: Output) -> int:
    return _print_each("audit", given, out, nothing="log and ConsumeQueue agree", notes=_audit_notes)


def _audit_notes(log: Log) -> Iterator[str]:
    """What rows of ``audit`` do not say: that there are no queues at all, or that they have fillers inside."""
    from pyspark_dledger.log.io.queue_files import FOLDER
    from pyspark_dledger.rocketmq.consume_queue.queue_units import queue_root

    if not (queue_root(log) / FOLDER).is_dir():
        yield f"there is no {FOLDER} folder: every message that belongs into a queue is missed"
    elif count := count_fillers(log):
        units = "1 unit is a filler" if count == 1 else f"{count} units are fillers"
        yield f"{units} for messages that the log does not have"


def count_fillers(log: Log) -> int:
    """How many units behind the first one of their queue are fillers, which stand for messages that the log has not.

    Fillers before the first unit are left out: every queue has them that begins in the middle of a file. Raises
    StoreError where the queues cannot be read.
    """
    from pyspark_dledger.log.io.queue_files import queues
    from pyspark_dledger.rocketmq.consume_queue.queue_units import is_wanted, queue_root

    wanted = (queue for queue in queues(queue_root(log)) if is_wanted(queue.topic, queue.queue_id, log.options))
    return sum(map(_fillers_inside, wanted))


def _fillers_inside(queue: Queue) -> int:
    import numpy as np

    from pyspark_dledger.log.io.queue_files import read_units
    from pyspark_dledger.rocketmq.consume_queue.queue_units import is_filler

    count, has_begun = 0, False
    for file in queue.files:
        for units in read_units(file):
            fillers = is_filler(units)
            real = np.flatnonzero((units["size"] > 0) & ~fillers)
            if has_begun or len(real):
                count += int(fillers[0 if has_begun else real[0] :].sum())
                has_begun = True
    return count


def consumers(given: argparse.Namespace, out: Output) -> int:
    return _print_each("consumers", given, out, nothing="no consumer group is known")


def _print_each(
    name: str,
    given: argparse.Namespace,
    out: Output,
    columns: tuple[str, ...] | None = None,
    nothing: str = "no file",
    notes: Callable[[Log], Iterator[str]] | None = None,
) -> int:
    """The rows of a table, of one store after the other; as text `columns` of it, or `nothing`, and `notes`."""
    found = False
    told: list[str] = []

    def rows() -> Iterator[Row]:
        nonlocal found
        for log in open_each(given):
            for batch in table_batches(log, name, out.progress):
                for row in rows_of(batch, bytes):
                    found = found or is_finding(name, row)
                    yield row if given.json or columns is None else {column: row[column] for column in columns}
            if notes is not None and not given.json:
                told.extend(f"{log.path}: {text}" for text in notes(log))

    if not print_rows(out, rows(), given.json) and not given.json:
        out.line(nothing)
    out.flush()
    for text in told:
        note(text)
    return FINDINGS if found else CLEAN


def state(given: argparse.Namespace, out: Output) -> int:
    """Where stores stand; several of them side by side."""
    rows = [_state_row(log) for log in open_each(given)]
    if given.json:
        for row in rows:
            out.line(json_line(row))
    elif len(rows) == 1:
        print_fields(out, rows[0])
    else:
        print_table(out, ({"": name} | {row["path"]: row[name] for row in rows} for name in rows[0] if name != "path"))
    return CLEAN


def _state_row(log: Log) -> Row:
    """The row of the table ``state``, without what reading tables costs."""
    state: Any = log.state
    return {camel_case(name): value for name, value in dataclasses.asdict(state).items()}
