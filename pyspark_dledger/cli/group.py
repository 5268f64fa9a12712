"""``append``, ``get``, ``metadata``, ``transfer``: what a client asks of a running group."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.output import (
    Output,
    Row,
    body_form,
    note,
    print_fields,
    print_table,
    text_line,
)
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError, UnknownOutcomeError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.client import Appended, BatchResult, Client, PartialAppendError, connect
from pyspark_dledger.raft.tls import Tls

# Bodies of lines that are appended, and then printed, together.
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_COUNT = 100_000
# More of a client's calls than this side by side gain nothing.
_MOST_ASKED = 16


@dataclass
class _Done:
    """How far an append has come: entries that are in the log, and those that were sent, or are about to be."""

    appended: int = 0
    last_index: int = -1
    under_way: int = 0

    def __str__(self) -> str:
        return f"{self.appended} entries were appended" + (f", up to index {self.last_index}" if self.appended else "")


def append(given: argparse.Namespace, out: Output) -> int:
    """Append entries in their order; each is printed when it is committed."""
    done = _Done()
    with _connected(given) as client:
        try:
            for bodies in _batches(_bodies(given)):
                done.under_way = len(bodies)
                if not _append_batch(client, bodies, done, out, given.json):
                    return FINDINGS
        except KeyboardInterrupt:
            open_ones = f"; {done.under_way} more may be in the log, now or later, or never" if done.under_way else ""
            _tell(f"interrupted: {done}{open_ones}")
            raise
    return CLEAN


def _append_batch(client: Client, bodies: list[bytes], done: _Done, out: Output, as_json: bool) -> bool:
    """Whether it is appended and printed, and more may follow; if not, says why."""
    problem: PartialAppendError | None = None
    try:
        appended = client.append_batch(bodies)
    except PartialAppendError as error:
        appended, problem = cast(BatchResult, error.acknowledged), error
    except ValueError as error:
        raise OptionError(str(error)) from None
    done.under_way = 0
    is_printed = True
    if len(appended):
        done.appended += len(appended)
        done.last_index = appended.last_index
        try:
            _print_appended(out, appended, as_json)
            out.flush()
        except OSError as error:
            is_printed = False
            _tell(f"the output: {error.strerror or error}: {done}, and not all of them printed; no more were sent")
    if problem is not None:
        _tell(str(problem))
    return is_printed and problem is None


def get(given: argparse.Namespace, out: Output) -> int:
    """Print one committed entry."""
    form = given.body or ("base64" if given.json else "text")
    with _connected(given) as client:
        try:
            entry = client.get(given.index)
        except IndexRangeError as error:
            note(str(error))
            return FINDINGS
    row: Row = {"index": entry.index, "term": entry.term, "pos": entry.pos, "magic": entry.magic}
    if form != "none":
        row["body"] = body_form(form, given.json)(entry.body)
    out.line(json_line(row) if given.json else text_line(row))
    return CLEAN


def metadata(given: argparse.Namespace, out: Output) -> int:
    """Print who leads, and how each member stands, as far as it tells."""
    with _connected(given) as client:
        found = client.metadata()
        with ThreadPoolExecutor(_MOST_ASKED) as threads:
            members = list(threads.map(lambda peer: _member(client, *peer), sorted(found.peers.items())))
    row: Row = {"group": found.group, "leaderId": found.leader_id}
    if given.json:
        out.line(json_line({**row, "peers": found.peers, "members": members}))
    else:
        print_fields(out, row)
        print_table(out, members)
    return CLEAN


def transfer(given: argparse.Namespace, out: Output) -> int:
    """Make a member the leader."""
    with _connected(given) as client:
        try:
            client.transfer(given.to)
        except UnknownOutcomeError as error:
            _tell(str(error))
            return FINDINGS
        except KeyboardInterrupt:
            _tell(f"interrupted: {given.to} may lead, now or later, or never: look with metadata")
            raise
    row: Row = {"group": given.group, "leaderId": given.to}
    try:
        out.line(json_line(row) if given.json else text_line(row))
        out.flush()
    except OSError as error:
        _tell(f"the output: {error.strerror or error}: {given.to} leads, but that was not printed")
        return FINDINGS
    return CLEAN


def _connected(given: argparse.Namespace) -> Client:
    files = (given.tls_cert, given.tls_key, given.tls_ca)
    if any(files) and not all(files):
        raise OptionError("tls: expected --tls-cert, --tls-key and --tls-ca together, found one or two of them")
    tls = Tls(*map(Path, files)) if all(files) else None
    return connect(given.group, given.peers, tls=tls, timeout_ms=given.timeout_ms, max_retries=given.max_retries)


def _bodies(given: argparse.Namespace) -> Iterator[bytes]:
    """Those of the command line, then those of the file."""
    if not given.bodies and given.file is None:
        raise OptionError("expected bodies to append, or --file, found neither")
    if given.lines and given.file is None:
        raise OptionError("--lines: expected --file, whose lines are meant, found none")
    yield from map(os.fsencode, given.bodies)
    if given.file is not None:
        with sys.stdin.buffer if given.file == "-" else Path(given.file).open("rb") as file:
            if given.lines:
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
        row: Row = {"index": each.index, "pos": each.pos, "term": each.term}
        out.line(json_line(row) if as_json else text_line(row))


def _tell(text: str) -> None:
    """A note on an outcome, which stays what it is if nobody can be told."""
    with suppress(OSError):
        note(text)


def _member(client: Client, node_id: str, address: str) -> Row:
    """How a member stands; without more than its address where it is Java's, or is not reached."""
    row: Row = {"id": node_id, "address": address, "role": None, "term": None}
    row |= {"beginIndex": None, "endIndex": None, "committedIndex": None, "problem": None}
    try:
        status = client.status(node_id)
    except GroupError as error:
        return {**row, "problem": str(error)}
    row |= {"role": status.role.value, "term": status.term, "beginIndex": status.begin_index}
    row |= {"endIndex": status.end_index, "committedIndex": status.committed_index}
    return {**row, "problem": status.problem or None}
