"""``dledger trace``: the life of messages, in order of time."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import add_json, add_option
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, read_exits
from pyspark_dledger.cli.output.rows import plain_time, print_table, without_empty
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.format.json_text import json_line, rows_of

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.lives.trace import TraceEvent


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.epilog = read_exits("a message is not found")
    parser.add_argument("path", metavar="PATH", help="a store")
    text = "a key, a uniqKey (the client's msgId), an offsetMsgId or TOPIC/QUEUE/OFFSET"
    parser.add_argument("what", nargs="+", metavar="MESSAGE", help=text)
    text = "read the whole log: the index of keys can lack messages"
    parser.add_argument("--scan", action="store_true", help=text)
    add_json(parser)
    add_option(parser)


def run_trace(args: argparse.Namespace, out: Output) -> int:
    """Print the steps of each message; `FINDINGS` if there is none for one of the names."""
    from pyspark_dledger.log.tables.table import batches_of
    from pyspark_dledger.rocketmq.lives.trace import trace  # loads numpy
    from pyspark_dledger.rocketmq.tables.life_tables import TRACE_COLUMNS

    log = open_store(argparse.Namespace(**{**vars(args), "path": [args.path]}), "table trace")
    events, missing = trace(log, args.what, scan=args.scan)
    if args.json:
        for batch in batches_of(TRACE_COLUMNS, events, log.options.max_batch_rows):
            for row in rows_of(batch, bytes):
                out.line(json_line(row))
    else:
        _print_text(out, events)
    for what in missing:
        where = "the log" if args.scan else "the index of keys and the log after it: --scan reads all of the log"
        note(f"{log.path}: expected a message {what}, found none in {where}")
    return FINDINGS if missing else CLEAN


def _print_text(out: Output, events: list[TraceEvent]) -> None:
    for uniq_key, steps in groupby(events, key=lambda event: event.uniq_key):
        out.line(f"message {uniq_key or 'without uniqKey'}")
        print_table(out, without_empty([_row(event) for event in steps]))
        out.line("")


def _row(event: TraceEvent) -> dict[str, object]:
    return {
        "time": plain_time(event.time),
        "event": event.event,
        "attempt": event.attempt,
        "place": f"{event.topic}/{event.queue_id}/{event.queue_offset}",
        "commitLogOffset": event.offset,
        "until": plain_time(event.until),
        "consumerGroup": event.consumer_group,
        "inQueue": {None: None, True: "yes", False: "no"}[event.is_in_queue],
    }
