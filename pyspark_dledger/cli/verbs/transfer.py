"""``dledger transfer``: makes a member the leader."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import add_client
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.group import connected, note_outcome
from pyspark_dledger.cli.output.rows import row_line
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.errors import UnknownOutcomeError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--to", required=True, metavar="ID", help="the member that becomes the leader")


def run(args: argparse.Namespace, out: Output) -> int:
    with connected(args) as client:
        try:
            client.transfer(args.to)
        except UnknownOutcomeError as error:
            note_outcome(str(error))
            return FINDINGS
        except KeyboardInterrupt:
            note_outcome(
                f"interrupted: {args.to} may become the leader, now or later, or never: check with dledger metadata"
            )
            raise
    row = {"group": args.group, "leaderId": args.to}
    try:
        out.line(row_line(row, args.json))
        out.flush()
    except OSError as error:
        note_outcome(f"the output: {error.strerror or error}: {args.to} leads, but this was not printed")
        return FINDINGS
    return CLEAN
