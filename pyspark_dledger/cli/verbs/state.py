"""``dledger state``: what a store is and how far its log goes."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, fields_row, plain_time
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_fields, print_rows, print_table
from pyspark_dledger.cli.stores.open_stores import open_stores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, "several are shown side by side", "a file cannot be read")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the state of each store; `FINDINGS` if a file of one cannot be read."""
    rows = [_shown(fields_row(log.state)) for log in open_stores(args, "table state")]
    if args.json:
        print_rows(out, rows, args.json)
    elif len(rows) == 1:
        print_fields(out, rows[0])
    else:
        print_table(out, ({"": name} | {row["path"]: row[name] for row in rows} for name in rows[0] if name != "path"))
    return FINDINGS if any(row["problem"] for row in rows) else CLEAN


def _shown(row: Row) -> Row:
    """A state with its times as text."""
    return {name: plain_time(value) if name.endswith("Timestamp") else value for name, value in row.items()}
