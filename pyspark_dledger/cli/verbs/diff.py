"""``dledger diff``: where replicas differ."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, camel_case, fields_row, range_text
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.output.text_table import print_rows, print_table
from pyspark_dledger.cli.stores.commit_log_text import print_commit_logs
from pyspark_dledger.cli.stores.comparison_text import cut_logs, sentences
from pyspark_dledger.cli.stores.lost_queues import lost_queues, queues_text
from pyspark_dledger.cli.stores.open_stores import open_store, open_stores
from pyspark_dledger.cli.stores.restorable import restorable
from pyspark_dledger.cli.stores.table_printer import is_finding
from pyspark_dledger.cli.stores.verdict_text import verdict_lines
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.store_paths import node_folders
from pyspark_dledger.log.log import answer
from pyspark_dledger.log.option_uses import DIGESTS

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.comparison import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    findings = "entries differ or are damaged, a log lost its end, or --md5: files differ"
    add_stores(parser, "several are compared; of one folder, its nodes", findings)
    text = "print the MD5 of every file of the log instead: of the whole file, and of the part that all have written"
    parser.add_argument("--md5", action="store_true", help=text)


def run(args: argparse.Namespace, out: Output) -> int:
    """Print where replicas differ; `FINDINGS` where entries differ or are damaged, or a log lost its end.

    A replica that only lags is no finding.
    """
    args.path = _replicas(args.path)
    if args.md5:
        return _md5(args, out)
    log = open_store(args, "table diff", leave_out=True)
    if not log.replicas:
        raise OptionError(
            f"{log.path}: only one store to compare: give its replicas as further paths "
            "(dledger diff STORE STORE ...), or a folder that has several dledger-<id>/"
        )
    return answer(log, lambda readable: _diff(readable, out, args.json))


def _diff(log: Log, out: Output, as_json: bool) -> int:
    if as_json:
        from pyspark_dledger.log.diff.commit_log.comparison import all_may_start
        from pyspark_dledger.log.diff.replica_parts import replica_rows
        from pyspark_dledger.log.diff.verdict import short_files

        stores = (log, *log.replicas)
        rows = list(map(fields_row, replica_rows(log)))
        unread = [text for one in stores for text in one.unread.segment_texts()]
        unread += [f"{one.path}: {text}" for one in stores for text in one.unread.witnesses()]
        is_short = any(map(short_files, stores))
        code = FINDINGS if [*cut_logs(log)] or unread or is_short or not all_may_start(log) else CLEAN
        for row in rows:
            code = FINDINGS if is_finding("diff", row) else code
            out.line(json_line(row))
        out.flush()
        for text in unread:
            note(text)
        return code
    from pyspark_dledger.log.diff.comparison import compare

    found = compare(log)
    code = print_commit_logs(out, log)
    if not any(one.ledger_segments for one in (log, *log.replicas)):
        return code
    if any(one.paths.commitlog_dirs for one in (log, *log.replicas)):
        out.line("")
        out.line("DLedger")
    code = max(code, _print_comparison(out, found, log))
    for text in cut_logs(log):
        out.line(text)
        code = FINDINGS
    return code


def _replicas(paths: list[str]) -> list[str]:
    """The paths to compare. A single folder with several nodes stands for its nodes."""
    folder = path_of(paths[0])
    if len(paths) > 1 or not folder.is_dir():
        return paths
    nodes = node_folders(folder, sorted(path.name for path in folder.iterdir()))
    return [str(node) for node in nodes.values()] if len(nodes) > 1 else paths


def _print_comparison(out: Output, found: Comparison, log: Log) -> int:
    logs, verdict = [log, *log.replicas], found.verdict
    for text in verdict_lines(verdict, restorable(logs, verdict), queues_text(lost_queues(logs, verdict))):
        out.line(text)
    out.line("")
    print_table(out, [_replica_row(item) for item in found.standings])
    out.line("")
    for text in sentences(found):
        out.line(text)
    hidden = ("firstByte", "firstDifference")
    rows = [{name: value for name, value in fields_row(row).items() if name not in hidden} for row in found.rows]
    if rows:
        out.line("")
        print_table(out, rows)
    if found.more_rows:
        out.line(f"and {found.more_rows} more: --json prints all")
    is_unfit = any(member.start != "yes" for member in verdict.members)
    return FINDINGS if is_unfit or any(is_finding("diff", {"verdict": name}) for name in found.entries) else CLEAN


def _replica_row(item: Any) -> Row:
    row: Row = {}
    for name, value in dataclasses.asdict(item).items():
        if name == "path":
            continue
        row[camel_case(name)] = _ranges(value) if isinstance(value, dict) else value
    return row


def _ranges(value: dict[str, Any]) -> str:
    spans = [range_text(first, last) for first, last in value["ranges"][:3]]
    return ", ".join(spans) + (" ..." if len(value["ranges"]) > 3 else "")


def _md5(args: argparse.Namespace, out: Output) -> int:
    """Print the MD5 of all files of the log. RocketMQ's upgrade guide compares the last two of the old CommitLog."""
    from pyspark_dledger.log.diff.digests import file_digests

    digests = file_digests(list(open_stores(args, DIGESTS)))
    if not digests:
        note("no file has been written to")
    rows: Iterable[Row] = ({**fields_row(digest), "equal": digest.equal} for digest in digests)
    if not args.json:
        rows = ({name: value for name, value in row.items() if name != "md5"} | row["md5"] for row in rows)
    print_rows(out, rows, args.json)
    note("compared are the files of the log; not index/, consumequeue/, config/ and state files")
    return CLEAN if all(digest.equal for digest in digests) else FINDINGS
