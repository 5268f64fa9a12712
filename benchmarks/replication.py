"""Appends to groups of three nodes, ours and Java's, and a follower that catches up."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyspark_dledger as dl
from benchmarks.generate import new_folder
from benchmarks.measure import PeerMissing, Result, alternate, rounded, touch_memory
from benchmarks.peers import Process, java_command
from pyspark_dledger.errors import GroupError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE

GROUP = "bench"
NODES = ("n0", "n1", "n2")
FLUSHES = ("async", "sync")
ROUNDS = 5
WARM_UPS = 2  # rounds until Java's compiler is done
# The fastest of the settings that were tried, and of the garbage collectors.
JAVA_OPTIONS = ("-Xms4g", "-Xmx4g", "-XX:+AlwaysPreTouch", "-XX:+UseParallelGC")
# A group that is stopped while others are measured must keep its leader.
LEAK = 10_000
JAVA_SETTINGS = ("EnableBatchPush=true", "MaxBatchPushSize=65536", f"MaxHeartBeatLeak={LEAK}")
JAVA_IN_FLIGHT = {1024: 2000, 128: 4000}
JAVA_THREADS = 64
# Appends a round: about 1 s for ours, 2 or 3 s for Java's.
COUNTS = {1024: 200_000, 128: 1_000_000}
JAVA_COUNTS = {1024: 100_000, 128: 500_000}
SINGLE_COUNT = 40_000
ROUND_BYTES = 1 << 30
# Appended before a round, to groups that were stopped.
WAKING = 100
BEHIND = 1 << 30


def free_ports(count: int) -> list[int]:
    """Ports below those of outgoing connections, which could take the port of a restarting node."""
    ports: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            break
    return ports


class Java:
    """A Java group in one process, with appends through handleAppend in that process."""

    def __init__(self, path: Path) -> None:
        ports = free_ports(len(NODES))
        self.peers = ";".join(f"{node}-127.0.0.1:{port}" for node, port in zip(NODES, ports, strict=True))
        words = (str(path), *map(str, ports), *JAVA_SETTINGS)
        self._process = Process([*java_command("QuorumAppend", *JAVA_OPTIONS), *words])

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    def close(self) -> None:
        resume(self.pids)
        self._process.close()

    def append(self, count: int, size: int) -> dict[str, Any]:
        self._process.ask(f"{WAKING} {size} {WAKING}")
        return acknowledged(count, self._process.ask(f"{count} {size} {JAVA_IN_FLIGHT[size]}"))


class JavaClients:
    """Java's DLedgerClient in its own process, on a Java group."""

    def __init__(self, java: Java) -> None:
        with awake(java.pids):
            self._process = Process([*java_command("ClientAppend"), java.peers, str(JAVA_THREADS)])
        self.pids = [*java.pids, self._process.pid]
        pause(self.pids)

    def close(self) -> None:
        resume(self.pids)
        self._process.close()

    def append(self, count: int, size: int) -> dict[str, Any]:
        self._process.ask(f"{WAKING} {size}")
        return acknowledged(count, self._process.ask(f"{count} {size}"))


