"""Messages that our leader checks, numbers and deduplicates, compared with appending the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pyspark_dledger as dl
from benchmarks.generate import new_folder
from benchmarks.measure import Result, meanwhile, rounded
from benchmarks.message_load import encoded, wait_for_leader
from benchmarks.peers import Process
from benchmarks.replication import GROUP, LEAK, Side, acknowledged, free_ports, in_turns, pause, resume
from benchmarks.tail import rows_behind, tail_of
from benchmarks.tailing import TIME, delays, latency_result

SIZE = 1024
COUNT = 100_000  # a round: half a second or a second
GOAL = 0.8


class Nodes:
    """A group of our nodes, each a process with its own folder, and the process of a writer."""

    def __init__(self, folder: Path, count: int, flush: str, *flags: str) -> None:
        ports = free_ports(count)
        self.peers = peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        with ExitStack() as stack:
            processes = [stack.enter_context(_node(folder, f"n{n}", peers, flush, flags)) for n in range(count)]
            self._writer = Process([sys.executable, "-m", "benchmarks.message_load", GROUP, peers])
            stack.callback(self._writer.close)
            self._stack = stack.pop_all()
        self.pids = [*(process.pid for process in processes), self._writer.pid]
        pause(self.pids)

    def send(self, how: str) -> dict[str, float]:
        return acknowledged(COUNT, self._writer.ask(f"{how} {COUNT} {SIZE}"))

    def close(self) -> None:
        resume(self.pids)
        self._stack.close()


@contextmanager
def _node(folder: Path, node: str, peers: str, flush: str, flags: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    command = ("serve", "--group", GROUP, "--id", node, "--peers", peers, "--store", str(folder / node))
    settings = ("--flush", flush, "--set", f"maxHeartBeatLeak={LEAK}")
    with (folder / f"{node}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_dledger", *command, *settings, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def put_messages(name: str, count: int, flush: str) -> Result:
    """Two groups, one of which serves messages: the leader's work and the members' queues make the difference."""
    with (
        new_folder("messages/put") as served,
        new_folder("messages/append") as plain,
        closing(Nodes(served, count, flush, "--messages")) as by_put,
        closing(Nodes(plain, count, flush)) as by_append,
    ):
        sides = {
            "put": Side(by_put.pids, partial(by_put.send, "put")),
            "append": Side(by_append.pids, partial(by_append.send, "append")),
        }
        seconds = in_turns(sides, "seconds")
    rates = {how: COUNT / taken for how, taken in seconds.items()}
    detail = {"flush": flush, "bodiesMBps": rounded(rates["put"] * SIZE / 1e6)}
    result = Result(name, rates["put"], "messages/s", "append_batch of the same bytes", rates["append"], detail=detail)
    return result.with_ratio_goal(GOAL)


def queue_latency(name: str) -> Result:
    """The time from a put to its row in a tail by path, without Spark.

    The first rows do not count: they waited for a leader.
    """
    with new_folder("messages/latency") as folder, closing(Nodes(folder, 1, "sync", "--messages")) as nodes:
        resume(nodes.pids)
        with meanwhile(partial(put_times, nodes.peers)):
            tail = tail_of(folder / "n0")
            taken = delays(tail, partial(rows_behind, tail))
    return latency_result(name, taken, 150)


def put_times(peers: str, done: threading.Event) -> None:
    """Puts a message every few milliseconds, which contains the time of the put."""
    with dl.connect(GROUP, peers) as client:
        wait_for_leader(client)
        while not done.wait(0.002):
            client.put_messages(encoded([TIME.pack(time.time()) + b"x" * (SIZE - TIME.size)]))


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "put-messages-one-node": partial(put_messages, count=1, flush="sync"),
    "put-messages-three-nodes": partial(put_messages, count=3, flush="async"),
    "tail-latency-queues": queue_latency,
}
