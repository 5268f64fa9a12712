"""``dledger append``, ``get``, ``metadata``, ``transfer`` and ``member``: the verbs of a client of a running group."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pyspark_dledger.cli.arguments import add_body, add_client, natural
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, body_form, print_fields, print_table, row_line
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError, UnknownOutcomeError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.client import Appended, BatchResult, Client, GroupMembers, PartialAppendError, connect
from pyspark_dledger.raft.peers import parse_address
from pyspark_dledger.raft.secret import read_secret
from pyspark_dledger.raft.tls import Tls

# Entries are appended and printed in batches.
_BATCH_BYTES = 16 * 1024 * 1024
_BATCH_COUNT = 100_000


def connected(args: argparse.Namespace) -> Client:
    """A client of the group that the arguments name."""
    files = (args.tls_cert, args.tls_key, args.tls_ca)
    if any(files) and not all(files):
        raise OptionError("expected --tls-cert, --tls-key and --tls-ca together, found one or two of them")
    tls = Tls(*map(Path, files)) if all(files) else None
    secret = read_secret(Path(args.secret_file), "secretFile") if args.secret_file else None
    limits = {"timeout_ms": args.timeout_ms, "max_retries": args.max_retries}
    return connect(args.group, args.peers, tls=tls, secret=secret, **limits)


def note_outcome(text: str) -> None:
    """Print an outcome to standard error. An error in printing changes nothing."""
    with suppress(OSError):
        note(text)


def add_append(parser: argparse.ArgumentParser) -> None:
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


def run_append(args: argparse.Namespace, out: Output) -> int:
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


def add_get(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--index", type=natural, required=True, metavar="N", help="the entry's index")
    add_body(parser, "the body")


def run_get(args: argparse.Namespace, out: Output) -> int:
    form = args.body or ("base64" if args.json else "text")
    with connected(args) as client:
        try:
            entry = client.get(args.index)
        except IndexRangeError as error:
            note(str(error))
            return FINDINGS
    row: Row = {"index": entry.index, "term": entry.term, "pos": entry.pos, "magic": entry.magic}
    if entry.channel:
        row["channel"] = entry.channel
    if form != "none":
        row["body"] = body_form(form, args.json)(entry.body)
    out.line(row_line(row, args.json))
    return CLEAN


# More concurrent calls of a client gain nothing.
_MAX_CALLS = 16


def add_metadata(parser: argparse.ArgumentParser) -> None:
    add_client(parser)


def run_metadata(args: argparse.Namespace, out: Output) -> int:
    with connected(args) as client:
        found = client.metadata()
        with ThreadPoolExecutor(_MAX_CALLS) as threads:
            members = list(threads.map(lambda peer: _status_row(client, *peer), sorted(found.peers.items())))
    row: Row = {"group": found.group, "leaderId": found.leader_id}
    if args.json:
        out.line(json_line({**row, "peers": found.peers, "members": members}))
    else:
        print_fields(out, row)
        print_table(out, members)
    return CLEAN


def _status_row(client: Client, node_id: str, address: str) -> Row:
    """The state of a member; only its address where it is Java's or cannot be reached."""
    row: Row = {"id": node_id, "address": address, "role": None, "term": None}
    row |= {"beginIndex": None, "endIndex": None, "committedIndex": None, "problem": None}
    try:
        status = client.status(node_id)
    except GroupError as error:
        return {**row, "problem": str(error)}
    row |= {"role": status.role.value, "term": status.term, "beginIndex": status.begin_index}
    row |= {"endIndex": status.end_index, "committedIndex": status.committed_index}
    return {**row, "problem": status.problem or None}


