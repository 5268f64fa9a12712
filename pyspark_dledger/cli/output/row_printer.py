"""Rows of the log, and of the tables beside it, as ``dump``, ``find`` and ``follow`` print them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import open_given
from pyspark_dledger.cli.output.output import (
    BODY_COLUMNS,
    Output,
    body_form,
    bytes_form,
    rows_of,
    text_line,
)
from pyspark_dledger.cli.output.progress import ProgressBar
from pyspark_dledger.cli.tables import is_finding, table_batches
from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import COLUMN_BY_NAME
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log import Log
    from pyspark_dledger.log.options import ReadOptions

# What fits a line, and what tells what a row is.
_LINE_COLUMNS = (
    *("source", "index", "term", "pos", "size", "kind", "committed"),
    *("topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "problem"),
)
# Read whatever is printed: for the exit code and the progress.
_NEEDED = ("problem", "pos", "size")


class RowPrinter:
    """Prints batches of a table as the arguments say; `code` is the exit code that they come to."""

    def __init__(self, given: argparse.Namespace, out: Output, log: Log) -> None:
        self._out = out
        self._table = log.options.table
        self._is_json = given.json
        self._names = _columns(given, log.options)
        self._redact = None
        if given.redact:
            from pyspark_dledger.cli.output.redact import redactor

            self._redact = redactor(_known(_listed(given.keep), _all_columns(log.options)))
        elif given.keep:
            raise OptionError("--keep names columns that --redact leaves as they are: give both")
        form = given.body or ("base64" if given.json else "text")
        self._form = bytes_form(form)
        self._body = body_form(form, given.json)
        self._engine = log.engine
        self.count = 0
        self.code = CLEAN

    @property
    def columns(self) -> tuple[str, ...]:
        """What to read of the log: the columns to print, and those that printing needs."""
        return tuple(dict.fromkeys((*self._names, *_NEEDED)))

    def print(self, batch: pa.RecordBatch, limit: int | None = None) -> None:
        """The first `limit` rows of a batch."""
        batch = batch.slice(0, limit)
        self.count += batch.num_rows
        if self._table == "log" and batch.column("problem").null_count < batch.num_rows:
            self.code = FINDINGS
        if self._table != "log" and any(is_finding(self._table, row) for row in rows_of(batch, bytes)):
            self.code = FINDINGS
        for line in self._lines(batch.select(self._names)):
            self._out.line(line)

    def _lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        if self._is_json and self._redact is None:
            for lines in self._engine.json_lines(batch, self._form):
                yield from lines.decode().splitlines()  # in a line nothing stands that ends one
            return
        for row in rows_of(batch, bytes if self._redact else self._body):
            shown = self._redact(row) if self._redact else row
            yield json_line(shown) if self._is_json else text_line(shown)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _known(names: tuple[str, ...], columns: Iterable[str]) -> tuple[str, ...]:
    """`names`, which have to be among `columns`."""
    for name in names:
        if name not in columns:
            raise OptionError(f"unknown column {name}: {nearest(name, columns)}")
    return names


def _columns(given: argparse.Namespace, options: ReadOptions) -> list[str]:
    """The columns to print."""
    names = _known(_listed(given.columns) or _default_columns(given, options), _all_columns(options))
    return [name for name in names if given.body != "none" or name not in BODY_COLUMNS]


def _default_columns(given: argparse.Namespace, options: ReadOptions) -> tuple[str, ...]:
    if given.json or options.table != "log":
        return tuple(name for name in _all_columns(options) if name != "entryBody" or options.include_entry_body)
    return _LINE_COLUMNS if given.body is None else (*_LINE_COLUMNS, "body")


def _all_columns(options: ReadOptions) -> tuple[str, ...]:
    if options.table == "log":
        return tuple(COLUMN_BY_NAME)
    from pyspark_dledger.rocketmq.tables.registry import TABLES

    return tuple(TABLES[options.table].schema.names)


def dump(given: argparse.Namespace, out: Output) -> int:
    """The rows of a table, the log's by default."""
    log = open_given(given)
    printer = RowPrinter(given, out, log)
    limit = given.limit
    if log.options.table == "log":
        if limit is not None:
            log.options = replace(log.options, max_batch_rows=max(min(limit, log.options.max_batch_rows), 1))
        batches = watched(log, log.scan(printer.columns), out.progress)
    else:
        batches = table_batches(log, log.options.table, out.progress)
    for batch in batches:
        printer.print(batch, None if limit is None else limit - printer.count)
        if limit is not None and printer.count >= limit:
            break
    return printer.code


def watched(log: Log, batches: Iterable[pa.RecordBatch], progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The batches, which have ``pos`` and ``size``, with the progress told."""
    first = None
    end = max((end.pos for _, end in log.ends.values()), default=0)
    for batch in batches:
        if batch.num_rows:
            first = batch.column("pos")[0].as_py() if first is None else first
            done = batch.column("pos")[-1].as_py() + batch.column("size")[-1].as_py()
            progress(done - first, max(end - first, done - first))
        yield batch
