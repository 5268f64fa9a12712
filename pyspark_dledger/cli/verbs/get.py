"""``dledger get``: prints one committed entry."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import add_body, add_client, natural
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.group import connected
from pyspark_dledger.cli.output.rows import Row, body_form, row_line
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.errors import IndexRangeError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--index", type=natural, required=True, metavar="N", help="the entry's index")
    add_body(parser, "the body")


def run(args: argparse.Namespace, out: Output) -> int:
    form = args.body or ("base64" if args.json else "text")
    with connected(args) as client:
        try:
            entry = client.get(args.index)
        except IndexRangeError as error:
            note(str(error))
            return FINDINGS
    row: Row = {"index": entry.index, "term": entry.term, "pos": entry.pos, "magic": entry.magic}
    if entry.channel:
        row["channel"] = entry.channel
    if form != "none":
        row["body"] = body_form(form, args.json)(entry.body)
    out.line(row_line(row, args.json))
    return CLEAN
