"""ConsumeQueues and the index of keys, built anew from the log."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import options_of
from pyspark_dledger.cli.output.output import Output, Row, camel_case, note, print_table
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.rebuild import Compared, FileSettings, IndexDifference, QueueDifference, Rebuilt
    from pyspark_dledger.rocketmq.work_parts import MapParts


def rebuild(given: argparse.Namespace, out: Output) -> int:
    """Rebuild, or with --dry-run compare only: `FINDINGS` then if anything would change."""
    from pyspark_dledger.rocketmq.rebuild import FileSettings

    names = ("unitsPerFile", "hashSlots", "indexUnits", "brokerConf")
    files, _ = FileSettings.taken_from({name: getattr(given, name) for name in names})
    return _compare(given, files, out) if given.dry_run else _rebuild(given, files, out)


def _compare(given: argparse.Namespace, files: FileSettings, out: Output) -> int:
    from pyspark_dledger.rocketmq.rebuild import compare

    if given.out is not None or given.spark is not None:
        raise OptionError("--dry-run: expected neither --out nor --spark, for nothing is written: leave them out")
    found = compare(given.path, given.what, files=files, progress=out.progress, options=options_of(given))
    if given.json:
        for difference in found.differences:
            out.line(json_line(_row(difference)))
        for text in found.notes:
            note(text)
    else:
        _print_compared(out, found)
    return CLEAN if found.is_equal else FINDINGS


def _row(difference: QueueDifference | IndexDifference) -> Row:
    return {camel_case(name): value for name, value in dataclasses.asdict(difference).items()}


def _print_compared(out: Output, found: Compared) -> None:
    changed = [difference for difference in found.differences if not difference.is_equal]
    if changed:
        print_table(out, map(_row, changed))
        out.line("")
    out.line(f"{found.folder}: {found.built.messages} messages {found.committed}")
    equal, kind = len(found.differences) - len(changed), "queues" if found.what == "consumequeue" else "index files"
    out.line(f"{equal} {kind} are as they would be built, {len(changed)} are not")
    for text in found.notes:
        out.line(f"note: {text}")


def _rebuild(given: argparse.Namespace, files: FileSettings, out: Output) -> int:
    from pyspark_dledger.rocketmq.rebuild import rebuild as rebuild_by

    options = options_of(given)
    with ExitStack() as opened:
        run = _run(given.spark, opened)
        done = rebuild_by(
            given.path, given.what, out=given.out, files=files, run=run, progress=out.progress, options=options
        )
    if given.json:
        out.line(json_line(_json_row(done)))
    else:
        _print_rebuilt(out, done)
    return CLEAN


def _json_row(done: Rebuilt) -> Row:
    row: Row = {camel_case(name): value for name, value in dataclasses.asdict(done).items()}
    row["built"] = {camel_case(name): value for name, value in dataclasses.asdict(done.built).items()}
    return row


def _print_rebuilt(out: Output, done: Rebuilt) -> None:
    built = done.built
    parts = f"{built.units} units in {built.queue_files} files"
    if done.what == "index":
        parts = f"{built.keys} keys in {built.index_files} files"
    out.line(f"{done.folder}: {parts}, of {built.messages} messages {done.committed}")
    if done.before is not None:
        out.line(f"what was there is kept as {done.before}: delete it once a broker serves the store")
    for text in done.notes:
        out.line(f"note: {text}")


def _run(master: str | None, opened: ExitStack) -> MapParts:
    """Where parts are read: here, or by tasks of a session that ends with this."""
    from pyspark_dledger.rocketmq.work_parts import map_here

    if master is None:
        return map_here
    from pyspark_dledger.spark.tasks import run_on, session_at

    return run_on(opened.enter_context(session_at(master)))
