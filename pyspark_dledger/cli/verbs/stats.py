"""``dledger stats``: what a log contains, by topic and by term."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, print_fields, print_table
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.cli.stores.row_printer import print_unread
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.options import STATISTICS

# The columns of a topic that fit a terminal; --json has more.
_TOPIC_COLUMNS = (
    *("topic", "queues", "messages", "bytes", "messagesPerSecond", "sizeP50", "sizeP99", "bornToStoreP50"),
    *("bornToStoreP99", "lastStoreTimestamp", "tags"),
)
_SHOWN_TAGS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "rows with a problem, unreadable files")


def run(args: argparse.Namespace, out: Output) -> int:
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
            _print_text(out, total, terms, topics)
            out.line(f"{log.path}: not checked: queues, index and state files (dledger verify)")
        if print_unread(out, log.unread.lines("what the whole log has", None), args.json):
            code = FINDINGS
    return code


def _print_text(out: Output, total: Row, terms: list[Row], topics: list[Row]) -> None:
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
