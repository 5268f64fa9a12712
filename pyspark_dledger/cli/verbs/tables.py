"""``dledger state``, ``segments``, ``consumers``, ``audit``, ``dump`` and ``stats``: tables of each store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import (
    EACH,
    ENDING,
    REPLICAS,
    ROW_POSITION,
    STARTING,
    add_flag,
    add_rows,
    add_stores,
    natural,
)
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, not_checked
from pyspark_dledger.cli.output.rows import Row, plain_time, print_fields, print_rows, print_table
from pyspark_dledger.cli.output.stream import Output, ProgressBar
from pyspark_dledger.cli.stores.open_stores import open_store, open_stores
from pyspark_dledger.cli.stores.queue_rows import print_queue_ends, queue_ends
from pyspark_dledger.cli.stores.row_printer import RowPrinter, print_tables, print_unread, table_batches, with_progress
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import STATISTICS
from pyspark_dledger.log.state import state_of
from pyspark_dledger.log.store_view import answer

if TYPE_CHECKING:
    import pyarrow as pa


def add_state(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, "several are shown side by side", "unreadable files")
    parser.add_argument("--queues", action="store_true", help="also the first and last offset of each ConsumeQueue")


def run_state(args: argparse.Namespace, out: Output) -> int:
    """Print the state of each store; `FINDINGS` if a file of one cannot be read."""
    logs = list(open_stores(args, "table state", leave_out=True))
    rows = [_shown(fields_row(answer(log, state_of))) for log in logs]
    ends = [queue_ends(log) for log in logs] if args.queues else []
    code = FINDINGS if any(row["problem"] for row in (*rows, *chain.from_iterable(ends))) else CLEAN
    if args.json:
        if args.queues:
            rows = [{**row, "queues": queues} for row, queues in zip(rows, ends, strict=True)]
        print_rows(out, rows, args.json)
        return code
    if len(rows) == 1:
        print_fields(out, rows[0])
    else:
        print_table(out, ({"": name} | {row["path"]: row[name] for row in rows} for name in rows[0] if name != "path"))
    for row, queues in zip(rows, ends, strict=False):
        out.line("")
        if len(rows) > 1:
            out.line(str(row["path"]))
        print_queue_ends(out, queues)
    return code


def _shown(row: Row) -> Row:
    """A state with its times as text."""
    return {name: plain_time(value) if name.endswith("Timestamp") else value for name, value in row.items()}


# The columns that fit a terminal; --json has all.
_SEGMENT_COLUMNS = (
    *("node", "source", "segment", "entries", "firstIndex", "lastIndex", "lastTerm", "usedBytes", "unwrittenBytes"),
    *("staleBytes", "corruptBytes", "findings"),
)


def add_segments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "findings, unreadable files")


def run_segments(args: argparse.Namespace, out: Output) -> int:
    return print_tables("segments", args, out, _SEGMENT_COLUMNS, question="what these files have")


def add_consumers(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "a group lost unread messages")


def run_consumers(args: argparse.Namespace, out: Output) -> int:
    return print_tables("consumers", args, out, nothing="no consumer group is known")


_READ = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "checkpoint")


def add_audit(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "contradictions, unreadable files")


def run_audit(args: argparse.Namespace, out: Output) -> int:
    """Print the contradictions in what can be read; `FINDINGS` if there is one, or a file cannot be read."""
    agree = "log and ConsumeQueue agree"
    texts: dict[str, Any] = {"nothing": agree, "question": f"if {agree}", "read_names": _READ}
    code = print_tables("audit", args, out, notes=_notes, batches=_audited, **texts)
    if not args.json:
        out.line(not_checked("audit"))
    return code


def _audited(log: Log, progress: ProgressBar) -> Iterator[pa.RecordBatch]:
    from pyspark_dledger.rocketmq.tables.audit_table import plan, read

    parts = plan(log, log.options, log.unread.add)
    for number, part in enumerate(parts):
        progress(number, len(parts))
        yield from read(part, log.unread)


def _notes(log: Log) -> Iterator[str]:
    """What no row says: that there are no queues, or that they have fillers."""
    from pyspark_dledger.cli.stores.queue_rows import gap_units
    from pyspark_dledger.log.io.files import ignore_error
    from pyspark_dledger.log.io.queue_files import FOLDER
    from pyspark_dledger.log.io.state_files import confirmed_end
    from pyspark_dledger.log.units.stored import StoredQueues, queue_root
    from pyspark_dledger.log.verify.verify_store import passed_queue_ends

    if not (queue_root(log) / FOLDER).is_dir():
        yield f"there is no {FOLDER} folder: each message of the log, if it has any, is missing from its queue"
        return
    root = queue_root(log)
    if passed := passed_queue_ends(log, root, StoredQueues(root, ignore_error)):
        offsets = counted(len(passed), "offset of a consumer group is", "offsets of consumer groups are")
        yield f"{offsets} after the end of the queue: dledger verify lists them, and says what to do"
    confirmed = confirmed_end(root)
    if confirmed < log.max_offset:
        yield f"messages from {confirmed} on are not confirmed: they may be in no queue"
    fillers, copies = gap_units(log)
    texts = [counted(fillers, "unit is a filler", "units are fillers")] if fillers else []
    texts += [counted(copies, "unit is a copy of a neighbour", "units are copies of a neighbour")] if copies else []
    if texts:
        # The first and last messages of a queue can be missing without a filler.
        messages = counted(fillers + copies, "message is", "messages are")
        yield f"at least {messages} missing: {', '.join(texts)}"


def add_dump(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, REPLICAS, "a row with a problem, unreadable files; without rows 0")
    add_rows(parser)
    text = "log (the default), or another (docs/tables.md), such as consumeQueue"
    add_flag(parser, "--table", "table", metavar="NAME", help=text)
    text = f"the first row at or after {ROW_POSITION}"
    add_flag(parser, "--from", *STARTING, dest="starting", metavar="POSITION", help=text)
    text = "the end of the rows, exclusive"
    add_flag(parser, "--to", *ENDING, dest="ending", metavar="POSITION", help=text)
    parser.add_argument("--limit", type=natural, metavar="N", help="print at most N rows")


def run_dump(args: argparse.Namespace, out: Output) -> int:
    log = open_store(args, leave_out=True)
    printer = RowPrinter(args, out, log)
    limit = args.limit
    if log.options.table == "log":
        if limit is not None:
            log.options = replace(log.options, max_batch_rows=max(min(limit, log.options.max_batch_rows), 1))
        batches = with_progress(log, log.scan(printer.columns), out.progress)
    else:
        batches = table_batches(log, log.options.table, out.progress)
    for batch in batches:
        printer.print(batch, None if limit is None else limit - printer.count)
        if limit is not None and printer.count >= limit:
            break
    is_unread = print_unread(out, log.unread.lines("what the whole log has", None), as_json=True)
    return FINDINGS if is_unread else printer.code


# The columns of a topic that fit a terminal; --json has more.
_TOPIC_COLUMNS = (
    *("topic", "queues", "messages", "bytes", "messagesPerSecond", "sizeP50", "sizeP99", "bornToStoreP50"),
    *("bornToStoreP99", "lastStoreTimestamp", "tags"),
)
_SHOWN_TAGS = 5


def add_stats(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "rows with a problem, unreadable files")


def run_stats(args: argparse.Namespace, out: Output) -> int:
    """Print the totals, then a row for each term and each topic."""
    from pyspark_dledger.cli.stores.statistics import Statistics, scan_counted

    code = CLEAN
    for log in open_stores(args, STATISTICS, leave_out=True):
        found = Statistics()
        for batch in scan_counted(log, out.progress):
            found.add(batch)
        code = FINDINGS if found.problems else code
        total, terms, topics = found.total_row(log.path), found.term_rows(), list(found.topic_rows())
        if args.json:
            for kind, rows in (("total", [total]), ("term", terms), ("topic", topics)):
                for row in rows:
                    out.line(json_line({"of": kind, **row}))
        else:
            _print_stats(out, total, terms, topics)
            out.line(f"{log.path}: not checked: queues, index and state files (dledger verify)")
        if print_unread(out, log.unread.lines("what the whole log has", None), args.json):
            code = FINDINGS
    return code


def _print_stats(out: Output, total: Row, terms: list[Row], topics: list[Row]) -> None:
    print_fields(out, {name: value for name, value in total.items() if value is not None})
    shown = [{**row, "tags": _most_frequent(row["tags"], row["otherTags"])} for row in topics]
    for rows in (terms, [{name: row[name] for name in _TOPIC_COLUMNS} for row in shown]):
        if rows:
            out.line("")
            print_table(out, rows)


def _most_frequent(tags: dict[str, int], others: int) -> str:
    """The most frequent tags, and how many more there are."""
    shown = [f"{tag} {count}" for tag, count in list(tags.items())[:_SHOWN_TAGS]]
    more = len(tags) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") + (f", others {others}" if others else "")
