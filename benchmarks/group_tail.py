"""The tail of a live group: what a trigger with nothing new costs, and how long an append takes to become a row."""

from __future__ import annotations

import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyspark_dledger as dl
from benchmarks.generate import new_folder
from benchmarks.measure import Result, rounded
from benchmarks.replication import GROUP, Ours
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.tail import NO_LIMITS, NOTHING, TailOffset, stream_options
from pyspark_dledger.spark.group_log import GroupAddress
from pyspark_dledger.spark.group_read import read_group_partition
from pyspark_dledger.spark.group_tail import GroupTail

LOOKS = 500
ENTRIES, SIZE = 200_000, 1024
SECONDS = 20.0
TRIGGER = 0.1
_TIME = struct.Struct(">d")


@contextmanager
def group_of_three(name: str) -> Iterator[str]:
    """A group of processes, and its peers."""
    with new_folder(name) as folder, closing(Ours(Path(folder), "async")) as group:
        deadline = time.monotonic() + 30
        while True:
            try:
                with dl.connect(group=GROUP, peers=group.peers) as client:
                    client.append(b"first")
                break
            except DLedgerError:
                if time.monotonic() > deadline:
                    raise
        yield group.peers


def tail_of(peers: str) -> GroupTail:
    given = {"group": GROUP, "peers": peers}
    return GroupTail(GroupAddress(GROUP, peers), stream_options(parse_options(given), given), ("index", "body"))


def idle_seconds(peers: str) -> float:
    """The median of a trigger with nothing new, as Spark makes it: where it ends, and how far the log is."""
    with closing(tail_of(peers)) as tail:
        end = tail.latest(NOTHING, NO_LIMITS)
        taken = []
        for _ in range(LOOKS):
            start = time.perf_counter()
            if tail.latest(end, NO_LIMITS) != end:
                raise AssertionError("expected nothing new")
            tail.progress()
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def idle(name: str) -> Result:
    """Against the same group with next to nothing in its log."""
    with group_of_three(name) as peers:
        peer = idle_seconds(peers)
        with dl.connect(group=GROUP, peers=peers) as client:
            for _ in range(10):
                client.append_batch([b"x" * SIZE] * (ENTRIES // 10))
        value = idle_seconds(peers)
    detail = {"logBytes": ENTRIES * (SIZE + 48), "looks": LOOKS}
    return Result(name, value * 1e3, "ms", "a log of 1 entry", peer * 1e3, detail=detail).with_most(20)


def append(peers: str, done: threading.Event) -> None:
    """Appends an entry every few milliseconds, with the time at which it was handed over in it."""
    with dl.connect(group=GROUP, peers=peers) as client:
        while not done.wait(0.002):
            client.append(_TIME.pack(time.time()) + b"x" * (SIZE - _TIME.size))


def bodies_behind(tail: GroupTail, start: TailOffset, end: TailOffset) -> Iterator[bytes]:
    for part in tail.plan(start, end):
        for batch in read_group_partition(part):
            yield from batch.column(1).to_pylist()


def latency(name: str) -> Result:
    """From before an append, which its acknowledgement follows, to its row; without Spark, a trigger every 100 ms."""
    with group_of_three(name) as peers, closing(tail_of(peers)) as tail:
        start = tail.latest(NOTHING, NO_LIMITS)
        delays: list[float] = []
        done = threading.Event()
        writer = threading.Thread(target=append, args=(peers, done))
        writer.start()
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(TRIGGER)
            end = tail.latest(start, NO_LIMITS)
            bodies = list(bodies_behind(tail, start, end))
            delays += [time.time() - _TIME.unpack_from(body)[0] for body in bodies]
            start = end
        done.set()
        writer.join()
    worst = statistics.quantiles(delays, n=100)[98]
    detail = {"triggerMs": TRIGGER * 1e3, "rows": len(delays), "medianMs": rounded(statistics.median(delays) * 1e3)}
    return Result(name, worst * 1e3, "ms at most for 99 %", detail=detail).with_most(TRIGGER * 1e3 + 150)


BENCHMARKS: dict[str, Callable[[str], Result]] = {"group-tail-idle": idle, "group-tail-latency": latency}
