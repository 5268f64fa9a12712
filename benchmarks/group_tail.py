"""The tail of a live group: the time of a trigger without new rows, and from an append to its row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pyspark_dledger as dl
from benchmarks.generate import new_folder
from benchmarks.measure import Result, meanwhile
from benchmarks.message_load import wait_for_leader
from benchmarks.replication import GROUP, Ours
from benchmarks.tailing import LOOKS, TIME, delays, idle_seconds, latency_result
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.tail.tail import TailOffset, stream_options
from pyspark_dledger.spark.group.group_address import GroupAddress
from pyspark_dledger.spark.group.group_partition import read_group_partition
from pyspark_dledger.spark.stream.group_tail import GroupTail

ENTRIES, SIZE = 200_000, 1024


@contextmanager
def group_of_three(name: str) -> Iterator[str]:
    """A group of processes, and its peers."""
    with new_folder(name) as folder, closing(Ours(Path(folder), "async")) as group:
        with dl.connect(group=GROUP, peers=group.peers) as client:
            wait_for_leader(client)
            client.append(b"first")
        yield group.peers


def tail_of(peers: str) -> GroupTail:
    given = {"group": GROUP, "peers": peers}
    return GroupTail(GroupAddress(GROUP, peers), stream_options(parse_options(given), given), ("index", "body"))


def idle_look(peers: str) -> float:
    with closing(tail_of(peers)) as tail:
        return idle_seconds(tail)


def idle(name: str) -> Result:
    """Compared with the same group and a nearly empty log."""
    with group_of_three(name) as peers:
        peer = idle_look(peers)
        with dl.connect(group=GROUP, peers=peers) as client:
            for _ in range(10):
                client.append_batch([b"x" * SIZE] * (ENTRIES // 10))
        value = idle_look(peers)
    detail = {"logBytes": ENTRIES * (SIZE + 48), "looks": LOOKS}
    return Result(name, value * 1e3, "ms", "a log of 1 entry", peer * 1e3, detail=detail).with_most(20)


def append(peers: str, done: threading.Event) -> None:
    """Appends an entry every few milliseconds, which contains the time of the append."""
    with dl.connect(group=GROUP, peers=peers) as client:
        while not done.wait(0.002):
            client.append(TIME.pack(time.time()) + b"x" * (SIZE - TIME.size))


def bodies_behind(tail: GroupTail, start: TailOffset, end: TailOffset) -> Iterator[bytes]:
    for part in tail.plan(start, end):
        for batch in read_group_partition(part):
            yield from batch.column(1).to_pylist()


def latency(name: str) -> Result:
    """The time from an append to its row, without Spark, with a trigger every 100 ms."""
    with group_of_three(name) as peers, closing(tail_of(peers)) as tail, meanwhile(partial(append, peers)):
        taken = delays(tail, partial(bodies_behind, tail))
    return latency_result(name, taken, 150)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"group-tail-idle": idle, "group-tail-latency": latency}
