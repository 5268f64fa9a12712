"""``dledger segments``: the files of a log."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.row_printer import print_tables

# The columns that fit a terminal; --json has all.
_COLUMNS = (
    *("node", "source", "segment", "entries", "firstIndex", "lastIndex", "lastTerm", "usedBytes", "unwrittenBytes"),
    *("staleBytes", "corruptBytes", "findings"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "findings, unreadable files")


def run(args: argparse.Namespace, out: Output) -> int:
    return print_tables("segments", args, out, _COLUMNS, question="what these files have")
