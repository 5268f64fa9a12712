"""``dledger audit``: where log and ConsumeQueue contradict each other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.table_printer import print_tables
from pyspark_dledger.log import Log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "contradictions")


def run(args: argparse.Namespace, out: Output) -> int:
    return print_tables("audit", args, out, nothing="log and ConsumeQueue agree", notes=_notes)


def _notes(log: Log) -> Iterator[str]:
    """What no row says: that there are no queues, or that they have fillers."""
    from pyspark_dledger.cli.stores.queue_fillers import count_fillers
    from pyspark_dledger.log.io.queue_files import FOLDER
    from pyspark_dledger.rocketmq.consume_queue.queue_units import queue_root

    if not (queue_root(log) / FOLDER).is_dir():
        yield f"there is no {FOLDER} folder: every message is missing from its queue"
    elif count := count_fillers(log):
        units = "1 unit is a filler" if count == 1 else f"{count} units are fillers"
        yield f"{units} for messages missing from the log"
