"""``dledger diff``: where replicas differ."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, not_checked
from pyspark_dledger.cli.output.rows import Row, print_rows, print_table, range_text
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.diff_text import cut_logs, print_commit_logs, sentences
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.open_stores import open_store, open_stores, replica_paths
from pyspark_dledger.cli.stores.queue_rows import lost_queues, lost_queues_of_positions, queues_text
from pyspark_dledger.cli.stores.row_printer import is_finding
from pyspark_dledger.cli.stores.verdict_text import doubts_text, verdict_lines
from pyspark_dledger.common.fields import camel_case, fields_row
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.diff.salvage_doubts import salvage_doubts
from pyspark_dledger.log.options import DIGESTS
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.store_view import answer
from pyspark_dledger.rocketmq.check.check_report import step_after_comparison

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.commit_log_comparison import CommitLogComparison
    from pyspark_dledger.log.diff.comparison import Comparison

_MAX_KEPT = 16 * 1024 * 1024
"""Bytes of rows in memory: the verdict comes first, but is known after the last row."""


def add_diff(parser: argparse.ArgumentParser) -> None:
    findings = "entries differ or are damaged, a log lost its end, unreadable files, or --md5: files differ"
    add_stores(parser, "several are compared; of one folder, its nodes", findings)
    text = "print the MD5 of every file of the log instead: of the whole file, and of the part that all have written"
    parser.add_argument("--md5", action="store_true", help=text)


def run_diff(args: argparse.Namespace, out: Output) -> int:
    """Print where replicas differ; `FINDINGS` where entries differ or are damaged, or a log lost its end.

    A replica that only lags is no finding.
    """
    args.path = replica_paths(args.path)
    if args.md5:
        return _md5(args, out)
    log = open_store(args, "table diff", leave_out=True)
    if not log.replicas:
        raise OptionError(
            f"{log.path}: only one store to compare: give its replicas as further paths "
            "(dledger diff STORE STORE ...), or a folder that has several dledger-<id>/"
        )
    code = answer(log, lambda readable: (_print_json if args.json else _print_text)(out, readable))
    stores = [log, *log.replicas]
    for each in salvage_doubts(zip(replica_names(stores), stores, strict=True)).items():
        note(doubts_text(*each))
        code = FINDINGS
    if not args.json:
        out.line(not_checked("diff"))
    return code


def _print_json(out: Output, log: Log) -> int:
    """Print the verdict on each kind of log, then all rows."""
    from pyspark_dledger.cli.stores.diff_text import verdict_row

    logs = [log, *log.replicas]
    code = CLEAN
    with SpooledTemporaryFile(_MAX_KEPT, "w+", encoding="utf-8", errors="surrogatepass", newline="\n") as rows:

        def keep(row: Any) -> None:
            rows.write(f"{json_line(fields_row(row))}\n")

        old, found = _compared(log, keep)
        verdicts = []
        if old is not None:
            code = CLEAN if old.is_lagging_only else FINDINGS
            queues = lost_queues_of_positions(logs, old.verdict.lost_entries)
            verdicts.append(verdict_row(old.verdict, queues, step_after_comparison(old, logs), is_old=old.is_old))
        if any(one.ledger_segments for one in logs):
            code = max(code, _exit_code(found, log))
            queues = lost_queues(logs, found.verdict)
            verdicts.append(verdict_row(found.verdict, queues, step_after_comparison(found, logs)))
        unread = [text for one in logs for text in one.unread.segment_texts()]
        unread += [f"{one.path}: {text}" for one in logs for text in one.unread.witnesses()]
        for verdict in verdicts:
            out.line(json_line(verdict))
        rows.seek(0)
        for line in rows:
            out.line(line.rstrip("\n"))
    out.flush()
    for text in unread:
        note(text)
    return code


def _print_text(out: Output, log: Log) -> int:
    old, found = _compared(log)
    code = print_commit_logs(out, log, old) if old is not None else CLEAN
    if not any(one.ledger_segments for one in (log, *log.replicas)):
        return code
    if any(one.paths.commitlog_dirs for one in (log, *log.replicas)):
        out.line("")
        out.line("DLedger")
    _print_comparison(out, found, log)
    out.lines(cut_logs(log))
    return max(code, _exit_code(found, log))


def _compared(log: Log, on_row: Callable[[Any], object] | None = None) -> tuple[CommitLogComparison | None, Comparison]:
    """The CommitLogs and the DLedger logs of replicas, compared: what both have is read once."""
    from pyspark_dledger.log.diff.commit_log_comparison import compare_commit_log_group
    from pyspark_dledger.log.diff.commit_log_group import commit_log_group
    from pyspark_dledger.log.diff.comparison import compare_group
    from pyspark_dledger.log.diff.replica_group import ReplicaGroup, compared

    stores = compared(log)
    old = compare_commit_log_group(commit_log_group(stores), on_row)
    return old, compare_group(ReplicaGroup(stores, log.options.group_size), on_row)


def _exit_code(found: Comparison, log: Log) -> int:
    is_unfit = found.verdict.may_lack_first_files or any(member.start != "yes" for member in found.verdict.members)
    has_findings = any(is_finding("diff", {"verdict": name}) for name in found.entries)
    return FINDINGS if is_unfit or has_findings or any(cut_logs(log)) else CLEAN


def _print_comparison(out: Output, found: Comparison, log: Log) -> None:
    logs, verdict = [log, *log.replicas], found.verdict
    out.lines(
        verdict_lines(verdict, min(each.min_offset for each in logs), queues=queues_text(lost_queues(logs, verdict)))
    )
    out.lines(next_lines(step_after_comparison(found, logs)))
    out.line("")
    print_table(out, [_replica_row(item) for item in found.standings])
    out.line("")
    out.lines(sentences(found))
    hidden = ("firstByte", "firstDifference")
    rows = [{name: value for name, value in fields_row(row).items() if name not in hidden} for row in found.rows]
    if rows:
        out.line("")
        print_table(out, rows)
    if found.more_rows:
        out.line(f"and {found.more_rows} more: --json prints all")


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
    from pyspark_dledger.log.replicas import check_distinct

    stores = list(open_stores(args, DIGESTS))
    check_distinct(stores, "replica")
    digests = file_digests(stores)
    if not digests:
        note("no file has been written to")
    rows: Iterable[Row] = ({**fields_row(digest), "equal": digest.equal} for digest in digests)
    if not args.json:
        rows = ({name: value for name, value in row.items() if name != "md5"} | row["md5"] for row in rows)
    print_rows(out, rows, args.json)
    note("compared are the files of the log; not index/, consumequeue/, config/ and state files")
    return CLEAN if all(digest.equal for digest in digests) else FINDINGS