class Ours:
    """A group of our nodes, each a process, and the process of a writer."""

    def __init__(self, path: Path, flush: str) -> None:
        ports = free_ports(len(NODES))
        self.peers = ";".join(f"{node}-127.0.0.1:{port}" for node, port in zip(NODES, ports, strict=True))
        self._path, self._flush = path, flush
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._writer: Process | None = None
        for node in NODES:
            self.start(node)

    def start(self, node: str) -> None:
        command = ("serve", "--group", GROUP, "--id", node, "--peers", self.peers, "--store", str(self._path))
        leak = f"maxHeartBeatLeak={LEAK}"
        with (self._path / f"{node}.log").open("ab") as log:
            self._nodes[node] = subprocess.Popen(
                [sys.executable, "-m", "pyspark_dledger", *command, "--flush", self._flush, "--set", leak],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, node: str) -> None:
        process = self._nodes.pop(node)
        process.send_signal(signal.SIGTERM)
        process.wait()

    def require(self, node: str) -> None:
        """Raises RuntimeError if the node has ended by itself."""
        if self._nodes[node].poll() is not None:
            ended = self._nodes.pop(node)
            said = (self._path / f"{node}.log").read_text().strip()
            raise RuntimeError(f"{node} ended with {ended.returncode}: {said[-500:]}")

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._nodes.values()]

    def close(self) -> None:
        resume(self.pids)
        if self._writer is not None:
            self._writer.close()
        for node in tuple(self._nodes):
            self.stop(node)

    @property
    def writer(self) -> Process:
        if self._writer is None:
            try:
                self._writer = Process([sys.executable, "-m", "benchmarks.append_load", GROUP, self.peers])
            except PeerMissing as reason:
                raise RuntimeError(f"our writer: {reason}") from None
        return self._writer

    def append(self, how: str, count: int, size: int, *numbers: int) -> dict[str, Any]:
        self.writer.ask(f"single {WAKING} {size}")
        words = (how, count, size, *numbers)
        return acknowledged(count, self.writer.ask(" ".join(map(str, words))))


def acknowledged(count: int, answer: dict[str, Any]) -> dict[str, Any]:
    """The result of a round. Raises an error unless all of it was acknowledged."""
    if answer["acknowledged"] != count:
        raise AssertionError(f"{answer['acknowledged']} of {count} appends were acknowledged")
    return answer


