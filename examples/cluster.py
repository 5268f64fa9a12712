"""Run a group of three members, append, kill the leader, append again, and read: nothing acknowledged is lost.

``python examples/cluster.py``: the members are processes of this machine, started by ``dledger cluster``, in a folder
that is removed at the end. With ``python examples/cluster.py GROUP PEERS``, such as
``g 'n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911'``, your own group takes the appends, and nobody is killed.
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
    """The first of so many ports in a row that nobody listens on."""
    for first in range(21000, 31000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError("found no free ports")


class Group(NamedTuple):
    """A group that runs here: its name, its members' addresses, and their processes."""

    name: str
    peers: str
    processes: dict[str, int]


@contextmanager
def running_group(folder: Path) -> Iterator[Group]:
    """A group of three members that runs until the end of the block."""
    arguments = ("cluster", "--store", str(folder), "--base-port", str(free_ports(3)), "--json", *FAST)
    command = [sys.executable, "-m", "pyspark_dledger", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - every word of it is ours
    try:
        assert process.stdout is not None
        ready, *members = (json.loads(process.stdout.readline()) for _ in range(4))
        yield Group(ready["group"], ready["peers"], {member["id"]: member["pid"] for member in members})
    finally:
        process.terminate()
        process.communicate()


def leader_of(client: dl.Client) -> str:
    """Who leads, as soon as somebody does."""
    while (leader := client.metadata().leader_id) is None:
        time.sleep(0.1)
    return leader


def append(client: dl.Client, text: str) -> int:
    """Append one entry, print where it stands, and return its index; the call returns when a majority has it."""
    try:
        entry = client.append(text.encode())
    except dl.UnknownOutcomeError:
        # It was sent and not answered. What must not be there twice carries an id, and is looked for first.
        print(f"{text!r}: the connection was lost before an answer came, so it is appended again, maybe a second time")
        entry = client.append(text.encode())
    print(f"{text!r} is committed: index {entry.index}, pos {entry.pos}, term {entry.term}")
    return entry.index


def show(client: dl.Client, last: int) -> None:
    """Print the last entries up to an index."""
    for index in range(max(last - 2, 0), last + 1):
        entry = client.get(index)
        print(f"index {entry.index}, term {entry.term}: {bytes(entry.body).decode(errors='replace')}")


def try_out() -> None:
    """Start a group, kill its leader, and see that it goes on."""
    with tempfile.TemporaryDirectory(prefix="dledger-") as folder, running_group(Path(folder)) as group:
        with dl.connect(group.name, group.peers) as client:
            append(client, "one")
            append(client, "two")
            leader = leader_of(client)
            print(f"{leader} leads, and is killed")
            os.kill(group.processes[leader], signal.SIGKILL)
            started = time.monotonic()
            last = append(client, "three")
            print(f"{leader_of(client)} leads; the append took {time.monotonic() - started:.1f} s")
            show(client, last)
        for store in sorted(Path(folder).glob("dledger-*")):
            state = dl.open_log(store).state
            print(f"{store.name} on disk: entries {state.begin_index} to {state.end_index}, last term {state.end_term}")


def main(arguments: list[str]) -> None:
    """Use the group that was named, or one that is started for it."""
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
