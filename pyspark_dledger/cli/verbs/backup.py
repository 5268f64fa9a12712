"""``dledger backup``: copies what a running or stopped member has committed."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import add_json, add_option
from pyspark_dledger.cli.exit_codes import BACKUP_EXITS, CLEAN, FINDINGS
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import read_options
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.options import BACKUP, check_use, parse_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Copy what a running or stopped member has committed, and check every entry and every copy."
    parser.epilog = BACKUP_EXITS
    parser.add_argument("path", metavar="PATH", help="the member's store on this machine")
    text = "a new folder, or an earlier or unfinished backup of the member"
    parser.add_argument("--to", metavar="TARGET", required=True, help=text)
    add_json(parser)
    add_option(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    from pyspark_dledger.rocketmq.backup import backup

    options = parse_options(read_options(args))
    check_use(options, BACKUP)
    report = backup(args.path, args.to, options=options, progress=out.progress)
    out.progress.clear()
    if args.json:
        out.line(json_line(fields_row(report)))
    else:
        out.line(
            f"backed up {report.node} to {report.target}: index {report.first_index} to {report.last_index}, term "
            f"{report.last_term}; {counted(report.files, 'file')}, {report.kept_files} kept, {report.copied_bytes} "
            f"bytes copied in {report.seconds:.1f} s"
        )
        for text in report.notes:
            out.line(f"note: {text}")
    return FINDINGS if report.lacks_state else CLEAN
