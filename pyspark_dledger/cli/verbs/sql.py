"""``dledger sql``: a query of a store's tables, which DuckDB runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import add_body, add_json, add_option
from pyspark_dledger.cli.exit_codes import CLEAN, read_exits
from pyspark_dledger.cli.output.rows import Row, body_form, print_rows
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import read_options
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log import Log, open_log

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# A query sees the tables only: no file, no network, no extension, no variable of Python.
_SETTINGS = {
    "TimeZone": "UTC",
    "python_enable_replacements": False,
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "lock_configuration": True,
}
_BATCH_ROWS = 10_000


def add_sql(parser: argparse.ArgumentParser) -> None:
    parser.epilog = read_exits(None)
    parser.add_argument("path", metavar="PATH", help="a store")
    text = 'such as "select topic, count(*) from log group by 1"; the other tables of dledger dump are views, too'
    parser.add_argument("query", metavar="QUERY", help=text)
    add_json(parser)
    add_body(parser, "bodies")
    add_option(parser)


def run_sql(args: argparse.Namespace, out: Output) -> int:
    log = open_log(args.path, **read_options(args))
    count = print_rows(out, _rows(log, args), args.json)
    if not count and not args.json:
        out.line("no row")
    return CLEAN


def _rows(log: Log, args: argparse.Namespace) -> Iterator[Row]:
    """The rows of the result. Raises OptionError for a wrong query, and without DuckDB."""
    try:
        import duckdb
    except ImportError:
        raise OptionError("sql: expected duckdb, found none: pip install 'pyspark_dledger[duckdb]'") from None
    form = _no_body if args.body == "none" else body_form(args.body or ("base64" if args.json else "text"), args.json)
    with duckdb.connect(":memory:") as connection:
        _register(connection, log)
        try:
            for batch in _batches(connection, args.query):
                for row in rows_of(batch, form):
                    yield {name: _plain(value) for name, value in row.items()}
        except duckdb.Error as error:
            # Arrow adds the traceback of a table's error.
            text = str(error).partition(" Detail: Python exception: ")[0]
            raise OptionError(f"sql: {' '.join(text.split())}") from error


def _register(connection: duckdb.DuckDBPyConnection, log: Log) -> None:
    from pyspark_dledger.rocketmq.tables import TABLES, table_dataset

    connection.register("log", log.dataset())
    for name in TABLES:
        connection.register(name, table_dataset(log, name))
    for name, value in _SETTINGS.items():
        connection.execute(f"SET {name} = {value!r}")


def _batches(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[pa.RecordBatch]:
    """The batches of the result. Another thread waits for DuckDB, which does not see Ctrl-C."""
    with ThreadPoolExecutor(1) as thread:
        try:
            reader = thread.submit(_result, connection, query).result()
            while (batch := thread.submit(next, reader, None).result()) is not None:
                yield batch
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _result(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    """The reader of the result; none of a statement without one."""
    relation: Any = connection.sql(query)
    if relation is None:
        return iter(())
    # The call has another name before DuckDB 1.5.
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return read(_BATCH_ROWS)


def _no_body(_: bytes) -> None:
    """What ``--body none`` shows of bytes."""


def _plain(value: Any) -> Any:
    """A value as JSON and tables show it: a sum of integers is a decimal, other types are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
