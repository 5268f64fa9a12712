"""Prints rows of a table as ``dump``, ``find`` and ``follow`` do."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.progress import ProgressBar
from pyspark_dledger.cli.output.redact import redactor
from pyspark_dledger.cli.output.rows import BODY_COLUMNS, body_form, bytes_form, row_line
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.table_printer import is_finding
from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

# What fits a line.
_LINE_COLUMNS = (
    *("source", "index", "term", "pos", "size", "kind", "committed"),
    *("topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "healedFrom", "problem"),
)
# Always read, for the exit code and the progress.
_NEEDED = ("problem", "pos", "size")


class RowPrinter:
    """Prints batches of a table as the arguments say; `code` is the resulting exit code."""

    def __init__(self, args: argparse.Namespace, out: Output, log: Log, is_silent: bool = False) -> None:
        """`is_silent`: rows are only counted."""
        self._out = out
        self._is_silent = is_silent
        self._table = log.options.table
        self._is_json = args.json
        self._names = _columns(args, log.options)
        self._redact = None
        if args.redact:
            self._redact = redactor(_known("--keep", _listed(args.keep), _all_columns(log.options)))
        elif args.keep:
            raise OptionError("--keep has no effect without --redact: give both")
        form = args.body or ("base64" if args.json else "text")
        self._form = bytes_form(form)
        self._body = body_form(form, args.json)
        self._engine = log.engine
        self.count = 0
        self.code = CLEAN

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return tuple(dict.fromkeys((*self._names, *_NEEDED)))

    def print(self, batch: pa.RecordBatch, limit: int | None = None) -> None:
        """Print the first `limit` rows of a batch."""
        batch = batch.slice(0, limit)
        self.count += batch.num_rows
        if self._table == "log" and batch.column("problem").null_count < batch.num_rows:
            self.code = FINDINGS
        if self._table != "log" and any(is_finding(self._table, row) for row in rows_of(batch, bytes)):
            self.code = FINDINGS
        for line in self._lines(batch.select(self._names)) if not self._is_silent else ():
            self._out.escaped_line(line)

    def _lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        if self._is_json and self._redact is None:
            for lines in self._engine.json_lines(batch, self._form):
                yield from lines.decode().splitlines()  # JSON escapes all other line ends
            return
        for row in rows_of(batch, bytes if self._redact else self._body):
            yield row_line(self._redact(row) if self._redact else row, self._is_json)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _known(flag: str, names: tuple[str, ...], columns: Iterable[str]) -> tuple[str, ...]:
    """Returns the `names` of a flag; raises OptionError for one that is not among `columns`."""
    for name in names:
        if name not in columns:
            raise OptionError(f"{flag}: unknown column {name}: {nearest(name, columns)}")
    return names


def _columns(args: argparse.Namespace, options: ReadOptions) -> list[str]:
    """The columns to print."""
    listed = _listed(args.columns) or _default_columns(args, options)
    chosen = _known("--columns", listed, _all_columns(options))
    names = [name for name in chosen if args.body != "none" or name not in BODY_COLUMNS]
    if options.include_entry_body and "entryBody" not in names:
        raise OptionError("option includeEntryBody has no effect on these columns: add entryBody to --columns")
    return names


def _default_columns(args: argparse.Namespace, options: ReadOptions) -> tuple[str, ...]:
    if args.json or options.table != "log":
        return tuple(name for name in _all_columns(options) if name != "entryBody" or options.include_entry_body)
    return _LINE_COLUMNS if args.body is None else (*_LINE_COLUMNS, "body")


def _all_columns(options: ReadOptions) -> tuple[str, ...]:
    if options.table == "log":
        from pyspark_dledger.format.columns import COLUMN_BY_NAME  # loads pyarrow

        return tuple(COLUMN_BY_NAME)
    from pyspark_dledger.rocketmq.tables.registry import TABLES

    return tuple(TABLES[options.table].schema.names)


def with_progress(log: Log, batches: Iterable[pa.RecordBatch], progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The batches, which have ``pos`` and ``size``; reports the progress."""
    first = None
    end = max((end.pos for _, end in log.ends.values()), default=0)
    for batch in batches:
        if batch.num_rows:
            first = batch.column("pos")[0].as_py() if first is None else first
            done = batch.column("pos")[-1].as_py() + batch.column("size")[-1].as_py()
            progress(done - first, max(end - first, done - first))
        yield batch
