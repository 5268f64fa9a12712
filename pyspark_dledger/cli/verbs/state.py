"""``dledger state``: what a store is and how far its log goes."""

from __future__ import annotations

import argparse
from itertools import chain

from pyspark_dledger.cli.arguments import add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, plain_time, print_fields, print_rows, print_table
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.cli.stores.queue_rows import print_queue_ends, queue_ends
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.log.state import state_of
from pyspark_dledger.log.store_view import answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, "several are shown side by side", "unreadable files")
    parser.add_argument("--queues", action="store_true", help="also the first and last offset of each ConsumeQueue")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the state of each store; `FINDINGS` if a file of one cannot be read."""
    logs = list(open_stores(args, "table state", leave_out=True))
    rows = [_shown(fields_row(answer(log, state_of))) for log in logs]
    ends = [queue_ends(log) for log in logs] if args.queues else []
    code = FINDINGS if any(row["problem"] for row in (*rows, *chain.from_iterable(ends))) else CLEAN
    if args.json:
        if args.queues:
            rows = [{**row, "queues": queues} for row, queues in zip(rows, ends, strict=True)]
        print_rows(out, rows, args.json)
        return code
    if len(rows) == 1:
        print_fields(out, rows[0])
    else:
        print_table(out, ({"": name} | {row["path"]: row[name] for row in rows} for name in rows[0] if name != "path"))
    for row, queues in zip(rows, ends, strict=False):
        out.line("")
        if len(rows) > 1:
            out.line(str(row["path"]))
        print_queue_ends(out, queues)
    return code


def _shown(row: Row) -> Row:
    """A state with its times as text."""
    return {name: plain_time(value) if name.endswith("Timestamp") else value for name, value in row.items()}
