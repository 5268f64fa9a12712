"""Rows of the tables around the log, as ``segments``, ``audit``, ``consumers`` and ``dump --table`` print them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.progress import ProgressBar
from pyspark_dledger.cli.output.rows import Row
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.output.text_table import print_rows
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    import pyarrow as pa

# Verdicts of the table diff that no healthy group shows.
_DIFFERENCES = frozenset(("filler", "damaged", "unreadable", "otherBytes", "diverged", "contradicts"))


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
    return table in ("audit", "lost") or row.get("problem") is not None


def table_batches(log: Log, name: str, progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The batches of a table, part by part; without those that cannot be read, if the log leaves such out."""
    from pyspark_dledger.rocketmq.tables.registry import TABLES

    table = TABLES[name]
    parts = table.plan(log, log.options)
    for number, part in enumerate(parts):
        progress(number, len(parts))
        try:
            yield from table.read(part)
        except UnreadableError as error:
            log.on_unreadable(error)


def print_tables(
    name: str,
    args: argparse.Namespace,
    out: Output,
    columns: tuple[str, ...] | None = None,
    nothing: str = "no file",
    notes: Callable[[Log], Iterator[str]] | None = None,
    batches: Callable[[Log, ProgressBar], Iterator[pa.RecordBatch]] | None = None,
    question: str | None = None,
    read_names: Container[str] | None = None,
) -> int:
    """Print a table of each store, then `notes`; returns the exit code. `batches` reads the table.

    Text has `columns` of the table (all by default), or `nothing` where no row is printed. JSON has all columns, and no
    notes. With a `question`, the table is that of the files that can be read, and others in folders `read_names` are
    named (None: only those that a read met): they leave the question open.
    """
    read = batches if batches is not None else lambda log, progress: table_batches(log, name, progress)
    code = CLEAN
    texts: list[str] = []
    unread: list[str] = []

    def rows() -> Iterator[Row]:
        nonlocal code
        for log in open_stores(args, f"table {name}", leave_out=question is not None):
            for batch in read(log, out.progress):
                for row in rows_of(batch, bytes):
                    code = FINDINGS if is_finding(name, row) else code
                    yield row if args.json or columns is None else {column: row[column] for column in columns}
            if question is not None:
                unread.extend(log.unread.lines(question, read_names))
            if notes is not None and not args.json and not unread:
                texts.extend(f"{log.path}: {text}" for text in notes(log))

    if not print_rows(out, rows(), args.json) and not args.json:
        out.line("nothing in what can be read" if unread else nothing)
    print_unread(out, unread, args.json)
    out.flush()
    for text in texts:
        note(text)
    return FINDINGS if unread else code


def print_unread(out: Output, lines: Iterable[str], as_json: bool) -> bool:
    """Print what cannot be read, as notes with JSON; whether there is anything."""
    found = list(lines)
    for text in found:
        note(text) if as_json else out.line(text)
    return bool(found)
