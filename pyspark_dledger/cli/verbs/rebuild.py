"""``dledger rebuild``: rebuilds ConsumeQueues or the index of keys from the log."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import add_flag, add_json, add_option, given_without, parts_at
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, REBUILD_EXITS
from pyspark_dledger.cli.output.rows import print_report, print_rows, print_table
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.open_stores import options_with_replicas
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.next_step import after_comparison, check_of

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.rebuild import CompareReport, FileSettings, RebuildReport


def add_rebuild(parser: argparse.ArgumentParser) -> None:
    parser.description = "Rebuild ConsumeQueues or the index of keys from the log. They replace the old ones, which "
    parser.description += "are kept next to them. The log is only read."
    parser.epilog = REBUILD_EXITS
    parser.add_argument("what", choices=("consumequeue", "index"), help="what to build")
    text = "the store: a storePathRootDir that no broker has open; further ones are its replicas, which prove what is "
    text += "committed, and show sizes of lost files"
    parser.add_argument("path", nargs="+", metavar="PATH", help=text)
    text = "print what would change, and write nothing; with --json a line for each queue or index file"
    parser.add_argument("--dry-run", action="store_true", help=text)
    text = "a new or empty folder: build there, and leave the store alone"
    add_flag(parser, "--out", "out", metavar="DIR", help=text)
    text = "read the log in Spark tasks, at a master such as local[4] or spark://HOST:7077"
    parser.add_argument("--spark", metavar="MASTER", help=text)
    for flag, option, field, file, default in (
        ("--units-per-file", "unitsPerFile", "units_per_file", "a ConsumeQueue file", 300000),
        ("--hash-slots", "hashSlots", "hash_slots", "an index file", 5000000),
        ("--index-units", "indexUnits", "index_units", "an index file", 20000000),
    ):
        text = f"of {file}; default: that of existing files, else {default}"
        add_flag(parser, flag, option, field, dest=option, metavar="N", help=text)
    text = "a broker.conf, for messageDelayLevel, and for sizes that neither flags nor files show"
    parser.add_argument("--broker-conf", dest="brokerConf", metavar="FILE", help=text)
    text = "an index with tags too, as RocketMQ writes from 5.5.0 on; default: as existing files"
    add_flag(parser, "--index-tags", "indexTags", dest="indexTags", choices=("true", "false"), help=text)
    add_json(parser)
    add_option(parser)


def run_rebuild(args: argparse.Namespace, out: Output) -> int:
    """Rebuild, or compare with ``--dry-run``: then `FINDINGS` if anything would change."""
    from pyspark_dledger.rocketmq.rebuild import FileSettings

    names = ("unitsPerFile", "hashSlots", "indexUnits", "brokerConf", "indexTags")
    files, _ = FileSettings.taken_from({name: getattr(args, name) for name in names}, args.what)
    return _compare(args, files, out) if args.dry_run else _rebuild(args, files, out)


def _compare(args: argparse.Namespace, files: FileSettings, out: Output) -> int:
    from pyspark_dledger.rocketmq.rebuild import compare

    if args.out is not None or args.spark is not None:
        raise OptionError("--dry-run writes nothing: leave out --out and --spark")
    options = options_with_replicas(args)
    found = compare(args.path[0], args.what, files=files, progress=out.progress, options=options)
    if args.json:
        print_rows(out, map(fields_row, found.differences), args.json)
        for text in found.notes:
            note(text)
    else:
        _print_compared(out, found)
        out.lines(next_lines(after_comparison(["rebuild", *given_without(args, "--dry-run")], found.is_equal)))
    return CLEAN if found.is_equal else FINDINGS


def _print_compared(out: Output, found: CompareReport) -> None:
    changed = [difference for difference in found.differences if not difference.is_equal]
    if changed:
        print_table(out, map(fields_row, changed))
        out.line("")
    out.line(f"{found.folder}: {counted(found.built.messages, 'message')} {found.committed}")
    out.line(_equal_text(found))
    out.lines(f"note: {text}" for text in found.notes)


def _equal_text(found: CompareReport) -> str:
    """How many queues or files are as a rebuild would write them."""
    kind = "queue" if found.what == "consumequeue" else "index file"
    equal = sum(difference.is_equal for difference in found.differences)
    changed = len(found.differences) - equal - found.has_keys_outside
    if not equal + changed:
        return f"there is no {kind}"
    as_built = counted(equal, f"{kind} is", f"{kind}s are")
    return (
        f"{as_built} as a rebuild would write {'it' if equal == 1 else 'them'}, {counted(changed, 'differs', 'differ')}"
    )


def _rebuild(args: argparse.Namespace, files: FileSettings, out: Output) -> int:
    from pyspark_dledger.rocketmq.rebuild import rebuild as rebuild_by

    options = options_with_replicas(args)
    with parts_at(args.spark) as run:
        done = rebuild_by(
            args.path[0], args.what, out=args.out, files=files, run=run, progress=out.progress, options=options
        )
    print_report(out, done, _lines(done), args.json, next_lines(check_of(*args.path)) if args.out is None else ())
    return CLEAN


def _lines(done: RebuildReport) -> Iterator[str]:
    built = done.built
    parts = f"{counted(built.units, 'unit')} in {counted(built.queue_files, 'file')}"
    if done.what == "index":
        parts = f"{counted(built.keys, 'key')} in {counted(built.index_files, 'file')}"
    yield f"{done.folder}: {parts}, of {counted(built.messages, 'message')} {done.committed}"
    if done.before is not None:
        yield f"the old folder is kept as {done.before}: delete it once a broker serves the store"