def add_transfer(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--to", required=True, metavar="ID", help="the member that becomes the leader")


def run_transfer(args: argparse.Namespace, out: Output) -> int:
    with connected(args) as client:
        try:
            client.transfer(args.to)
        except UnknownOutcomeError as error:
            note_outcome(str(error))
            return FINDINGS
        except KeyboardInterrupt:
            note_outcome(
                f"interrupted: {args.to} may become the leader, now or later, or never: check with dledger metadata"
            )
            raise
    row = {"group": args.group, "leaderId": args.to}
    try:
        out.line(row_line(row, args.json))
        out.flush()
    except OSError as error:
        note_outcome(f"the output: {error.strerror or error}: {args.to} leads, but this was not printed")
        return FINDINGS
    return CLEAN


_WAIT_SECONDS = 600
_POLL_SECONDS = 0.3
_MEMBER_ARGUMENTS = {"list": "", "add": "ID-HOST:PORT", "remove": "ID", "replace": "ID ID-HOST:PORT"}


def add_member(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "action", choices=tuple(_MEMBER_ARGUMENTS), help="list changes nothing, others need the secret of members"
    )
    text = ", ".join(f"{action} {form}" for action, form in _MEMBER_ARGUMENTS.items() if form)
    parser.add_argument("members", nargs="*", metavar="MEMBER", help=text)
    text = f"seconds to wait for the change (default {_WAIT_SECONDS})"
    parser.add_argument("--wait", type=natural, default=_WAIT_SECONDS, metavar="N", help=text)


def run_member(args: argparse.Namespace, out: Output) -> int:
    _check_form(args.action, args.members)
    with connected(args) as client:
        found = _change(client, args.action, args.members)
        if args.action != "list":
            found = _final(client, found, args.wait)
    _print_members(found, args.group, out, is_json=args.json)
    if args.action == "list" or found.is_final:
        return CLEAN
    way_back = "" if args.action == "remove" else ", or remove the new member to give it up"
    note_outcome(
        f"the change is not complete yet: the leader continues it; look again with dledger member list{way_back}"
    )
    return FINDINGS


def _check_form(action: str, members: list[str]) -> None:
    form = _MEMBER_ARGUMENTS[action]
    if len(members) != len(form.split()) or ("-" in form and "-" not in members[-1]):
        found = " ".join(members) or "nothing"
        example = ", such as n3-10.0.0.4:20911 for a new member" if "-" in form else ""
        raise OptionError(f"member {action}: expected {form or 'nothing'}{example}, found {found}")


def _change(client: Client, action: str, members: list[str]) -> GroupMembers:
    if action == "list":
        return client.members()
    if action == "remove":
        return client.remove_member(members[0])
    new_id, _, text = members[-1].partition("-")
    address = str(parse_address(text, f"member {action}: {new_id}"))
    if action == "add":
        return client.add_member(new_id, address)
    return client.replace_member(members[0], new_id, address)


def _final(client: Client, found: GroupMembers, seconds: int) -> GroupMembers:
    """The members when the change is complete, or after that time. Notes once what keeps it from that."""
    deadline, noted = time.monotonic() + seconds, ""
    while not found.is_final and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        try:
            found = client.members()
            reason = next(filter(None, (_problem_of(client, each, found) for each in found.learners)), "")
        except GroupError as error:
            # The leader may have removed itself.
            reason = str(error)
        if reason not in ("", noted):
            note(reason)
            noted = reason
    return found


def _problem_of(client: Client, learner: str, group: GroupMembers) -> str:
    """Why a new member gets no entries, as far as it is seen from here. Raises GroupError if it does not respond."""
    leader = client.status(learner).leader_id
    if leader in (None, *group.voters):
        return ""
    return f"{learner} follows {leader}, so it is of another group: start it with an empty disk, --join and these peers"


def _print_members(found: GroupMembers, group: str, out: Output, *, is_json: bool) -> None:
    row: Row = {"group": group, "index": found.index, "committed": found.is_committed, "leaving": found.leaving or None}
    members: list[Row] = [
        {"id": node_id, "address": address, "voter": node_id in found.voters}
        for node_id, address in sorted({**found.voters, **found.learners}.items())
    ]
    if is_json:
        out.line(json_line({**row, "members": members}))
    else:
        print_fields(out, row)
        print_table(out, members)
