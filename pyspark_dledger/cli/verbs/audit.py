"""``dledger audit``: where log and ConsumeQueue contradict each other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.exit_codes import not_checked
from pyspark_dledger.cli.output.stream import Output, ProgressBar
from pyspark_dledger.cli.stores.row_printer import print_tables
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    import pyarrow as pa

_READ = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "checkpoint")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "contradictions, unreadable files")


def run(args: argparse.Namespace, out: Output) -> int:
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
    from pyspark_dledger.cli.stores.queue_rows import count_copies, count_fillers
    from pyspark_dledger.log.io.queue_files import FOLDER
    from pyspark_dledger.log.io.state_files import confirmed_end
    from pyspark_dledger.log.units.stored import queue_root

    if not (queue_root(log) / FOLDER).is_dir():
        yield f"there is no {FOLDER} folder: every message is missing from its queue"
        return
    confirmed = confirmed_end(queue_root(log))
    if confirmed < log.max_offset:
        yield f"messages from {confirmed} on are not confirmed: they may be in no queue"
    kinds = [("unit is a filler", "units are fillers", count_fillers(log))]
    kinds.append(("unit is a copy of the next", "units are copies of the next", count_copies(log)))
    texts = [counted(count, one, many) for one, many, count in kinds if count]
    if texts:
        # The first and last messages of a queue can be missing without a filler.
        least = sum(count for _, _, count in kinds)
        messages = counted(least, "message is", "messages are")
        yield f"at least {messages} missing: {', '.join(texts)}"
