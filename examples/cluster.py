"""Run a group of three members, append, kill the leader, append again, and read: acknowledged entries remain.

``python examples/cluster.py``: ``dledger cluster`` starts the members on this machine, in a temporary folder.

``python examples/cluster.py GROUP PEERS`` appends to your own group, and kills no member. For example:
``g 'n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911'``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark_dledger as dl

# Followers wait for three missing heartbeats before they elect: with the default of 2000 ms that takes 6 to 11 s.
FAST = ("--set", "heartBeatTimeIntervalMs=300")


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free."""
    for first in range(21000, 31000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError(f"no {count} consecutive ports between 21000 and 31000 are free")


class Group(NamedTuple):
    """A running group: its name, its members' addresses, and their processes."""

    name: str
    peers: str
    processes: dict[str, int]


@contextmanager
def running_group(folder: Path) -> Iterator[Group]:
    """A group of three members that runs until the end of the block."""
    arguments = ("cluster", "--store", str(folder), "--base-port", str(free_ports(3)), "--json", *FAST)
    command = [sys.executable, "-m", "pyspark_dledger", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - the arguments are constants and ports
    try:
        assert process.stdout is not None
        ready, *members = (json.loads(process.stdout.readline()) for _ in range(4))
        yield Group(ready["group"], ready["peers"], {member["id"]: member["pid"] for member in members})
    finally:
        process.terminate()
        process.communicate()


def leader_of(client: dl.Client) -> str:
    """The id of the leader; waits until there is one."""
    while (leader := client.metadata().leader_id) is None:
        time.sleep(0.1)
    return leader


def append(client: dl.Client, text: str) -> int:
    """Append one entry, print its index and position, and return the index. Returns when a majority has the entry."""
    try:
        entry = client.append(text.encode())
    except dl.UnknownOutcomeError:
        # To avoid duplicates, give each entry an id and search for it before a retry.
        print(f"{text!r}: the connection was lost before a response; it is sent again and may be there twice")
        entry = client.append(text.encode())
    print(f"{text!r} is committed: index {entry.index}, pos {entry.pos}, term {entry.term}")
    return entry.index


def show(client: dl.Client, last: int) -> None:
    """Print the last entries up to an index."""
    for index in range(max(last - 2, 0), last + 1):
        entry = client.get(index)
        print(f"index {entry.index}, term {entry.term}: {bytes(entry.body).decode(errors='replace')}")


def try_out() -> None:
    """Start a group, kill its leader, and append again."""
    with tempfile.TemporaryDirectory(prefix="dledger-") as folder, running_group(Path(folder)) as group:
        with dl.connect(group.name, group.peers) as client:
            append(client, "one")
            append(client, "two")
            leader = leader_of(client)
            print(f"{leader} is the leader; kill it")
            os.kill(group.processes[leader], signal.SIGKILL)
            started = time.monotonic()
            last = append(client, "three")
            print(f"{leader_of(client)} is the leader; the append took {time.monotonic() - started:.1f} s")
            show(client, last)
        for store in sorted(Path(folder).glob("dledger-*")):
            state = dl.open_log(store).state
            print(f"{store.name} on disk: entries {state.begin_index} to {state.end_index}, last term {state.end_term}")


def main(arguments: list[str]) -> None:
    """Use the given group, or start one."""
    if len(arguments) not in (0, 2):
        sys.exit("usage: python examples/cluster.py [GROUP PEERS]")
    if not arguments:
        try_out()
        return
    with dl.connect(*arguments) as client:
        append(client, "hello")
        show(client, append(client, "world"))


if __name__ == "__main__":
    main(sys.argv[1:])
