"""``dledger consumers``: the lag of consumer groups."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.row_printer import print_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "a group lost unread messages")


def run(args: argparse.Namespace, out: Output) -> int:
    return print_tables("consumers", args, out, nothing="no consumer group is known")
