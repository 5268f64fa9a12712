"""``dledger salvage``: writes one intact store from damaged replicas."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import add_json, add_option, given_without, parts_at
from pyspark_dledger.cli.exit_codes import CLEAN, ERROR, FINDINGS, SALVAGE_EXITS
from pyspark_dledger.cli.output.rows import print_report, print_rows
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.open_stores import read_options
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.io.store_use import MANIFEST
from pyspark_dledger.log.next_step import after_choice, after_plan, as_given, check_of
from pyspark_dledger.log.options import SALVAGE, check_use, parse_options
from pyspark_dledger.rocketmq.jobs import MapParts

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.salvage import SalvageReport, SalvageRequest

_MAX_SHOWN = 10
_UNDECIDED = ("refuse", "majority", "filler")


def add_salvage(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write one intact store from damaged replicas of a group, or from one store and its own files. "
    )
    parser.description += "Sources are only read. Stop their brokers first."
    parser.epilog = SALVAGE_EXITS
    text = "a damaged store, or STORE,DIR,DIR; the first is preferred, and the result gets its node id, term and "
    text += "configuration"
    parser.add_argument("path", nargs="+", metavar="PATH", help=text)
    text = "a new or empty folder, or one with an unfinished salvage of the same"
    parser.add_argument("--to", metavar="TARGET", help=text)
    text = "write nothing: print which source each range is copied from, why, and what nobody has"
    parser.add_argument("--plan", action="store_true", help=text)
    parser.add_argument(
        "--id", dest="node", metavar="ID", help="the id of the new node; default: that of the first PATH"
    )
    text = (
        "entries of which nothing shows that a copy is right: refuse (default), majority (the bytes that most copies "
    )
    text += "have, else one of the copies) or filler"
    parser.add_argument("--undecided", choices=_UNDECIDED, default="refuse", metavar="WHAT", help=text)
    text = "for an undecided entry (of a CommitLog: position), take the copy of this source; repeatable"
    parser.add_argument("--take", action="append", default=[], metavar="INDEX=ID", help=text)
    text = (
        "restore the log of this source; default: of the sources that have all committed entries, the one whose last "
        "entry has the highest term, then the highest index"
    )
    parser.add_argument("--log-of", dest="log_of", metavar="ID", help=text)
    text = "do the work in Spark tasks, at a master such as local[4] or spark://HOST:7077"
    parser.add_argument("--spark", metavar="MASTER", help=text)
    text = "commitlog: a store for a broker without DLedger"
    parser.add_argument("--as", dest="store_as", choices=("commitlog",), metavar="FORM", help=text)
    text = "if no source has an intact topics.json, build it from the log"
    parser.add_argument("--topics-from-log", action="store_true", help=text)
    add_json(parser, "the report as one JSON object; with --plan one JSON object for each range")
    add_option(parser, "engine=auto, native or python")


def run_salvage(args: argparse.Namespace, out: Output) -> int:
    """Print the plan, or salvage."""
    try:
        return _run(args, out)
    except KeyboardInterrupt:
        folders = [] if args.to is None else [Path(args.to), Path(f"{args.to}.dledger")]
        has_begun = any((folder / MANIFEST).exists() for folder in folders)
        finish = f"run the same command again to finish the salvage in {args.to}"
        note(f"interrupted: {finish if has_begun else 'nothing was written'}")
        raise


def _run(args: argparse.Namespace, out: Output) -> int:
    from pyspark_dledger.log.salvage.plan import ChoiceError
    from pyspark_dledger.rocketmq.salvage import SalvageRequest

    if args.plan == (args.to is not None):
        raise OptionError("expected either --to TARGET or --plan")
    read = parse_options(read_options(args))
    check_use(read, SALVAGE)
    options = {name: getattr(args, name) for name in ("node", "undecided", "log_of", "store_as", "topics_from_log")}
    options["take"] = dict(map(_index_and_id, args.take))
    request = SalvageRequest.of(args.path, engine=read.engine, **options)
    try:
        with parts_at(args.spark) as map_parts:
            return _plan(args, request, map_parts, out) if args.plan else _salvage(args, request, map_parts, out)
    except ChoiceError as error:
        out.progress.clear()
        note(str(error))
        given = given_without(args, "--plan", "--to", f"--to={args.to}", args.to)
        out.lines(() if args.json else next_lines(after_choice(given, error.log_of)))
        return ERROR


def _plan(args: argparse.Namespace, request: SalvageRequest, map_parts: MapParts, out: Output) -> int:
    from pyspark_dledger.log.salvage.plan_rows import headline, plan_rows
    from pyspark_dledger.rocketmq.salvage import plan

    found = plan(request, map_parts, out.progress)
    out.progress.clear()
    rows = [fields_row(row) for row in plan_rows(found)]
    if args.json:
        print_rows(out, rows, True)
        for line in (headline(found), *found.notes):
            note(line)
    else:
        out.line(headline(found))
        out.lines(f"note: {text}" for text in found.notes)
        for log in found.logs:
            indexes = f"index {log.first_index} to {log.last_index}, " if log.last_index >= 0 else ""
            out.line(f"log of {found.names[log.leader]} ({log.source}): {indexes}pos {log.base} to {log.end}")
        print_rows(
            out, ({**row, "sources": "+".join(row["sources"]), "problems": _problems(row)} for row in rows), False
        )
        out.lines(next_lines(after_plan(given_without(args, "--plan"), args.path, bool(found.refused))))
    return CLEAN if found.is_lossless else FINDINGS


def _index_and_id(text: str) -> tuple[int, str]:
    index, _, name = text.partition("=")
    if not index.isdecimal() or not name:
        raise OptionError(f"--take: expected INDEX=ID such as 17=n1, found {text}")
    return int(index), name


def _problems(row: dict[str, object]) -> str:
    problems = row["problems"]
    assert isinstance(problems, dict)
    return "; ".join(f"{name}: {text}" for name, text in problems.items())


def _salvage(args: argparse.Namespace, request: SalvageRequest, map_parts: MapParts, out: Output) -> int:
    from pyspark_dledger.rocketmq.salvage import UndecidedError, salvage

    try:
        report = salvage(request, args.to, run=map_parts, progress=out.progress)
    except UndecidedError as error:
        note(str(error))
        return FINDINGS
    print_report(out, report, _lines(report), args.json, next_lines(check_of(as_given(report.target))))
    is_sure = not (report.lost or report.findings or report.unconfirmed or report.unreadable)
    return CLEAN if is_sure and report.lost_after is None and report.lost_until is None else FINDINGS


def _lines(report: SalvageReport) -> Iterator[str]:
    yield report.headline
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    rate = report.bytes / max(report.seconds, 0.001) / 1e6
    yield f"salvaged to {report.target}: {counted(report.entries, 'entry')}"
    yield f"files of the log: {report.parts}{resumed}, {report.bytes} bytes; {report.seconds:.1f} s, {rate:.3g} MB/s"
    if report.lost:
        yield f"fillers: {report.lost}, listed in {report.target}/lost.jsonl"
    if report.decided:
        yield f"decided by --undecided majority or --take: {report.decided}, listed in {report.target}/decided.jsonl"
    yield "read back and verified" if not report.findings else f"verify finds {len(report.findings)}:"
    yield from (f"  {text}" for text in report.findings[:_MAX_SHOWN])
