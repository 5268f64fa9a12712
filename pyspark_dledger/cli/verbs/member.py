"""``dledger member``: prints the members of a group, or adds, removes or replaces one."""

from __future__ import annotations

import argparse
import time

from pyspark_dledger.cli.arguments import add_client, natural
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.group import connected, note_outcome
from pyspark_dledger.cli.output.rows import Row, print_fields, print_table
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.errors import GroupError, OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.client import Client, GroupMembers
from pyspark_dledger.raft.peers import parse_peers

_WAIT_SECONDS = 600
_POLL_SECONDS = 0.3
_ARGUMENTS = {"list": 0, "add": 1, "remove": 1, "replace": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("action", choices=tuple(_ARGUMENTS), help="list changes nothing")
    text = "add ID-HOST:PORT, remove ID, replace ID ID-HOST:PORT"
    parser.add_argument("members", nargs="*", metavar="MEMBER", help=text)
    text = f"seconds to wait for the change (default {_WAIT_SECONDS})"
    parser.add_argument("--wait", type=natural, default=_WAIT_SECONDS, metavar="N", help=text)


def run(args: argparse.Namespace, out: Output) -> int:
    expected = _ARGUMENTS[args.action]
    if len(args.members) != expected:
        raise OptionError(f"member {args.action}: expected {expected} members, found {len(args.members)}")
    with connected(args) as client:
        found = _change(client, args.action, args.members)
        if args.action != "list":
            found = _final(client, found, args.wait)
    _print(found, args.group, out, is_json=args.json)
    if args.action == "list" or found.is_final:
        return CLEAN
    note_outcome("the change is not complete yet: the leader continues it; look again with dledger member list")
    return FINDINGS


def _change(client: Client, action: str, members: list[str]) -> GroupMembers:
    if action == "list":
        return client.members()
    if action == "remove":
        return client.remove_member(members[0])
    ((new_id, address),) = parse_peers(members[-1]).items()
    if action == "add":
        return client.add_member(new_id, str(address))
    return client.replace_member(members[0], new_id, str(address))


def _final(client: Client, found: GroupMembers, seconds: int) -> GroupMembers:
    """The members when the change is complete, or after that time."""
    deadline = time.monotonic() + seconds
    while not found.is_final and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        try:
            found = client.members()
        except GroupError as error:
            # The leader may have removed itself.
            note(str(error))
    return found


def _print(found: GroupMembers, group: str, out: Output, *, is_json: bool) -> None:
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
