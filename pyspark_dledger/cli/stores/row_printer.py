"""Prints rows of a table as ``dump``, ``find`` and ``follow`` do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.redact import redactor
from pyspark_dledger.cli.output.rows import BODY_COLUMNS, Row, body_form, bytes_form, print_rows, row_line
from pyspark_dledger.cli.output.stream import Output, ProgressBar, note
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.options import nearest
from pyspark_dledger.errors import OptionError, UnreadableError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.plan import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.format.spec import ScanRequest
    from pyspark_dledger.log.gaps import FileGap


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
    from pyspark_dledger.rocketmq.tables import TABLES

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


def is_finding(table: str, row: Row) -> bool:
    """Whether a row of a table makes the exit code `FINDINGS`."""
    if table == "findings":
        return bool(row["severity"] != "info")
    if table == "diff":
        from pyspark_dledger.log.diff.diff_table import FAULTS

        return row["verdict"] in FAULTS
    if table == "segments":
        return bool(row["findings"])
    if table == "consumers":
        return bool(row["lost"])
    return table in ("audit", "lost") or row.get("problem") is not None


def table_batches(log: Log, name: str, progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    """The batches of a table, part by part; without those that cannot be read, if the log leaves such out."""
    from pyspark_dledger.rocketmq.tables import TABLES

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


class RowReader:
    """Reads ranges that begin and end where a row does.

    `options` are fields of `ReadOptions` that replace those of the log.
    """

    def __init__(self, log: Log, columns: tuple[str, ...], **options: Any) -> None:
        chosen = replace(log.options, **{"max_partition_bytes": INT64_MAX, **options})
        self._partitions = log.plan(columns, chosen, option_filters(chosen))

    def between(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows at the positions ``[start, end)``."""
        for partition in self._partitions:
            yield from read_partition(partition.with_ranges(lambda part: _clipped(part, start, end)))


def _clipped(part: ScanRequest | FileGap, start: int, end: int) -> ScanRequest | FileGap | None:
    if part.start >= end or start >= part.end:
        return None
    return replace(part, start=max(part.start, start), end=min(part.end, end))
