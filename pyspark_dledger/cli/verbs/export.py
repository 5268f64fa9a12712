"""``dledger export``: writes a log as a store without DLedger, as Parquet, as JSON lines, or appends it to a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import add_flag, add_json, add_option, add_topics, parts_at
from pyspark_dledger.cli.exit_codes import CLEAN, EXPORT_EXITS, FINDINGS
from pyspark_dledger.cli.output.rows import print_report
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.open_stores import read_options, set_option
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.process_memory import keep_freed_memory

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.export.forms import ExportReport

_MAX_SHOWN = 10
# Arguments that are options of an export.
_OPTIONS = ("columns", "compression", "flat", "preserveOffsets", "commitLogOnly")


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXPORT_EXITS
    parser.add_argument("path", metavar="PATH", help="a store")
    text = "a new or empty folder, or one with an unfinished export of the same; or a table"
    parser.add_argument("target", metavar="TARGET", help=text)
    text = "commitlog (a storePathRootDir for a plain broker), parquet (by topic and day), jsonl, iceberg or delta"
    add_flag(parser, "--to", "form", metavar="FORM", help=text)
    add_topics(parser)
    text = "columns of the log table; default: all"
    add_flag(parser, "--columns", "columns", metavar="NAME[,NAME]", help=text)
    text = "parquet (default zstd), jsonl (default none): none, gzip or zstd"
    add_flag(parser, "--compression", "compression", metavar="NAME", help=text)
    _add_switch(parser, "--flat", "flat", "parquet, tables: not partitioned")
    text = "commitlog: keep physical offsets where possible, with filler between the messages"
    _add_switch(parser, "--preserve-offsets", "preserveOffsets", text)
    text = "commitlog: without consumequeue/ and index/, which the broker builds at its first start"
    _add_switch(parser, "--commitlog-only", "commitLogOnly", text)
    text = "write the parts in Spark tasks, at a master such as local[4] or spark://HOST:7077"
    parser.add_argument("--spark", metavar="MASTER", help=text)
    add_json(parser, "the report as one JSON object")
    text = "an option of a read (docs/reading.md lists them) or of an export, such as isolationLevel=read_committed"
    add_option(parser, text)


def _add_switch(parser: argparse.ArgumentParser, flag: str, option: str, text: str) -> None:
    add_flag(parser, flag, option, dest=option, action="store_const", const="true", help=text)


def run_export(args: argparse.Namespace, out: Output) -> int:
    """Export a log, or continue an interrupted export."""
    options: dict[str, Any] = dict(read_options(args))
    for name in _OPTIONS:
        if (value := getattr(args, name)) is not None:
            set_option(options, name, value, args.flags[name][0])
    try:
        report = _export(args, options, out)
    except KeyboardInterrupt:
        note(f"interrupted: the same command continues the export in {args.target}")
        raise
    print_report(out, report, _lines(args.target, report), args.json)
    is_clean = (report.rows or _is_table(report)) and not (report.skipped or report.problems)
    return CLEAN if is_clean else FINDINGS


def _export(args: argparse.Namespace, options: dict[str, Any], out: Output) -> ExportReport:
    keep_freed_memory()
    from pyspark_dledger.rocketmq.export import export as export_log

    with parts_at(args.spark) as run:
        return export_log(args.path, args.target, args.to, run=run, progress=out.progress, **options)


def _is_table(report: ExportReport) -> bool:
    from pyspark_dledger.rocketmq.export.forms import LAKES

    return report.form in LAKES


def _lines(target: str, report: ExportReport) -> Iterator[str]:
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    rate = report.source_bytes / max(report.seconds, 0.001) / 1e6
    yield f"exported to {target} ({report.form}): {counted(report.rows, 'row')} of {report.source_bytes} bytes"
    if _is_table(report):
        yield f"commits: {report.parts}; {report.seconds:.1f} s, {rate:.3g} MB/s of the log"
    else:
        yield f"files: {report.files}, {report.bytes} bytes; parts: {report.parts}{resumed}"
        yield f"read back and verified; {report.seconds:.1f} s, {rate:.3g} MB/s of the log"
    if report.problems:
        yield f"rows with a problem: {report.problems}, written as they are; see column problem"
    if report.skipped:
        yield f"left out: {counted(report.skipped, 'row')}"
        yield from (f"  {line}" for line in report.first_skipped[:_MAX_SHOWN])
        if report.skipped > _MAX_SHOWN:
            yield f"  and {report.skipped - _MAX_SHOWN} more; --json lists up to 100"
    if report.lost or not report.lost_is_all:
        least = "" if report.lost_is_all else "at least "
        yield f"lost in damaged places of the log: {least}{counted(report.lost, 'message')}; dledger lost lists them"
