"""``dledger append``: appends entries to a group's log."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pyspark_dledger.cli.arguments import add_client
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.group import connected, note_outcome
from pyspark_dledger.cli.output.rows import row_line
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.client import Appended, BatchResult, Client, PartialAppendError

# Entries are appended and printed in batches.
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_COUNT = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("bodies", nargs="*", metavar="BODY", help="the body of an entry")
    text = "its bytes are the body of another entry, the last one; - is standard input"
    parser.add_argument("--file", metavar="FILE", help=text)
    text = "each line of the file is an entry, without its line end"
    parser.add_argument("--lines", action="store_true", help=text)


@dataclass
class _Progress:
    """Entries that are in the log, and entries that were sent or are about to be."""

    appended: int = 0
    last_index: int = -1
    in_flight: int = 0

    def __str__(self) -> str:
        return f"{self.appended} entries were appended" + (f", up to index {self.last_index}" if self.appended else "")


def run(args: argparse.Namespace, out: Output) -> int:
    """Append entries in order; print each when it is committed."""
    done = _Progress()
    with connected(args) as client:
        try:
            for bodies in _batches(_bodies(args)):
                done.in_flight = len(bodies)
                if not _append_batch(client, bodies, done, out, args.json):
                    return FINDINGS
        except KeyboardInterrupt:
            unknown = f"; {done.in_flight} more may be in the log, now or later, or never" if done.in_flight else ""
            note_outcome(f"interrupted: {done}{unknown}")
            raise
    return CLEAN


def _append_batch(client: Client, bodies: list[bytes], done: _Progress, out: Output, as_json: bool) -> bool:
    """Append and print a batch; returns whether it succeeded. Notes why not."""
    problem: PartialAppendError | None = None
    try:
        appended = client.append_batch(bodies)
    except PartialAppendError as error:
        appended, problem = cast("BatchResult", error.acknowledged), error
    except ValueError as error:
        raise OptionError(str(error)) from None
    done.in_flight = 0
    is_printed = True
    if len(appended):
        done.appended += len(appended)
        done.last_index = appended.last_index
        try:
            _print_appended(out, appended, as_json)
            out.flush()
        except OSError as error:
            is_printed, reason = False, error.strerror or error
            note_outcome(f"the output: {reason}: {done}, and not all of them printed; no more were sent")
    if problem is not None:
        note_outcome(str(problem))
    return is_printed and problem is None


def _bodies(args: argparse.Namespace) -> Iterator[bytes]:
    """The bodies of the command line, then those of the file."""
    if not args.bodies and args.file is None:
        raise OptionError("expected bodies to append, or --file, found neither")
    if args.lines and args.file is None:
        raise OptionError("--lines needs --file, whose lines it means")
    yield from map(os.fsencode, args.bodies)
    if args.file is not None:
        with sys.stdin.buffer if args.file == "-" else Path(args.file).open("rb") as file:
            if args.lines:
                yield from (line.removesuffix(b"\n").removesuffix(b"\r") for line in file)
            else:
                yield file.read()


def _batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        batch.append(body)
        size += len(body)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_COUNT:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _print_appended(out: Output, appended: Iterable[Appended], as_json: bool) -> None:
    for each in appended:
        row = {"index": each.index, "pos": each.pos, "term": each.term}
        out.line(row_line(row, as_json))
