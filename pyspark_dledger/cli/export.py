"""``export``: a log as something else, in a new folder."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import options_of
from pyspark_dledger.cli.output.output import Output, camel_case, note
from pyspark_dledger.common.freed_memory import keep_freed_memory
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line, printable

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.export.forms import ExportReport

_MOST_SHOWN = 10
# Of an argument of its own, by its name, and of the option that it is.
_ARGUMENTS = ("columns", "compression", "preserveOffsets", "commitLogOnly")


def export(given: argparse.Namespace, out: Output) -> int:
    """Export a log; a second run goes on with one that was interrupted."""
    options = options_of(given)
    for name in _ARGUMENTS:
        value = getattr(given, name)
        if value is not None and name.lower() in map(str.lower, options):
            raise OptionError(f"option {name} is given twice: give it once")
        options.update({} if value is None else {name: value})
    try:
        report = _run(given, options, out)
    except KeyboardInterrupt:
        note(f"interrupted: the same command goes on in {given.target} where it ended")
        raise
    out.progress.clear()
    if given.json:
        out.line(json_line({camel_case(name): value for name, value in dataclasses.asdict(report).items()}))
    else:
        _print(given.target, report, out)
    is_clean = report.rows and not (report.skipped or report.problems)
    return CLEAN if is_clean else FINDINGS


def _run(given: argparse.Namespace, options: dict[str, Any], out: Output) -> ExportReport:
    from pyspark_dledger.rocketmq.export import export as export_log

    keep_freed_memory()
    if given.spark is None:
        return export_log(given.path, given.target, given.to, progress=out.progress, **options)
    from pyspark_dledger.spark.tasks import run_on, session_at

    with session_at(given.spark) as spark:
        return export_log(given.path, given.target, given.to, run=run_on(spark), **options)


def _print(target: str, report: ExportReport, out: Output) -> None:
    resumed = f", of which an earlier run had done {report.resumed}" if report.resumed else ""
    rate = report.source_bytes / max(report.seconds, 0.001) / 1e6
    out.line(f"exported to {printable(target)} ({report.form}): {report.rows} rows of {report.source_bytes} bytes")
    out.line(f"files: {report.files}, {report.bytes} bytes; parts: {report.parts}{resumed}")
    out.line(f"read back and verified; {report.seconds:.1f} s, {rate:.3g} MB/s of the log")
    if report.problems:
        out.line(f"rows with a problem: {report.problems}, written as they are; column problem says what it is")
    if report.skipped:
        out.line(f"left out: {report.skipped} rows")
        for line in report.first_skipped[:_MOST_SHOWN]:
            out.line(f"  {printable(line)}")
        if report.skipped > _MOST_SHOWN:
            out.line(f"  and {report.skipped - _MOST_SHOWN} more; --json lists up to 100")
    for line in report.notes:
        out.line(f"note: {printable(line)}")
    if report.broker_conf:
        out.line("broker.conf needs:")
        for name, value in report.broker_conf.items():
            out.line(f"  {name}={printable(value)}")
