"""``dledger audit``: where log and ConsumeQueue contradict each other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.table_printer import print_tables
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.log import Log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "contradictions")


def run(args: argparse.Namespace, out: Output) -> int:
    return print_tables("audit", args, out, nothing="log and ConsumeQueue agree", notes=_notes)


def _notes(log: Log) -> Iterator[str]:
    """What no row says: that there are no queues, or that they have fillers."""
    from pyspark_dledger.cli.stores.queue_fillers import count_copies, count_fillers
    from pyspark_dledger.log.io.queue_files import FOLDER
    from pyspark_dledger.rocketmq.consume_queue.queue_units import queue_root

    if not (queue_root(log) / FOLDER).is_dir():
        yield f"there is no {FOLDER} folder: every message is missing from its queue"
        return
    kinds = [("unit is a filler", "units are fillers", count_fillers(log))]
    kinds.append(("unit is a copy of the next", "units are copies of the next", count_copies(log)))
    texts = [counted(count, one, many) for one, many, count in kinds if count]
    if texts:
        # The first and last messages of a queue can be missing without a filler.
        least = sum(count for _, _, count in kinds)
        messages = counted(least, "message is", "messages are")
        yield f"at least {messages} missing: {', '.join(texts)}"
