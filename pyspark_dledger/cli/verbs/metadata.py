"""``dledger metadata``: prints the leader and the state of each member."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

from pyspark_dledger.cli.arguments import add_client
from pyspark_dledger.cli.exit_codes import CLEAN
from pyspark_dledger.cli.group import connected
from pyspark_dledger.cli.output.rows import Row, print_fields, print_table
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.errors import GroupError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.client import Client

# More concurrent calls of a client gain nothing.
_MAX_CALLS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    with connected(args) as client:
        found = client.metadata()
        with ThreadPoolExecutor(_MAX_CALLS) as threads:
            members = list(threads.map(lambda peer: _member(client, *peer), sorted(found.peers.items())))
    row: Row = {"group": found.group, "leaderId": found.leader_id}
    if args.json:
        out.line(json_line({**row, "peers": found.peers, "members": members}))
    else:
        print_fields(out, row)
        print_table(out, members)
    return CLEAN


def _member(client: Client, node_id: str, address: str) -> Row:
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
