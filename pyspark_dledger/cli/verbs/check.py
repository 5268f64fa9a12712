"""``dledger check``: the first minute of an incident, for one store or all replicas of a group."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_store, replica_paths
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.options import CHECK
from pyspark_dledger.log.store_view import answer


def add_check(parser: argparse.ArgumentParser) -> None:
    findings = "anything is lost, damaged, unreadable or different, or a restart would not start or drop something"
    add_stores(parser, "give all replicas of a group; a folder with several nodes stands for them", findings)
    version = parser.add_mutually_exclusive_group()
    text = "the version that would be started, such as 5.3.3; default: what the files show, else one is assumed"
    version.add_argument("--rocketmq", metavar="VERSION", help=text)
    version.add_argument("--java", metavar="VERSION", help="the same of DLedger without a broker, such as 0.3.1.2")


def run_check(args: argparse.Namespace, out: Output) -> int:
    """Print at most 15 lines, or one JSON object; `FINDINGS` if anything is wrong."""
    from pyspark_dledger.rocketmq.check import check_stores

    args.path = replica_paths(args.path)
    log = open_store(args, CHECK, leave_out=True)
    report = answer(log, lambda readable: check_stores(readable, args.rocketmq, args.java, out.progress))
    out.progress.clear()
    if args.json:
        out.line(json_line(report.as_json()))
    else:
        from pyspark_dledger.cli.stores.check_text import check_lines

        out.lines(check_lines(report))
    return CLEAN if report.is_clean else FINDINGS
