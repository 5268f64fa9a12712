"""``dledger dump``: the rows of a table, by default of the log."""

from __future__ import annotations

import argparse
from dataclasses import replace

from pyspark_dledger.cli.arguments import (
    ENDING,
    REPLICAS,
    ROW_POSITION,
    STARTING,
    add_flag,
    add_rows,
    add_stores,
    natural,
)
from pyspark_dledger.cli.exit_codes import FINDINGS
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.cli.stores.row_printer import RowPrinter, print_unread, table_batches, with_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, REPLICAS, "a row with a problem, unreadable files; without rows 0")
    add_rows(parser)
    text = "log (the default), or another (docs/tables.md), such as consumeQueue"
    add_flag(parser, "--table", "table", metavar="NAME", help=text)
    text = f"the first row at or after {ROW_POSITION}"
    add_flag(parser, "--from", *STARTING, dest="starting", metavar="POSITION", help=text)
    text = "the end of the rows, exclusive"
    add_flag(parser, "--to", *ENDING, dest="ending", metavar="POSITION", help=text)
    parser.add_argument("--limit", type=natural, metavar="N", help="print at most N rows")


def run(args: argparse.Namespace, out: Output) -> int:
    log = open_store(args, leave_out=True)
    printer = RowPrinter(args, out, log)
    limit = args.limit
    if log.options.table == "log":
        if limit is not None:
            log.options = replace(log.options, max_batch_rows=max(min(limit, log.options.max_batch_rows), 1))
        batches = with_progress(log, log.scan(printer.columns), out.progress)
    else:
        batches = table_batches(log, log.options.table, out.progress)
    for batch in batches:
        printer.print(batch, None if limit is None else limit - printer.count)
        if limit is not None and printer.count >= limit:
            break
    is_unread = print_unread(out, log.unread.lines("what the whole log has", None), as_json=True)
    return FINDINGS if is_unread else printer.code
