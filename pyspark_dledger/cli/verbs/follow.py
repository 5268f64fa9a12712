"""``dledger follow``: rows as they are committed, or as they are written."""

from __future__ import annotations

import argparse
import select
import sys
import time
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise

from pyspark_dledger.cli.arguments import REPLICAS, ROW_POSITION, STARTING, add_flag, add_rows, add_stores
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.cli.stores.row_printer import RowPrinter, RowReader
from pyspark_dledger.common.adjacent import merge_adjacent
from pyspark_dledger.common.uris import check_local
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.spec import DLEDGER, TermRun
from pyspark_dledger.log import Log
from pyspark_dledger.log.committed import committed_bound
from pyspark_dledger.log.options import EARLIEST, FOLLOW
from pyspark_dledger.log.tail.tail_view import EntryRef, entry_ref


def add_follow(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, REPLICAS, None)
    add_rows(parser)
    text = f"{ROW_POSITION}; default: latest"
    add_flag(parser, "--from", *STARTING, dest="starting", metavar="POSITION", help=text)
    text = "up to the end of the log, which may still be truncated"
    parser.add_argument("--uncommitted", action="store_true", help=text)
    text = "seconds between two reads of the store; default 1"
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help=text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 86400, found {text}")
    return seconds


def run_follow(args: argparse.Namespace, out: Output) -> int:
    """Print rows until interrupted."""
    check_local(args.path, "to follow")
    log = open_store(args, FOLLOW)
    tail = _Tail(args, RowPrinter(args, out, log))
    while True:
        tail.print_new(log)
        out.flush()
        _wait(args.interval)
        log = log.refreshed()


def _wait(seconds: float) -> None:
    """Sleeps. Raises BrokenPipeError as soon as the output's reader is gone; a write would raise it much later."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)  # errors and hang-ups only
    except (OSError, ValueError, AttributeError):
        time.sleep(seconds)  # not a file, as in a test
        return
    if any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(seconds * 1000)):
        raise BrokenPipeError


class _Tail:
    """How far a growing log was printed, and the terms and the last entry of that part, which show a rewrite."""

    def __init__(self, args: argparse.Namespace, printer: RowPrinter) -> None:
        self._printer = printer
        self._uncommitted = args.uncommitted
        self._from = args.starting
        self._next: int | None = None
        self._runs: list[TermRun] = []
        self._last: EntryRef | None = None
        self._has_waited = False

    def print_new(self, log: Log) -> None:
        """Print the rows after the printed ones."""
        end = self._end(log)
        if end is None:
            return
        if self._next is None:
            start = end if self._from in (None, "latest") else 0
            # Remember the last segment's terms, so that a truncation is noticed from the first entry on.
            self._remember(log, min(start, _segment_before(log, end)), end)
        else:
            log.options = replace(log.options, starting_offsets=EARLIEST)
            start = self._still_valid(log, self._next)
            self._remember(log, start, end)
        if start < end:
            for batch in RowReader(log, self._printer.columns).between(start, end):
                self._printer.print(batch)
        self._next = max(start, end)

    def _end(self, log: Log) -> int | None:
        """The end of the rows to print; None where it is not known yet."""
        if self._uncommitted or not log.ledger_segments:
            return log.max_offset
        bound = committed_bound(log, log.options)
        if bound.index is not None:
            return log.position_of(bound.index + 1)
        reason = f"{log.path}: expected a committed index, found none ({bound.reason})"
        if log.dialect == "0.4":
            raise StoreError(f"{reason}: DLedger 0.4.0 keeps it in memory only: use --uncommitted")
        if not self._has_waited:
            note(f"{reason}: waiting for it; --uncommitted does not wait")
            self._has_waited = True
        return None

    def _still_valid(self, log: Log, position: int) -> int:
        """`position`, or where the log differs from what was printed, or where it begins. Notes a difference."""
        first = log.min_offset
        if position < first:
            note(f"{log.path}: positions {position} to {first - 1} were deleted before they were printed")
            return first
        if not self._runs or _entry(log, _last_index(self._runs)) == self._last:
            return position
        rewritten = _first_difference(self._runs, log)
        if rewritten is None:
            index = _last_index(self._runs)
            note(
                f"{log.path}: the entry of index {index}, and perhaps earlier ones, was overwritten in the same term: "
                "continuing after it"
            )
            return log.position_of(index + 1)
        index, pos = rewritten
        self._runs = _before(self._runs, index)
        note(f"{log.path}: the log was truncated: the printed entries from index {index} on are no longer in it")
        return pos

    def _remember(self, log: Log, start: int, end: int) -> None:
        runs = list(self._runs)
        for segment in log.ledger_segments:
            low, high = max(segment.base, start), min(log.segment_end(segment), end)
            if low < high:
                runs += log.engine.term_runs(segment, low, high)
        self._runs = list(merge_adjacent(runs, TermRun.joined))
        if self._runs:
            self._last = _entry(log, _last_index(self._runs))


def _segment_before(log: Log, pos: int) -> int:
    """The base of the last DLedger segment that begins before `pos`."""
    return max((segment.base for segment in log.ledger_segments if segment.base < pos), default=pos)


def _last_index(runs: list[TermRun]) -> int:
    return runs[-1].index + runs[-1].entries - 1


def _term_at(runs: list[TermRun], index: int) -> int | None:
    number = bisect_right(runs, index, key=lambda run: run.index) - 1
    return runs[number].term if number >= 0 and index <= _last_index(runs) else None


def _entry(log: Log, index: int) -> EntryRef | None:
    """The entry of that index, with the CRC of its bytes."""
    return entry_ref(log, DLEDGER, log.position_of(index))


def _first_difference(runs: list[TermRun], log: Log) -> tuple[int, int] | None:
    """Index and position of the first entry of `runs` that the log lacks or has in another term."""
    new = log.term_runs()
    first = max(runs[0].index, new[0].index if new else 0)
    places = sorted({run.index for run in (*runs, *new)} | {_last_index(runs) + 1, log.end.last_index + 1})
    for index, _ in pairwise(places):
        if index >= first and _term_at(runs, index) not in (None, _term_at(new, index)):
            return index, log.position_of(index)
    return None


def _before(runs: list[TermRun], index: int) -> list[TermRun]:
    """The part of `runs` below `index`."""
    kept = [run for run in runs if run.index < index]
    if kept and _last_index(kept) >= index:
        kept[-1] = kept[-1]._replace(entries=index - kept[-1].index)
    return kept
