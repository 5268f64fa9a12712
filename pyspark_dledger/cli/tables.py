"""The tables beside the log's: ``segments``, ``state``, ``audit``, ``consumers``, and ``dump --table``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output import (
    Output,
    Row,
    camel_case,
    print_fields,
    print_rows,
    print_table,
    rows_of,
)
from pyspark_dledger.cli.progress import Progress
from pyspark_dledger.cli.store import open_each
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log import Log

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


def table_batches(log: Log, name: str, progress: Progress) -> Iterator[pa.RecordBatch]:
    """The batches of a table, part by part."""
    from pyspark_dledger.rocketmq.tables import TABLES

    table = TABLES[name]
    parts = table.plan(log, log.options)
    for number, part in enumerate(parts):
        progress(number, len(parts))
        yield from table.read(part)


def segments(given: argparse.Namespace, out: Output) -> int:
    return _print_each("segments", given, out, _SEGMENT_COLUMNS)


def audit(given: argparse.Namespace, out: Output) -> int:
    return _print_each("audit", given, out, nothing="log and ConsumeQueue agree")


def consumers(given: argparse.Namespace, out: Output) -> int:
    return _print_each("consumers", given, out, nothing="no consumer group is known")


def _print_each(
    name: str,
    given: argparse.Namespace,
    out: Output,
    columns: tuple[str, ...] | None = None,
    nothing: str = "no file",
) -> int:
    """The rows of a table, of one store after the other; as text `columns` of it, or `nothing`."""
    found = False

    def rows() -> Iterator[Row]:
        nonlocal found
        for log in open_each(given):
            for batch in table_batches(log, name, out.progress):
                for row in rows_of(batch, bytes):
                    found = found or is_finding(name, row)
                    yield row if given.json or columns is None else {column: row[column] for column in columns}

    if not print_rows(out, rows(), given.json) and not given.json:
        out.line(nothing)
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
