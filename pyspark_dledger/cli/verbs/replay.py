"""``dledger replay``: sends messages of a log to a running cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import add_flag, add_json, add_option, add_topics
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, REPLAY_EXITS
from pyspark_dledger.cli.output.rows import print_report
from pyspark_dledger.cli.output.stream import Output, note, uninterrupted
from pyspark_dledger.cli.stores.open_stores import read_options, set_option
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.format.json_text import printable

if TYPE_CHECKING:
    from pyspark_dledger.cluster.replay.replay_job import ReplayReport

_MAX_SHOWN = 10
_SWITCHES = ("sameQueues", "sendUnknown")


def add_replay(parser: argparse.ArgumentParser) -> None:
    parser.epilog = REPLAY_EXITS
    parser.add_argument("path", metavar="PATH", help="a store")
    text = "name servers of the cluster"
    add_flag(parser, "--to", "nameServer", required=True, metavar="HOST:PORT[;HOST:PORT]", help=text)
    text = "a new or empty folder, or that of an unfinished replay of the same"
    parser.add_argument("--journal", metavar="FOLDER", help=text)
    text = "send nothing; print what would be sent, and what the cluster lacks"
    parser.add_argument("--dry-run", action="store_true", help=text)
    add_topics(parser)
    for name, flag, text in (
        ("sameQueues", "--same-queues", "to the queues with the same ids"),
        ("sendUnknown", "--send-unknown", "send unknown messages again"),
    ):
        add_flag(parser, flag, name, dest=name, action="store_const", const="true", help=text)
    add_json(parser, "the report as one JSON object")
    text = "an option (docs/replay.md), such as messagesPerSecond=1000"
    add_option(parser, text)


def run_replay(args: argparse.Namespace, out: Output) -> int:
    """Send messages, or continue an unfinished replay."""
    from pyspark_dledger.cluster.replay import replay

    options = read_options(args)
    for name in _SWITCHES:
        if (value := getattr(args, name)) is not None:
            set_option(options, name, value, args.flags[name][0])
    try:
        report = replay(
            *(args.path, args.to, args.journal),
            dry_run=args.dry_run,
            progress=out.progress,
            guard=uninterrupted,
            **options,
        )
    except KeyboardInterrupt:
        if args.journal is not None:
            note(f"interrupted: the same command continues the replay in {args.journal}")
        raise
    print_report(out, report, _lines(report), args.json)
    is_clean = report.messages and not (report.first_left_out or report.unknown or report.rejected or report.problems)
    return CLEAN if is_clean else FINDINGS


def _lines(report: ReplayReport) -> Iterator[str]:
    done = "would be sent to" if report.is_dry_run else "acknowledged by"
    yield f"{done} {report.name_server}: {counted(report.messages, 'message')}"
    for queue in report.queues:
        new = "" if queue.new_topic == queue.topic else f", to topic {queue.new_topic}"
        yield printable(f"  {queue.topic}/{queue.queue_id}: {queue.messages}{new}")
    if report.left_out:
        yield f"left out: {counted(sum(report.left_out.values()), 'row')}"
        yield from (f"  {reason}: {count}" for reason, count in report.left_out.items())
        yield from (f"    {printable(place)}" for place in report.first_left_out[:_MAX_SHOWN])
        if len(report.first_left_out) > _MAX_SHOWN:
            yield "    and more; --json lists up to 100"
    if report.lost or not report.lost_is_all:
        least = "" if report.lost_is_all else "at least "
        yield f"lost in damaged places of the log: {least}{counted(report.lost, 'message')}; dledger lost lists them"
    if report.repeated:
        yield f"sent again after a lost response, perhaps twice there: {counted(report.repeated, 'message')}"
    for status, count in report.not_flushed.items():
        yield f"acknowledged with {status}: {counted(count, 'message')}"
    if report.unknown:
        yield f"unknown: {counted(report.unknown, 'message')} were sent without an acknowledgement, and not again"
        yield f"  {report.target}/unknown.jsonl lists them: look for their uniqKeys, or add --send-unknown"
    if report.rejected:
        yield f"rejected: {counted(report.rejected, 'message')} that a broker does not take, see its log"
        yield f"  {report.target}/rejected.jsonl lists them"
    for problem in report.problems:
        yield f"not possible: {problem}"
    if not report.is_dry_run:
        yield f"where each is: {report.target}/offsets-*.jsonl; {report.seconds:.1f} s"