def pause(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def resume(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def awake(pids: Sequence[int]) -> Iterator[None]:
    """Run processes that are stopped otherwise, so that they do not slow the other sides."""
    resume(pids)
    try:
        yield
    finally:
        pause(pids)


class Side(NamedTuple):
    """One side: its round, and the processes for it."""

    pids: list[int]
    round: Callable[[], dict[str, Any]]

    def figure(self, name: str) -> float:
        touch_memory(ROUND_BYTES)
        with awake(self.pids):
            return float(self.round()[name])


def in_turns(sides: dict[str, Side], figure: str) -> dict[str, float]:
    """The median of a value over the rounds, for each side."""
    return alternate({name: partial(side.figure, figure) for name, side in sides.items()}, ROUNDS, WARM_UPS)


@contextmanager
def groups() -> Iterator[tuple[Java, dict[str, Ours]]]:
    """Java's group, and ours for each flush mode, all started and stopped (SIGSTOP)."""
    with ExitStack() as stack:
        java = stack.enter_context(closing(Java(stack.enter_context(new_folder("groups/java")))))
        ours = {
            flush: stack.enter_context(closing(Ours(stack.enter_context(new_folder(f"groups/{flush}")), flush)))
            for flush in FLUSHES
        }
        for group in ours.values():
            group.append("single", WAKING, 1)
            pause(group.pids)
        pause(java.pids)
        yield java, ours


def our_sides(ours: dict[str, Ours], how: str, *numbers: int) -> dict[str, Side]:
    return {flush: Side(group.pids, partial(group.append, how, *numbers)) for flush, group in ours.items()}


def quorum_batch(name: str, size: int) -> Result:
    count, java_count = COUNTS[size], JAVA_COUNTS[size]
    with groups() as (java, ours), bare_copy(count * (ENTRY_HEADER_SIZE + size + INDEX_UNIT_SIZE)) as bare:
        by_java = Side(java.pids, partial(java.append, java_count, size))
        seconds = in_turns({**our_sides(ours, "batch", count, size), "java": by_java, "bare": bare}, "seconds")
    rates = {flush: count / seconds[flush] for flush in FLUSHES}
    peer = f"Java handleAppend, {JAVA_IN_FLIGHT[size]} in flight"
    result = _compared(name, rates, peer, java_count / seconds["java"], 6)
    limit = count / seconds["bare"]
    result.detail.update(bareCopy=rounded(limit), ofBareCopy=rounded(rates["async"] / limit))
    return result


@contextmanager
def bare_copy(size: int) -> Iterator[Side]:
    """Copies as many bytes to three files and over two sockets, and does nothing else."""
    with new_folder("groups/bare") as path:
        process = Process([sys.executable, "-m", "benchmarks.bare_copy", str(path), str(size)])
        with closing(process):
            yield Side([], partial(process.ask, ""))


def quorum_single(name: str, size: int) -> Result:
    count, java_count = SINGLE_COUNT, SINGLE_COUNT // 2
    with groups() as (java, ours), closing(JavaClients(java)) as clients:
        by_java = Side(clients.pids, partial(clients.append, java_count, size))
        seconds = in_turns({**our_sides(ours, "single", count, size), "java": by_java}, "seconds")
    rates = {flush: count / seconds[flush] for flush in FLUSHES}
    peer = f"Java DLedgerClient, {JAVA_THREADS} threads"
    return _compared(name, rates, peer, java_count / seconds["java"], 1.5)


def _compared(name: str, rates: dict[str, float], peer: str, peer_rate: float, goal: float) -> Result:
    detail = {"flush": "async", "sync": rounded(rates["sync"]), "syncRatio": rounded(rates["sync"] / peer_rate)}
    return Result(name, rates["async"], "appends/s", peer, peer_rate, detail=detail).with_ratio_goal(goal)


def quorum_latency(name: str, size: int) -> Result:
    """The p99 of single appends at the highest rate of Java's group."""
    count = JAVA_COUNTS[size]
    with groups() as (java, ours):
        by_java = Side(java.pids, partial(java.append, count, size))
        rate = count / in_turns({"java": by_java}, "seconds")["java"]
        sides = our_sides(ours, "rate", round(2 * rate), size, round(rate))
        p99 = in_turns({**sides, "java": by_java}, "p99")
    sync_ratio = rounded(p99["sync"] / p99["java"])
    detail = {"flush": "async", "sync": rounded(p99["sync"]), "syncRatio": sync_ratio, "rate": rounded(rate)}
    return Result(name, p99["async"], "ms", "Java handleAppend", p99["java"], detail=detail).with_ratio_at_most(0.5)


def catch_up(name: str, size: int) -> Result:
    """A follower that returns with 1 GiB less, while appends continue."""
    with (
        new_folder("groups/catch-up") as path,
        closing(Ours(path, "async")) as ours,
        dl.connect(GROUP, ours.peers) as client,
    ):
        ours.append("batch", 1000, size)
        leader = client.metadata().leader_id or NODES[0]
        behind = next(node for node in NODES if node != leader)
        ours.stop(behind)
        ours.append("batch", BEHIND // (size + 48), size)
        wanted = end_of(client, leader)
        ours.start(behind)
        at, first = time.perf_counter(), -1
        end = -1
        rounds: list[dict[str, Any]] = []
        while end < wanted:
            ours.require(behind)
            rounds.append(ours.append("rate", 250, size, 5000))
            end = end_of(client, behind)
            if first < 0:
                at, first = time.perf_counter(), end
        seconds = time.perf_counter() - at
    detail = {"flush": "async", "p99MsMeanwhile": rounded(max(each["p99"] for each in rounds))}
    return Result(name, (end - first) * (size + 48) / seconds / 1e6, "MB/s", detail=detail).with_least(200)


def end_of(client: dl.Client, node: str) -> int:
    """The end index of a member's log; -1 while it does not respond."""
    try:
        return client.status(node).end_index
    except GroupError:
        return -1


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "quorum-append-batch-1k": partial(quorum_batch, size=1024),
    "quorum-append-batch-128": partial(quorum_batch, size=128),
    "quorum-append-single-1k": partial(quorum_single, size=1024),
    "quorum-append-single-128": partial(quorum_single, size=128),
    "quorum-latency-p99-1k": partial(quorum_latency, size=1024),
    "catch-up": partial(catch_up, size=1024),
}
